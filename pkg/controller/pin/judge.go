package pin

import (
	"cmp"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/carve-csi/carve/pkg/scheduler"
)

// Disks is the part of *scheduler.Ledger that judge needs.
type Disks interface {
	// Fit returns nil if a node can take all demands together.
	Fit(node string, demands []scheduler.Demand) error
}

// candidate is a node that the autoscaler means to remove.
type candidate struct {
	*v1.Node
	// kept means that the node has a pinned volume: the autoscaler finds no other node for its Pod.
	kept bool
	// open holds the nodes that its Pods could be bound to, apart from free space and
	// StorageClasses.
	open []*v1.Node
	pods map[types.UID]*resident
}

// resident is a Pod with movable volumes on a candidate.
type resident struct {
	// volumes are the names of the PersistentVolumes; demands is what a replacement of the Pod
	// would request.
	volumes []string
	demands []scheduler.Demand
	// elsewhere holds the nodes that it could be bound to, apart from free space. Pods share it.
	elsewhere []*v1.Node
}

func (r *resident) isLike(other *resident) bool {
	return other != nil && slices.Equal(r.demands, other.demands) && slices.Equal(r.elsewhere, other.elsewhere)
}

func (r *resident) bytes() (sum int64) {
	for _, d := range r.demands {
		sum += d.Bytes
	}
	return sum
}

// judge places the volumes of candidates on the nodes that will remain. It returns the volumes
// without space by candidate, and the placed ones by node. A candidate that cannot lose all its
// volumes stays, and can take those of later ones.
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
		// full counts the nodes that lacked the space for the previous Pod. They lack it for a like
		// Pod, too.
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
