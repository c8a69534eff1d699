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
	// open are the nodes that its Pods could be bound to, but for their free space and their classes.
	open []*v1.Node
	pods map[types.UID]*resident
}

// resident is a Pod with movable volumes on a candidate.
type resident struct {
	// volumes are their PersistentVolumes, demands what the Pod that is made in its place asks for.
	volumes []string
	demands []scheduler.Demand
	// elsewhere are the nodes that it could be bound to, but for their free space. Pods share them.
	elsewhere []*v1.Node
}

// isLike reports whether another Pod asks for the same of the same nodes.
func (r *resident) isLike(other *resident) bool {
	return other != nil && slices.Equal(r.demands, other.demands) && slices.Equal(r.elsewhere, other.elsewhere)
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
		// full is how many nodes lacked the space for the Pod before: they lack it for one like that, too.
		var before *resident
		full := 0
		for _, uid := range slices.SortedFunc(maps.Keys(c.pods), largestFirst) {
			pod := c.pods[uid]
			if !pod.isLike(before) {
				before, full = pod, 0
			}
			fits := slices.IndexFunc(pod.elsewhere[full:], func(node *v1.Node) bool {
				return !leaving[node.Name] && disks.Fit(node.Name, slices.Concat(with[node.Name], pod.demands)) == nil
			})
			if fits < 0 {
				full = len(pod.elsewhere)
				short[c.Name] = append(short[c.Name], pod.volumes...)
				continue
			}
			full += fits
			node := pod.elsewhere[full].Name
			with[node] = slices.Concat(with[node], pod.demands)
		}
		if leaving[c.Name] = !c.kept && short[c.Name] == nil; leaving[c.Name] {
			placed = with
		}
	}
	return short, placed
}
