package plugin

import (
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/objects"
	"github.com/carve-csi/carve/pkg/scheduler"
)

const (
	holderIndex              = "carve/holder"
	scoresKey   fwk.StateKey = Name
)

type scores map[string]int64

// Clone implements fwk.StateData. Scores are immutable.
func (s scores) Clone() fwk.StateData { return s }

// PreScore scores the nodes for new volumes of Carve's by their StorageClasses' placement. It
// leaves Pods that static volumes may suit to VolumeBinding.
func (b *binding) PreScore(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo) *fwk.Status {
	var classes []*storagev1.StorageClass
	for _, class := range b.space.unbound(pod) {
		if class.Provisioner == names.Driver {
			classes = append(classes, class)
		}
	}
	if len(classes) == 0 || b.binder.hasCandidates(pod) {
		return b.VolumeBinding.PreScore(ctx, state, pod, nodes)
	}
	mean := scores{}
	for _, class := range classes {
		for name, score := range b.space.scores(class, nodes) {
			mean[name] += score
		}
	}
	for name := range mean {
		mean[name] /= int64(len(classes))
	}
	state.Write(scoresKey, mean)
	return nil
}

func (b *binding) Score(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) (int64, *fwk.Status) {
	if written, err := state.Read(scoresKey); err == nil {
		if scores, ok := written.(scores); ok {
			return scores[node.Node().Name], nil
		}
	}
	return b.VolumeBinding.Score(ctx, state, pod, node)
}

// scores rates nodes for a volume of a class, from MinNodeScore for the worst to MaxNodeScore for
// the best.
func (s *space) scores(class *storagev1.StorageClass, nodes []fwk.NodeInfo) scores {
	policy, err := scheduler.ParsePolicy(class.Parameters[names.ParamPlacement])
	if err != nil {
		return nil // Carve creates no volumes of such a class
	}
	values := make([]int64, len(nodes))
	for i, node := range nodes {
		label := node.Node().Labels[names.TopologyNode]
		switch policy {
		case scheduler.LeastFree:
			values[i] = -s.free(label, class.Name)
		case scheduler.FewestVolumes:
			values[i] = -s.volumeCount(label)
		default:
			values[i] = s.free(label, class.Name)
		}
	}
	worst, best := slices.Min(values), slices.Max(values)
	scored := scores{}
	for i, node := range nodes {
		if best > worst {
			scored[node.Node().Name] = int64(float64(fwk.MaxNodeScore) * float64(values[i]-worst) / float64(best-worst)) //nolint:staticcheck // 1.35 has no other name
		}
	}
	return scored
}

func (s *space) free(node, class string) (most int64) {
	for _, capacity := range s.published(node) {
		if capacity.StorageClassName == class {
			most = max(most, total(s.inFlight.left(capacity)))
		}
	}
	return most
}

func (s *space) volumeCount(node string) int64 {
	held, err := s.holders.IndexKeys(holderIndex, node)
	if err != nil {
		return 0
	}
	count := len(held)
	for _, capacity := range s.published(node) {
		count += s.inFlight.count(capacity)
	}
	return int64(count)
}

func (s *space) published(node string) (found []*storagev1.CSIStorageCapacity) {
	listed, err := s.capacities.ByIndex(capacityIndex, node)
	if err != nil {
		return nil
	}
	for _, object := range listed {
		if capacity, ok := object.(*storagev1.CSIStorageCapacity); ok {
			found = append(found, capacity)
		}
	}
	return found
}

func holder(object any) ([]string, error) {
	pv, ok := object.(*v1.PersistentVolume)
	if !ok {
		return nil, fmt.Errorf("a %T is no PersistentVolume", object)
	}
	if node, one := objects.NodeOf(pv); one && objects.IsOurs(pv) {
		return []string{node}, nil
	}
	return nil, nil
}
