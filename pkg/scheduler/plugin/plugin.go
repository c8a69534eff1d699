// Package plugin is Carve's plugin for kube-scheduler, which carve-scheduler includes. It replaces
// VolumeBinding, reuses its code and takes its arguments. Beyond VolumeBinding, it
//
//   - compares a node's claims with that node's capacity objects instead of all objects, and excludes full nodes
//     early if most are full;
//   - counts the space of claims that have a node but do not show in the capacity yet, and compares the sum of a
//     Pod's claims with the capacity;
//   - scores nodes for new volumes by the StorageClass's parameter carve.csi.local/placement;
//   - keeps Pods on the nodes of their movable volumes;
//   - waits for new volumes by events instead of polling each second. VolumeBinding binds static volumes.
//
// A profile enables it like this:
//
//	plugins:
//	  multiPoint:
//	    disabled: [{name: VolumeBinding}]
//	    enabled: [{name: CarveVolumes}]
//
// It is a separate module, because k8s.io/kubernetes and its libraries must have one version.
// go.mod has the newest minor version of Kubernetes, and go-1.36.mod and go-1.35.mod, for -modfile,
// those before; all share the source.
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

// New returns the plugin for a scheduler. It takes VolumeBinding's arguments.
func New(ctx context.Context, given runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
	args, err := arguments(given)
	if err != nil {
		return nil, err
	}
	return newBinding(ctx, args, handle, feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate))
}

func (*binding) Name() string { return Name }
