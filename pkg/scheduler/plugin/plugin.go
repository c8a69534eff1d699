// Package plugin is Carve's plugin for kube-scheduler, which carve-scheduler below is built with. It replaces
// VolumeBinding, reuses its code and takes its arguments. Beyond VolumeBinding, it
//
//   - compares a node's claims with the capacity objects of that node instead of all objects, and leaves out full nodes
//     early where most are;
//   - counts the space of claims that have a node and whose volumes the capacity does not show yet, and compares the sum
//     of a Pod's claims with it;
//   - scores nodes for new volumes by the StorageClass's parameter carve.csi.local/placement;
//   - keeps Pods on the nodes of their movable volumes;
//   - waits for new volumes by events instead of polling each second. Static volumes are bound by VolumeBinding.
//
// A profile enables it like this:
//
//	plugins:
//	  multiPoint:
//	    disabled: [{name: VolumeBinding}]
//	    enabled: [{name: CarveVolumes}]
//
// It is a module of its own, because k8s.io/kubernetes and its libraries must have one version. go.mod has the newest
// minor version of Kubernetes, and go-1.36.mod and go-1.35.mod, for -modfile, those before: the source is the same.
package plugin

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
)

// Name is the plugin's name in a scheduler's profile.
const Name = "CarveVolumes"

var (
	_ fwk.PreFilterPlugin = (*binding)(nil)
	_ fwk.FilterPlugin    = (*binding)(nil)
	_ fwk.PreScorePlugin  = (*binding)(nil)
	_ fwk.ScorePlugin     = (*binding)(nil)
	_ fwk.ReservePlugin   = (*binding)(nil)
	_ fwk.PreBindPlugin   = (*binding)(nil)
)

// New makes the plugin for a scheduler. It takes VolumeBinding's arguments.
func New(ctx context.Context, given runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
	args, err := arguments(given)
	if err != nil {
		return nil, err
	}
	return newBinding(ctx, args, handle, feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate))
}

// Name implements fwk.Plugin.
func (*binding) Name() string { return Name }
