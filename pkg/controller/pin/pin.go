package pin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/volume"

	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/controller/objects"
	"github.com/carve-csi/carve/pkg/controller/spec"
	"github.com/carve-csi/carve/pkg/controller/workloop"
)

const (
	// grace is how long a Pod usually has no node after its claim was bound, with a margin: the
	// scheduler checks claims once a second, and waits at least a second after a failed binding
	// before it retries. With a shorter grace, more volumes are pinned for nothing; with a longer
	// one, more Pods whose binding failed go to a wrong node.
	grace              = 2 * time.Second
	workers            = 16
	retryMin, retryMax = 200 * time.Millisecond, 5 * time.Second
)

// Pinner pins the PersistentVolumes that were created without nodeAffinity.
type Pinner struct {
	*cluster.Cluster
	Options
	loop *workloop.Loop[string] // by PersistentVolume name

	mu sync.Mutex
	// unplaced records, by volume, since when the owner of a bound claim has had no node.
	unplaced map[string]time.Time
	// warned records, by volume, the misplaced Pods that got their Event.
	warned map[string][]types.UID

	// guard judges all marked nodes at once. Only its worker uses short, which records, by node,
	// since when the others have lacked space.
	guard *workloop.Loop[struct{}]
	short map[string]time.Time
}

// Options configure a Pinner. Disks and Metrics are required.
type Options struct {
	// Grace is how long a Pod may lack a node after its claim was bound; zero means 2 s.
	Grace time.Duration
	// Lasting is how long other nodes must lack the space for a marked node's volumes; zero means
	// 30 s.
	Lasting time.Duration
	Disks   Disks
	Metrics *Metrics
}

// New returns a Pinner; Run runs it.
func New(c *cluster.Cluster, o Options) *Pinner {
	o.Grace, o.Lasting = cmp.Or(o.Grace, grace), cmp.Or(o.Lasting, lasting)
	p := &Pinner{Cluster: c, Options: o, unplaced: map[string]time.Time{}, warned: map[string][]types.UID{}}
	p.loop = workloop.New(workloop.Options[string]{
		Name: "pins", Parallel: workers, RetryMin: retryMin, RetryMax: retryMax, Work: p.sync,
		Failed: func(_ context.Context, name string, err error) {
			p.Log.Warn("a movable volume could not be looked after, trying on", "volume", name, "error", err)
		},
	})
	p.guard = workloop.New(workloop.Options[struct{}]{
		Name: "scale-downs", Parallel: 1, RetryMin: retryMin, RetryMax: retryMax, Work: p.judgeMarked,
		Failed: func(_ context.Context, _ struct{}, err error) {
			p.Log.Warn("the volumes of a node that is to be removed could not be pinned, trying on", "error", err)
		},
	})
	return p
}

// Run works until ctx is done. The caches must have synced.
func (p *Pinner) Run(ctx context.Context) error {
	stop, err := cluster.Watch(
		cluster.OnChange(p.Volumes, p.volumeChanged, p.volumeChanged),
		cluster.OnChange(p.Claims, p.claimChanged, nil),
		// A Pod that has started or is gone makes no claim wait.
		cluster.OnChange(p.Pods, func(pod *v1.Pod) {
			for _, key := range objects.ClaimsNamed(pod) {
				if claim := p.ClaimAt(key); claim != nil {
					p.claimChanged(claim)
				}
			}
		}, nil),
		cluster.OnChange(p.Classes, p.classChanged, nil),
		cluster.OnChange(p.Nodes, p.nodeChanged, nil),
	)
	if err != nil {
		return err
	}
	defer stop()
	var guard sync.WaitGroup
	defer guard.Wait()
	guard.Go(func() { p.guard.Run(ctx) })
	p.loop.Run(ctx)
	return nil
}

func (p *Pinner) volumeChanged(pv *v1.PersistentVolume) {
	if _, recorded := objects.RecordedNode(pv); recorded && objects.IsOurs(pv) {
		p.loop.Add(pv.Name)
	}
}

// claimChanged queues the volume of a claim. A volume that the cache lacks has its own event later.
func (p *Pinner) claimChanged(claim *v1.PersistentVolumeClaim) {
	if pv, err := p.VolumeLister.Get(claim.Spec.VolumeName); err == nil {
		p.volumeChanged(pv)
	}
}

// classChanged queues the unpinned volumes of a class that is no longer movable.
func (p *Pinner) classChanged(class *storagev1.StorageClass) {
	if spec.Movable(class) {
		return
	}
	for _, pv := range cluster.List(p.Volumes) {
		if pv.Spec.StorageClassName == class.Name && pv.Spec.NodeAffinity == nil {
			p.volumeChanged(pv)
		}
	}
}

func (p *Pinner) sync(ctx context.Context, name string) (time.Duration, error) {
	pv, err := p.VolumeLister.Get(name)
	if err != nil {
		p.forget(name)
		return 0, nil //nolint:nilerr // the cache has no such volume
	}
	claim, s := p.observe(pv)
	do := decide(s)
	if do.pin != "" {
		if err := p.pin(ctx, pv, s.node, do.pin); err != nil {
			return 0, err
		}
	}
	listed, failed := cluster.PodLists{}, []error(nil)
	for _, node := range do.misplaced {
		failed = append(failed, p.end(ctx, listed, pv, claim, node))
	}
	return do.again, errors.Join(failed...)
}

// observe reads the input of decide, and returns the claim or nil. It also records since when the
// claim's Pod has had no node.
func (p *Pinner) observe(pv *v1.PersistentVolume) (*v1.PersistentVolumeClaim, state) {
	s := state{pinned: pv.Spec.NodeAffinity != nil, grace: p.Grace}
	s.node, _ = objects.RecordedNode(pv)
	class, ours := p.OurClass(pv.Spec.StorageClassName)
	s.stays = pv.Spec.PersistentVolumeReclaimPolicy != v1.PersistentVolumeReclaimDelete || ours && !spec.Movable(class)
	var claim *v1.PersistentVolumeClaim
	if ref := pv.Spec.ClaimRef; ref != nil {
		claim = p.Claim(string(ref.UID))
	}
	if claim == nil {
		p.since(pv.Name, false)
		return nil, s
	}
	s.bound = claim.Status.Phase == v1.ClaimBound && metav1.HasAnnotation(claim.ObjectMeta, volume.AnnBindCompleted)
	owner, waits := spec.OwnerPod(claim), false
	for _, user := range p.WaitingPods(claim) {
		of := pod{owner: owner != nil && owner.UID == user.UID, node: user.Spec.NodeName}
		s.pods, waits = append(s.pods, of), waits || of.unplacedOwner()
	}
	s.unplaced = p.since(pv.Name, waits && s.bound && !s.pinned)
	return claim, s
}

// since returns how long a volume's Pod has had no node. If unplaced is false, it clears the
// record.
func (p *Pinner) since(name string, unplaced bool) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !unplaced {
		delete(p.unplaced, name)
		return 0
	}
	now := p.Now()
	if _, known := p.unplaced[name]; !known {
		p.unplaced[name] = now
	}
	return now.Sub(p.unplaced[name])
}

func (p *Pinner) pin(ctx context.Context, pv *v1.PersistentVolume, node, reason string) error {
	_, err := cluster.Apply(ctx, p.Client.CoreV1().PersistentVolumes(), pv, cluster.SameObject, func(pv *v1.PersistentVolume) {
		pv.Spec.NodeAffinity = objects.NodeAffinity(node)
	})
	switch {
	case cluster.IsOutdated(err):
		return nil
	case err != nil:
		return fmt.Errorf("pin volume %s to node %s: %w", pv.Name, node, err)
	}
	p.Metrics.pinned.WithLabelValues(reason).Inc()
	p.Log.Info("pinned a movable volume to its node", "volume", pv.Name, "node", node, "reason", reason)
	return nil
}

func (p *Pinner) end(ctx context.Context, listed cluster.PodLists, pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim, node string) error {
	has, _ := objects.RecordedNode(pv)
	why := cluster.Why{Reason: cluster.ReasonMisplaced, Words: fmt.Sprintf("whose volume is on node %s, not on node %s", has, node)}
	left, err := p.DeleteWaiting(ctx, listed, claim, node, why)
	for _, pod := range left {
		if p.warnsFirst(pv.Name, pod.UID) {
			p.Recorder.Eventf(pod, v1.EventTypeWarning, why.Reason, "the Pod waits for claim %s, %s; delete the Pod: no controller makes it again", claim.Name, why.Words)
		}
	}
	return err
}

// warnsFirst reports whether a Pod has not had its Event yet, and records that it has. A Pod never
// changes its node, and every change of it, its claim or the volume leads here.
func (p *Pinner) warnsFirst(volume string, pod types.UID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if slices.Contains(p.warned[volume], pod) {
		return false
	}
	p.warned[volume] = append(p.warned[volume], pod)
	return true
}

func (p *Pinner) forget(volume string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.unplaced, volume)
	delete(p.warned, volume)
}
