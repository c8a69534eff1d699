package provision

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/component-helpers/storage/volume"

	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/controller/spec"
	"github.com/carve-csi/carve/pkg/controller/workloop"
)

const (
	// CloneFinalizer keeps a claim while it is cloned. The upstream provisioner uses the same
	// name.
	CloneFinalizer = "provisioner.storage.kubernetes.io/cloning-protection"
	// protectAgain polls a protected claim some of whose clones the provisioner has not seen
	// yet.
	protectAgain = 2 * time.Second
)

// IsProtected reports whether a claim has CloneFinalizer.
func IsProtected(claim *v1.PersistentVolumeClaim) bool {
	return slices.Contains(claim.Finalizers, CloneFinalizer)
}

// protector keeps the finalizer on claims that are being cloned. After a restart the finalizer
// stays until the provisioner has seen every clone of the claim.
type protector struct {
	*cluster.Cluster
	loop   *workloop.Loop[string] // by namespace/name
	unseen func(source string) bool

	// mu is held during calls of the API server, to order them.
	mu sync.Mutex
	// clones are UIDs of clones by source (namespace/name).
	clones map[string]map[string]struct{}
}

func newProtector(c *cluster.Cluster, unseen func(string) bool) *protector {
	g := &protector{Cluster: c, unseen: unseen, clones: map[string]map[string]struct{}{}}
	g.loop = workloop.New(workloop.Options[string]{
		Name: "clone-sources", Parallel: 1, RetryMin: retryMin, RetryMax: retryMax, Work: g.sync,
		Failed: func(_ context.Context, source string, err error) {
			g.Log.Info("claim is still protected", "claim", source, "error", err)
		},
	})
	return g
}

func (g *protector) protect(ctx context.Context, source *v1.PersistentVolumeClaim, clone string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	key := source.Namespace + "/" + source.Name
	if len(g.clones[key]) == 0 {
		if err := g.setFinalizer(ctx, source, true); err != nil {
			return fmt.Errorf("protect claim %s while it is cloned: %w", key, err)
		}
		g.clones[key] = map[string]struct{}{}
	}
	g.clones[key][clone] = struct{}{}
	return nil
}

func (g *protector) unprotect(source, clone string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.clones[source], clone)
	if len(g.clones[source]) == 0 {
		delete(g.clones, source)
		g.loop.Add(source)
	}
}

func (g *protector) run(ctx context.Context) error {
	stop, err := cluster.Watch(cluster.OnChange(g.Claims, func(claim *v1.PersistentVolumeClaim) {
		if IsProtected(claim) {
			g.loop.Add(claim.Namespace + "/" + claim.Name)
		}
	}, nil))
	if err != nil {
		return err
	}
	defer stop()
	g.loop.Run(ctx)
	return nil
}

func (g *protector) sync(ctx context.Context, source string) (again time.Duration, err error) {
	claim := g.ClaimAt(source)
	if claim == nil || !IsProtected(claim) {
		return 0, nil
	}
	if g.unseen(source) {
		return protectAgain, nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.clones[source]) > 0 {
		return 0, nil
	}
	return 0, g.setFinalizer(ctx, claim, false)
}

func (g *protector) setFinalizer(ctx context.Context, claim *v1.PersistentVolumeClaim, wanted bool) error {
	_, err := cluster.Apply(ctx, g.Client.CoreV1().PersistentVolumeClaims(claim.Namespace), claim, cluster.SameObject,
		cluster.WithFinalizer[*v1.PersistentVolumeClaim](CloneFinalizer, wanted))
	if err != nil && (wanted || !apierrors.IsNotFound(err)) {
		return fmt.Errorf("change finalizer: %w", err)
	}
	return nil
}

func (p *Provisioner) protectSource(ctx context.Context, a *attempt, from *spec.Origin) error {
	if from.Claim == nil || a.protects != "" {
		p.attempts.sawSource(a.uid)
		return nil
	}
	if err := p.protector.protect(ctx, from.Claim, a.uid); err != nil {
		return err
	}
	a.protects = from.Claim.Namespace + "/" + from.Claim.Name
	p.attempts.sawSource(a.uid)
	return nil
}

func (p *Provisioner) unprotectSource(a *attempt) {
	p.attempts.sawSource(a.uid)
	if a.protects != "" {
		p.protector.unprotect(a.protects, a.uid)
		a.protects = ""
	}
}

// unseen reports whether an earlier process run may have started a clone that no worker has
// seen yet.
func (p *Provisioner) unseen(source string) bool {
	for _, clone := range p.ClonesOf(source) {
		if _, ours := p.OurClass(volume.GetPersistentVolumeClaimClass(clone)); !ours || clone.Spec.VolumeName != "" {
			continue
		}
		if _, selected := p.attempts.get(string(clone.UID)); !selected.sourceSeen {
			return true
		}
	}
	return false
}
