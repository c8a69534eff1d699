package plugin

import (
	"context"
	"fmt"
	goruntime "runtime"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	storageinformers "k8s.io/client-go/informers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/volumebinding"
)

func newBinding(ctx context.Context, args *config.VolumeBindingArgs, handle fwk.Handle, features feature.Features) (*binding, error) {
	made, err := volumebinding.New(ctx, args, handle, features)
	if err != nil {
		return nil, err
	}
	upstream, ok := made.(*volumebinding.VolumeBinding)
	if !ok {
		return nil, fmt.Errorf("VolumeBinding is a %T", made)
	}
	core, storage := handle.SharedInformerFactory().Core().V1(), handle.SharedInformerFactory().Storage().V1()
	volumes := core.PersistentVolumes().Informer()
	inFlight, err := newInFlight(storage.CSIStorageCapacities().Informer(), volumes)
	if err != nil {
		return nil, err
	}
	timeout := time.Duration(args.BindTimeoutSeconds) * time.Second
	provisioning, err := newProvisioning(handle, timeout)
	if err != nil {
		return nil, err
	}
	binder := &binder{candidates: &candidates{Indexer: volumes.GetIndexer()}, inFlight: inFlight, provisioning: provisioning,
		finders: make(chan *finder, goruntime.GOMAXPROCS(0))}
	binder.SchedulerVolumeBinder, err = newUpstream(klog.FromContext(ctx), handle, features, core.PersistentVolumeClaims(), view{volumes, binder.candidates},
		storage.CSIStorageCapacities(), timeout)
	if err != nil {
		return nil, err
	}
	for range cap(binder.finders) {
		finder, err := newFinder(klog.FromContext(ctx), handle, features, inFlight)
		if err != nil {
			return nil, err
		}
		binder.finders <- finder
	}
	upstream.Binder = binder
	space, err := newSpace(handle, inFlight)
	return &binding{upstream, binder, space}, err
}

// newUpstream returns a binder of upstream's. It uses the given informers, and the scheduler's for
// the rest.
func newUpstream(logger klog.Logger, handle fwk.Handle, features feature.Features, claims coreinformers.PersistentVolumeClaimInformer,
	volumes cache.SharedIndexInformer, capacities storageinformers.CSIStorageCapacityInformer, timeout time.Duration,
) (volumebinding.SchedulerVolumeBinder, error) {
	core, storage := handle.SharedInformerFactory().Core().V1(), handle.SharedInformerFactory().Storage().V1()
	return volumebinding.NewVolumeBinder(logger, handle.ClientSet(), features, core.Pods(), core.Nodes(), storage.CSINodes(),
		claims, volumeInformer{core.PersistentVolumes(), volumes}, storage.StorageClasses(),
		volumebinding.CapacityCheck{CSIDriverInformer: storage.CSIDrivers(), CSIStorageCapacityInformer: capacities}, timeout)
}

// binder is upstream's, which tracks the assumed claims and volumes, but lets finders check nodes.
type binder struct {
	volumebinding.SchedulerVolumeBinder
	// mu guards candidates, which serve one Pod at a time.
	mu           sync.Mutex
	candidates   *candidates
	inFlight     *inFlight
	provisioning *provisioning
	finders      chan *finder
}

func (b *binder) GetPodVolumeClaims(logger klog.Logger, pod *v1.Pod) (*volumebinding.PodVolumeClaims, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.candidates.pod, b.candidates.listed = pod, 0
	return b.SchedulerVolumeBinder.GetPodVolumeClaims(logger, pod)
}

// hasCandidates reports whether the Pod's claims may have static volumes. It needs a preceding
// GetPodVolumeClaims.
func (b *binder) hasCandidates(pod *v1.Pod) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.candidates.pod != pod || b.candidates.listed > 0
}

// FindPodVolumes may be called in parallel.
func (b *binder) FindPodVolumes(logger klog.Logger, pod *v1.Pod, claims *volumebinding.PodVolumeClaims, node *v1.Node) (*volumebinding.PodVolumes, volumebinding.ConflictReasons, error) {
	finder := <-b.finders
	defer func() { b.finders <- finder }()
	finder.capacities.node = node
	found, reasons, err := finder.FindPodVolumes(logger, pod, claims, node)
	if err == nil && len(reasons) == 0 && !fitTogether(found.DynamicProvisions) {
		reasons = volumebinding.ConflictReasons{volumebinding.ErrReasonNotEnoughSpace}
	}
	return found, reasons, err
}

// fitTogether reports whether a node has space for all new volumes, given that it has space for
// each. It skips capacity objects whose topology is not one of Carve's nodes: several of them may
// serve a class.
func fitTogether(provisions []*volumebinding.DynamicProvision) bool {
	taken := map[cache.ObjectName]int64{}
	for _, p := range provisions {
		if p.NodeCapacity == nil || topologyOf(p.NodeCapacity) == anyNode {
			continue
		}
		name := cache.MetaObjectToName(p.NodeCapacity)
		before, isShared := taken[name]
		taken[name] = before + requested(p.PVC)
		if isShared && taken[name] > total(p.NodeCapacity) {
			return false
		}
	}
	return true
}

func (b *binder) AssumePodVolumes(logger klog.Logger, pod *v1.Pod, node string, volumes *volumebinding.PodVolumes) (bool, error) {
	provisions := volumes.DynamicProvisions // upstream replaces them by ones that do not name the object
	bound, err := b.SchedulerVolumeBinder.AssumePodVolumes(logger, pod, node, volumes)
	if err == nil {
		b.inFlight.add(provisions)
	}
	return bound, err
}

func (b *binder) RevertAssumedPodVolumes(volumes *volumebinding.PodVolumes) {
	for _, p := range volumes.DynamicProvisions {
		b.inFlight.forget(p.PVC.UID)
	}
	b.SchedulerVolumeBinder.RevertAssumedPodVolumes(volumes)
}

// finder is a binder of upstream's that only runs FindPodVolumes, for one node at a time: a lister
// cannot learn otherwise for which node upstream asks. It has no assumed objects. FindPodVolumes
// needs none: it gets the claims as an argument, and ignores what the scheduler assumes of
// PersistentVolumes.
type finder struct {
	volumebinding.SchedulerVolumeBinder
	capacities *nodeCapacities
}

func newFinder(logger klog.Logger, handle fwk.Handle, features feature.Features, inFlight *inFlight) (*finder, error) {
	shared := handle.SharedInformerFactory()
	capacities, err := newNodeCapacities(shared.Storage().V1().CSIStorageCapacities(), inFlight)
	if err != nil {
		return nil, err
	}
	// These informers never start: a finder does not read their claims.
	idle := informers.NewSharedInformerFactory(handle.ClientSet(), 0)
	made, err := newUpstream(logger, handle, features, idle.Core().V1().PersistentVolumeClaims(),
		unobserved{shared.Core().V1().PersistentVolumes().Informer()}, capacities, 0)
	return &finder{made, capacities}, err
}

// volumeInformer overrides the informer of PersistentVolumes.
type volumeInformer struct {
	coreinformers.PersistentVolumeInformer
	informer cache.SharedIndexInformer
}

func (i volumeInformer) Informer() cache.SharedIndexInformer { return i.informer }

// view overrides the indexer of an informer.
type view struct {
	cache.SharedIndexInformer
	indexer cache.Indexer
}

func (v view) GetIndexer() cache.Indexer { return v.indexer }

// unobserved drops event handlers: a finder assumes nothing, so it has nothing to forget on events.
type unobserved struct{ cache.SharedIndexInformer }

func (unobserved) AddEventHandler(cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	return nil, nil
}
