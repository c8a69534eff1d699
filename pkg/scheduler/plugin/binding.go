package plugin

import (
	"context"
	"fmt"
	goruntime "runtime"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/volumebinding"
)

// newBinding makes upstream's plugin with a binder that looks at fewer objects.
func newBinding(ctx context.Context, args *config.VolumeBindingArgs, handle fwk.Handle, features feature.Features) (*volumebinding.VolumeBinding, error) {
	made, err := volumebinding.New(ctx, args, handle, features)
	if err != nil {
		return nil, err
	}
	binding, ok := made.(*volumebinding.VolumeBinding)
	if !ok {
		return nil, fmt.Errorf("VolumeBinding is a %T", made)
	}
	binder := &binder{SchedulerVolumeBinder: binding.Binder, finders: make(chan *finder, goruntime.GOMAXPROCS(0))}
	for range cap(binder.finders) {
		finder, err := newFinder(klog.FromContext(ctx), handle, features)
		if err != nil {
			return nil, err
		}
		binder.finders <- finder
	}
	binding.Binder = binder
	return binding, nil
}

// binder is upstream's, which knows the assumed claims and volumes, and which has others look whether nodes suit Pods.
type binder struct {
	volumebinding.SchedulerVolumeBinder
	// finders are those that look at no node now: as many as can run at a time.
	finders chan *finder
}

// FindPodVolumes implements volumebinding.SchedulerVolumeBinder. It may be called in parallel.
func (b *binder) FindPodVolumes(logger klog.Logger, pod *v1.Pod, claims *volumebinding.PodVolumeClaims, node *v1.Node) (*volumebinding.PodVolumes, volumebinding.ConflictReasons, error) {
	finder := <-b.finders
	defer func() { b.finders <- finder }()
	finder.capacities.node = node
	return finder.FindPodVolumes(logger, pod, claims, node)
}

// finder is a binder of upstream's that is used for FindPodVolumes alone, and for one node at a time: there is no other
// way to let a lister know for which node upstream asks it. It knows nothing assumed, which FindPodVolumes needs only in
// its argument: it reads claims there, and of PersistentVolumes in the cache nothing that the scheduler assumes.
type finder struct {
	volumebinding.SchedulerVolumeBinder
	capacities *nodeCapacities
}

func newFinder(logger klog.Logger, handle fwk.Handle, features feature.Features) (*finder, error) {
	core, storage := handle.SharedInformerFactory().Core().V1(), handle.SharedInformerFactory().Storage().V1()
	capacities, err := newNodeCapacities(storage.CSIStorageCapacities())
	if err != nil {
		return nil, err
	}
	// It is never started. The finder reads no claims in it.
	idle := informers.NewSharedInformerFactory(handle.ClientSet(), 0)
	made, err := volumebinding.NewVolumeBinder(logger, handle.ClientSet(), features, core.Pods(), core.Nodes(), storage.CSINodes(),
		idle.Core().V1().PersistentVolumeClaims(), volumeInformer{core.PersistentVolumes(), unobserved{core.PersistentVolumes().Informer()}},
		storage.StorageClasses(), volumebinding.CapacityCheck{CSIDriverInformer: storage.CSIDrivers(), CSIStorageCapacityInformer: capacities}, 0)
	return &finder{made, capacities}, err
}

// volumeInformer is a view of the PersistentVolumes.
type volumeInformer struct {
	coreinformers.PersistentVolumeInformer
	view cache.SharedIndexInformer
}

func (i volumeInformer) Informer() cache.SharedIndexInformer { return i.view }

// unobserved is an informer for what assumes nothing, and so needs no event to forget it.
type unobserved struct{ cache.SharedIndexInformer }

func (unobserved) AddEventHandler(cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	return nil, nil
}
