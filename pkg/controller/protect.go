package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/volume"

	"github.com/carve-csi/carve/pkg/controller/workloop"
)

const (
	// cloneFinalizer keeps a claim while clones of it are being made. The name
	// is the upstream provisioner's.
	cloneFinalizer = "provisioner.storage.kubernetes.io/cloning-protection"
	// protectAgain is the pause before a protected claim is looked at again
	// whose clones have not been looked at in this life.
	protectAgain = 2 * time.Second
)

func isProtected(claim *v1.PersistentVolumeClaim) bool {
	return slices.Contains(claim.Finalizers, cloneFinalizer)
}

// protector keeps the finalizer on claims that are being cloned. It remembers
// who needs it in this life; after a restart a finalizer stays until every
// clone of that claim has been looked at by the provisioner, and so either
// needs it again or does not.
type protector struct {
	*core
	sourceLoop *workloop.Loop[string] // by namespace/name
	// unjudged tells whether the provisioner is yet to look at a clone of the
	// source.
	unjudged func(source string) bool

	// mu is held while the API server is called: what it is told is in order.
	mu sync.Mutex
	// clones are the UIDs of the claims that are made of a source, by the
	// source's key (namespace/name).
	clones map[string]map[string]struct{}
}

func newProtector(c *core, unjudged func(string) bool) *protector {
	g := &protector{core: c, unjudged: unjudged, clones: map[string]map[string]struct{}{}}
	g.sourceLoop = workloop.New(workloop.Options[string]{
		Name: "clone-sources", Parallel: 1, RetryMin: retryMin, RetryMax: retryMax, Work: g.sync,
		Failed: func(_ context.Context, source string, err error) {
			g.log.Info("claim is still protected", "claim", source, "error", err)
		},
	})
	return g
}

// hold protects a source for a clone, before the clone is begun.
func (g *protector) hold(ctx context.Context, source *v1.PersistentVolumeClaim, clone string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	key := source.Namespace + "/" + source.Name
	if len(g.clones[key]) == 0 {
		if err := g.patch(ctx, source, "finalizers"); err != nil {
			return fmt.Errorf("protect claim %s while it is cloned: %w", key, err)
		}
		g.clones[key] = map[string]struct{}{}
	}
	g.clones[key][clone] = struct{}{}
	return nil
}

// letGo says that a clone needs its source's protection no more.
func (g *protector) letGo(source, clone string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.clones[source], clone)
	if len(g.clones[source]) == 0 {
		delete(g.clones, source)
		g.sourceLoop.Add(source)
	}
}

// run works until ctx is done. The caches must have synced.
func (g *protector) run(ctx context.Context) error {
	look := func(obj any) {
		if claim, ok := obj.(*v1.PersistentVolumeClaim); ok && isProtected(claim) {
			g.sourceLoop.Add(claim.Namespace + "/" + claim.Name)
		}
	}
	handler, err := g.claims.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: look, UpdateFunc: func(_, obj any) { look(obj) },
	})
	if err != nil {
		return fmt.Errorf("watch claims: %w", err)
	}
	defer func() { _ = g.claims.RemoveEventHandler(handler) }()
	g.sourceLoop.Run(ctx)
	return nil
}

// sync removes the finalizer from a source that is not being cloned.
func (g *protector) sync(ctx context.Context, source string) (again time.Duration, err error) {
	obj, _, err := g.claims.GetStore().GetByKey(source)
	claim, ok := obj.(*v1.PersistentVolumeClaim)
	if err != nil || !ok || !isProtected(claim) {
		return 0, err
	}
	if g.unjudged(source) {
		return protectAgain, nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.clones[source]) > 0 {
		return 0, nil
	}
	return 0, g.patch(ctx, claim, "$deleteFromPrimitiveList/finalizers")
}

// patch adds or removes the finalizer, as deleter.patchFinalizer does.
func (g *protector) patch(ctx context.Context, claim *v1.PersistentVolumeClaim, directive string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": claim.UID, directive: []string{cloneFinalizer}}})
	if err != nil {
		return fmt.Errorf("change finalizer: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	_, err = g.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Patch(ctx, claim.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) && directive != "finalizers" {
		return nil
	}
	if err != nil {
		return fmt.Errorf("change finalizer: %w", err)
	}
	return nil
}

// protectSource protects the source of a claim that is about to be made of it.
func (p *provisioner) protectSource(ctx context.Context, a *attempt, from *origin) error {
	if from.claim == nil || a.protects != "" {
		p.sawSource(a)
		return nil
	}
	if err := p.protector.hold(ctx, from.claim, a.uid); err != nil {
		return err
	}
	a.protects = from.claim.Namespace + "/" + from.claim.Name
	p.sawSource(a)
	return nil
}

// letSourceGo ends that, and is for all claims.
func (p *provisioner) letSourceGo(a *attempt) {
	p.sawSource(a)
	if a.protects != "" {
		p.protector.letGo(a.protects, a.uid)
		a.protects = ""
	}
}

func (p *provisioner) sawSource(a *attempt) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a.seen = true
}

// unseen tells whether a clone of a source may be under way from an earlier
// life, without the provisioner having got around to it.
func (p *provisioner) unseen(source string) bool {
	for _, clone := range p.clonesOf(source) {
		if _, ours := p.ourClass(volume.GetPersistentVolumeClaimClass(clone)); !ours || clone.Spec.VolumeName != "" {
			continue
		}
		p.mu.Lock()
		a := p.attempts[string(clone.UID)]
		unseen := a == nil || !a.seen
		p.mu.Unlock()
		if unseen {
			return true
		}
	}
	return false
}
