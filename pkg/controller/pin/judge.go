package pin

import (
	"cmp"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/carve-csi/carve/pkg/scheduler"
)

// Disks says what fits on nodes: a *scheduler.Ledger.
type Disks interface {
	// Fit returns nil where a node can take all of the demands together.
	Fit(node string, demands []scheduler.Demand) error
}

// candidate is a node that an autoscaler means to remove.
type candidate struct {
	*v1.Node
	// kept says that a Pod's volume is pinned there: the autoscaler finds no place for that Pod.
	kept bool
	pods map[types.UID]*resident
}

// resident is a Pod with movable volumes on a candidate.
type resident struct {
	// volumes are their PersistentVolumes, demands what the Pod that is made in its place asks for.
	volumes []string
	demands []scheduler.Demand
	// elsewhere are the nodes that it could be bound to, but for their free space.
	elsewhere []*v1.Node
}

func (r *resident) bytes() (sum int64) {
	for _, d := range r.demands {
		sum += d.Bytes
	}
	return sum
}

// judge places the volumes of candidates on the nodes that will be left. It returns those that found
// no space, by candidate, and what it placed, by node. A candidate that cannot lose all of its volumes
// stays, and can take those of the next ones.
func judge(candidates []candidate, disks Disks) (short map[string][]string, placed map[string][]scheduler.Demand) {
	leaving := map[string]bool{}
	for _, c := range candidates {
		leaving[c.Name] = !c.kept
	}
	short, placed = map[string][]string{}, map[string][]scheduler.Demand{}
	for _, c := range candidates {
		with := maps.Clone(placed)
		largestFirst := func(a, b types.UID) int {
			return cmp.Or(cmp.Compare(c.pods[b].bytes(), c.pods[a].bytes()), cmp.Compare(a, b))
		}
		for _, uid := range slices.SortedFunc(maps.Keys(c.pods), largestFirst) {
			pod := c.pods[uid]
			to := slices.IndexFunc(pod.elsewhere, func(node *v1.Node) bool {
				return !leaving[node.Name] && disks.Fit(node.Name, slices.Concat(with[node.Name], pod.demands)) == nil
			})
			if to < 0 {
				short[c.Name] = append(short[c.Name], pod.volumes...)
				continue
			}
			node := pod.elsewhere[to].Name
			with[node] = slices.Concat(with[node], pod.demands)
		}
		if leaving[c.Name] = !c.kept && short[c.Name] == nil; leaving[c.Name] {
			placed = with
		}
	}
	return short, placed
}
