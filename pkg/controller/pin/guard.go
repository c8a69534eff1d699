package pin

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/controller/objects"
	"github.com/carve-csi/carve/pkg/controller/spec"
	"github.com/carve-csi/carve/pkg/scheduler"
)

const (
	// lasting is longer than nodes take to connect to a new leader: before that, none seems to have
	// free space.
	lasting = 30 * time.Second
	// judgeAgain is the interval of judging marked nodes, because free space changes.
	judgeAgain = 5 * time.Second
)

// isMarked reports whether the Cluster Autoscaler has marked a node for removal. It removes nodes
// that stay marked, by default for ten minutes. Meanwhile it rechecks whether the Pods fit
// elsewhere, but for bound claims it compares nodeAffinity, not free space.
func isMarked(node *v1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t v1.Taint) bool { return t.Key == names.TaintScaleDownCandidate })
}

func (p *Pinner) nodeChanged(node *v1.Node) {
	if isMarked(node) {
		p.guard.Add(struct{}{})
	}
}

// judgeMarked pins the volumes on marked nodes if other nodes have lacked the space for them for
// Options.Lasting.
func (p *Pinner) judgeMarked(ctx context.Context, _ struct{}) (again time.Duration, err error) {
	candidates := p.candidates()
	short, _ := judge(candidates, p.Disks)
	now, since, failed := p.Now(), map[string]time.Time{}, []error(nil)
	for _, c := range candidates {
		again = cmp.Or(again, judgeAgain)
		if len(short[c.Name]) == 0 {
			continue
		}
		since[c.Name] = now
		if before, known := p.short[c.Name]; known {
			since[c.Name] = before
		}
		if left := since[c.Name].Add(p.Lasting).Sub(now); left > 0 {
			again = min(again, left)
			continue
		}
		for _, name := range short[c.Name] {
			if pv, err := p.VolumeLister.Get(name); err == nil {
				failed = append(failed, p.pin(ctx, pv, c.Name, reasonFull))
			}
		}
	}
	p.short = since
	return again, errors.Join(failed...)
}

func (p *Pinner) candidates() (marked []candidate) {
	nodes, index := cluster.List(p.Nodes), map[string]int{}
	slices.SortFunc(nodes, func(a, b *v1.Node) int { return strings.Compare(a.Name, b.Name) })
	for _, node := range nodes {
		if isMarked(node) {
			index[node.Name] = len(marked)
			marked = append(marked, candidate{Node: node, open: openFrom(node, nodes), pods: map[types.UID]*resident{}})
		}
	}
	if marked == nil {
		return nil
	}
	for _, pv := range cluster.List(p.Volumes) {
		node, _ := objects.RecordedNode(pv)
		if i, on := index[node]; on && objects.IsOurs(pv) && pv.Spec.ClaimRef != nil {
			p.addTo(&marked[i], pv)
		}
	}
	return marked
}

// addTo adds a volume that was created without nodeAffinity to its Pod.
func (p *Pinner) addTo(c *candidate, pv *v1.PersistentVolume) {
	claim := p.Claim(string(pv.Spec.ClaimRef.UID))
	if claim == nil || claim.DeletionTimestamp != nil || spec.OwnerPod(claim) == nil {
		return
	}
	if pv.Spec.NodeAffinity != nil {
		c.kept = true
		return
	}
	class, ours := p.OurClass(pv.Spec.StorageClassName)
	if !ours {
		return
	}
	next, err := spec.ParseClaim(claim, class)
	if err != nil {
		return
	}
	pod := c.pods[spec.OwnerPod(claim).UID]
	if pod == nil {
		pod = &resident{elsewhere: c.open}
		c.pods[spec.OwnerPod(claim).UID] = pod
	}
	pod.volumes = append(pod.volumes, pv.Name)
	pod.demands = append(pod.demands, scheduler.Demand{Class: next.DeviceClass, Bytes: next.Footprint()})
	if len(class.AllowedTopologies) > 0 { // clone, because Pods share the list
		pod.elsewhere = slices.DeleteFunc(slices.Clone(pod.elsewhere), func(to *v1.Node) bool { return !spec.AllowedBy(class.AllowedTopologies, to) })
	}
}

func openFrom(node *v1.Node, nodes []*v1.Node) []*v1.Node {
	return slices.DeleteFunc(slices.Clone(nodes), func(to *v1.Node) bool { return !isOpen(node, to) })
}

// isOpen reports whether Pods of a node can be bound to another one. It assumes that they tolerate
// the taints of their own.
func isOpen(from, to *v1.Node) bool {
	return from.Name != to.Name && !to.Spec.Unschedulable && !slices.ContainsFunc(to.Spec.Taints, func(t v1.Taint) bool {
		return t.Key == names.TaintToBeDeleted || t.Effect != v1.TaintEffectPreferNoSchedule && !slices.ContainsFunc(from.Spec.Taints, func(own v1.Taint) bool {
			return own.MatchTaint(&t) && own.Value == t.Value
		})
	})
}
