// Package plugin is a plugin for kube-scheduler, for those who build a scheduler of their own. It takes the place of
// VolumeBinding, of which it is made: it filters, scores and reserves by VolumeBinding's code, which sees of each node
// the objects that can matter there and not those of all nodes, and it waits for volumes without looking for them once
// per second:
//
//	plugins:
//	  multiPoint:
//	    disabled: [{name: VolumeBinding}]
//	    enabled: [{name: CarveVolumes}]
//
// At the extension point preBind alone it only waits, and VolumeBinding does the rest.
//
// It is a module of its own, because Kubernetes is no library: k8s.io/kubernetes and what it is built of must have one
// version, which the module that builds the scheduler chooses. Command carve-scheduler below is one.
package plugin

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"

	"github.com/carve-csi/carve/pkg/controller/objects"
	"github.com/carve-csi/carve/pkg/controller/podbinder"
)

// Name is the plugin's name in a scheduler's profile.
const Name = "CarveVolumes"

// volumes has the volumes of Pods bound. The embedded plugin does what is before that.
type volumes struct {
	*binding
	pods    *podbinder.Binder
	timeout time.Duration
}

var (
	_ fwk.PreFilterPlugin = (*volumes)(nil)
	_ fwk.FilterPlugin    = (*volumes)(nil)
	_ fwk.PreBindPlugin   = (*volumes)(nil)
)

// New makes the plugin for a scheduler, which runs until ctx is done. It takes VolumeBinding's arguments, and has no
// metrics: scheduler_framework_extension_point_duration_seconds has the time that Pods wait. For that wait it has caches
// of its own, of PersistentVolumes, claims, StorageClasses and the labels of Nodes.
func New(ctx context.Context, given runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
	args, err := arguments(given)
	if err != nil {
		return nil, err
	}
	binding, err := newBinding(ctx, args, handle, feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate))
	if err != nil {
		return nil, err
	}
	binder, err := podbinder.New(podbinder.Options{Client: handle.ClientSet(), Registerer: prometheus.NewRegistry()})
	if err != nil {
		return nil, err
	}
	go func() { _ = binder.Run(ctx) }() // it ends with ctx, and has no error
	return &volumes{binding, binder, time.Duration(args.BindTimeoutSeconds) * time.Second}, nil
}

// Name implements fwk.Plugin.
func (*volumes) Name() string { return Name }

// PreBindPreFlight implements fwk.PreBindPlugin: a Pod without claims is not waited for.
func (*volumes) PreBindPreFlight(_ context.Context, _ fwk.CycleState, pod *v1.Pod, _ string) (*fwk.PreBindPreFlightResult, *fwk.Status) {
	if len(objects.ClaimsNamed(pod)) == 0 {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	return &fwk.PreBindPreFlightResult{AllowParallel: true}, nil
}

// PreBind implements fwk.PreBindPlugin. With an error, the Pod is scheduled anew.
func (v *volumes) PreBind(ctx context.Context, _ fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	ctx, cancel := context.WithTimeout(ctx, v.timeout)
	defer cancel()
	return fwk.AsStatus(v.pods.BindVolumes(ctx, pod, node))
}
