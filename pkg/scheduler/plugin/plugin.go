// Package plugin is a plugin for kube-scheduler that waits for volumes without looking for them once per second.
// It takes the place of VolumeBinding at the extension point preBind, for those who build a scheduler of their own;
// VolumeBinding still filters, scores and reserves:
//
//	plugins:
//	  preBind:
//	    disabled: [{name: VolumeBinding}]
//	    enabled: [{name: CarveVolumes}]
//
// It is a module of its own, because Kubernetes is no library: k8s.io/kubernetes and what it is built of must have one
// version, which the module that builds the scheduler chooses. Command kube-scheduler below is an example.
package plugin

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/controller/podbinder"
)

// Name is the plugin's name in a scheduler's profile.
const Name = "CarveVolumes"

// bindTimeout bounds the wait for a Pod's volumes, as VolumeBinding's bindTimeoutSeconds does by default.
const bindTimeout = 10 * time.Minute

// volumes has the volumes of Pods bound.
type volumes struct {
	binder *podbinder.Binder
}

var _ fwk.PreBindPlugin = (*volumes)(nil)

// New makes the plugin for a scheduler, which runs until ctx is done. It takes no arguments, and has no metrics:
// scheduler_framework_extension_point_duration_seconds has the time that Pods wait. It has caches of its own, of
// PersistentVolumes, claims, StorageClasses and the labels of Nodes.
func New(ctx context.Context, _ runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
	binder, err := podbinder.New(podbinder.Options{Client: handle.ClientSet(), Registerer: prometheus.NewRegistry()})
	if err != nil {
		return nil, err
	}
	go func() { _ = binder.Run(ctx) }() // it ends with ctx, and has no error
	return &volumes{binder}, nil
}

// Name implements fwk.Plugin.
func (*volumes) Name() string { return Name }

// PreBindPreFlight implements fwk.PreBindPlugin: a Pod without claims is not waited for.
func (*volumes) PreBindPreFlight(_ context.Context, _ fwk.CycleState, pod *v1.Pod, _ string) (*fwk.PreBindPreFlightResult, *fwk.Status) {
	if len(cluster.ClaimsNamed(pod)) == 0 {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	return &fwk.PreBindPreFlightResult{AllowParallel: true}, nil
}

// PreBind implements fwk.PreBindPlugin. With an error, the Pod is scheduled anew.
func (v *volumes) PreBind(ctx context.Context, _ fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	ctx, cancel := context.WithTimeout(ctx, bindTimeout)
	defer cancel()
	return fwk.AsStatus(v.binder.BindVolumes(ctx, pod, node))
}
