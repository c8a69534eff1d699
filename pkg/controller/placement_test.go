package controller

import (
	"fmt"
	"maps"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/component-helpers/storage/volume"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/objects"
	"github.com/carve-csi/carve/pkg/waittest"
)

// asked acts as the PV controller does to request a volume from us.
func asked(c *v1.PersistentVolumeClaim) { c.Annotations[volume.AnnStorageProvisioner] = names.Driver }

func TestImmediateBindingPrefersTheNodeWithMostFreeSpaceThatTheClassAllows(t *testing.T) {
	h := newHarness(t)
	h.node("n1", 2*gib)
	h.node("n2", 3*gib)
	h.node("n3", 9*gib)
	h.class("carve", func(c *storagev1.StorageClass) {
		immediate(c)
		c.AllowedTopologies = []v1.TopologySelectorTerm{{MatchLabelExpressions: []v1.TopologySelectorLabelRequirement{
			{Key: "zone", Values: []string{"z-n1", "z-n2"}}}}}
	})
	h.run()
	h.claim("c", "", asked)
	waittest.Until(h.t, "claim is bound", h.bound("c"))
	if got, _ := objects.NodeOf(h.pv("pvc-uid-c")); got != "n2" {
		t.Errorf("placed on %q, want n2", got)
	}
	h.claim("unasked", "", nil)
	h.claim("big", "", func(c *v1.PersistentVolumeClaim) {
		asked(c)
		c.Spec.Resources.Requests[v1.ResourceStorage] = resource.MustParse("5Gi")
	})
	h.event("Warning ProvisioningFailed", "no connected node", "5Gi")
	if h.volumes() != 1 {
		t.Errorf("%d volumes, want 1", h.volumes())
	}
}

func placedBy(policy string) func(*storagev1.StorageClass) {
	return func(c *storagev1.StorageClass) {
		immediate(c)
		if policy != "" {
			c.Parameters = map[string]string{names.ParamPlacement: policy}
		}
	}
}

func TestImmediateBindingFollowsThePlacementOfTheClass(t *testing.T) {
	for policy, want := range map[string]string{"": "large", "most-free": "large", "least-free": "small", "fewest-volumes": "empty"} {
		t.Run(fmt.Sprintf("%q", policy), func(t *testing.T) {
			t.Parallel()
			h := newHarness(t)
			h.node("tiny", 64*mib) // too small for all claims here
			h.node("small", 300*mib)
			h.node("large", 2*gib)
			h.node("empty", gib)
			h.class("carve", placedBy(policy))
			h.class("late", nil)
			late := "late"
			h.run()
			for _, node := range []string{"small", "large"} {
				name := "on-" + node
				h.claim(name, node, func(c *v1.PersistentVolumeClaim) { c.Spec.StorageClassName = &late })
				waittest.Until(h.t, "a volume is on "+node, h.bound(name))
			}
			h.claim("c", "", asked)
			waittest.Until(h.t, "claim is bound", h.bound("c"))
			if got, _ := objects.NodeOf(h.pv("pvc-uid-c")); got != want {
				t.Errorf("placed on %q, want %q", got, want)
			}
		})
	}
}

func TestABurstOfImmediateClaimsIsSpreadAsThePlacementSays(t *testing.T) {
	const count = 30
	for policy, want := range map[string]map[string]int{
		"fewest-volumes": {"n1": 10, "n2": 10, "n3": 10},
		"most-free":      {"n1": 10, "n2": 10, "n3": 10},
		"least-free":     {"n1": 20, "n2": 10},
	} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t)
			for _, node := range []string{"n1", "n2", "n3"} {
				h.node(node, 20*100*mib)
			}
			h.class("carve", placedBy(policy))
			h.run()
			for i := range count {
				h.claim(fmt.Sprint("c", i), "", asked)
			}
			got := map[string]int{}
			for i := range count {
				waittest.Until(h.t, "claim is bound", h.bound(fmt.Sprint("c", i)))
				node, _ := objects.NodeOf(h.pv(fmt.Sprint("pvc-uid-c", i)))
				got[node]++
			}
			if !maps.Equal(got, want) {
				t.Errorf("spread %v, want %v", got, want)
			}
		})
	}
}

func onlyOn(node string) func(*storagev1.StorageClass) {
	return func(c *storagev1.StorageClass) {
		c.AllowedTopologies = []v1.TopologySelectorTerm{{MatchLabelExpressions: []v1.TopologySelectorLabelRequirement{
			{Key: names.TopologyNode, Values: []string{node}}}}}
	}
}

func TestAClaimOnASelectedNodeThatTheClassDoesNotAllowIsRescheduled(t *testing.T) {
	h := newHarness(t)
	n1 := h.node("n1", gib)
	h.node("n2", gib)
	h.class("carve", onlyOn("n2"))
	h.run()
	h.claim("c", "n1", nil)
	h.event("Warning ProvisioningFailed", "annotations[volume.kubernetes.io/selected-node]: node n1 is not allowed", "StorageClass carve", "allowedTopologies")
	waittest.Until(h.t, "selected node is removed", func() bool { return h.getClaim("c").Annotations[volume.AnnSelectedNode] == "" })
	h.selectNode("c", "n2")
	waittest.Until(h.t, "claim is bound", h.bound("c"))
	if got, _ := objects.NodeOf(h.pv("pvc-uid-c")); got != "n2" || n1.Creates() != 0 {
		t.Errorf("the volume is on %q, want n2; %d were made on n1", got, n1.Creates())
	}
}
