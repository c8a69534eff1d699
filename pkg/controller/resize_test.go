package controller

import (
	"testing"

	"github.com/kubernetes-csi/external-resizer/v2/pkg/util"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func (h *harness) grow(name, size string) { h.t.Helper(); h.growIn("default", name, size) }

func (h *harness) growIn(namespace, name, size string) {
	h.t.Helper()
	claims := h.client.CoreV1().PersistentVolumeClaims(namespace)
	claim := must.Get(claims.Get(h.t.Context(), name, metav1.GetOptions{}))(h.t).DeepCopy()
	claim.Spec.Resources.Requests[v1.ResourceStorage] = resource.MustParse(size)
	must.Get(claims.Update(h.t.Context(), claim, metav1.UpdateOptions{}))(h.t)
}

func expandable(c *storagev1.StorageClass) {
	yes := true
	c.AllowVolumeExpansion = &yes
}

func TestAClaimThatGrowsGrowsItsVolume(t *testing.T) {
	h := newHarness(t)
	node := h.node("n1", gib)
	h.class("carve", expandable)
	h.run()
	h.boundVolume("c", "n1")
	h.grow("c", "200Mi")
	waittest.Until(h.t, "volume and PersistentVolume have grown", func() bool {
		return node.Volumes()["pvc-uid-c"].GetSizeBytes() == 200*mib && h.pv("pvc-uid-c").Spec.Capacity.Storage().Value() == 200*mib
	})
	waittest.Until(h.t, "the node is asked to grow the file system", func() bool {
		return h.getClaim("c").Status.AllocatedResourceStatuses[v1.ResourceStorage] == v1.PersistentVolumeClaimNodeResizePending
	})
	waittest.Until(h.t, "capacity follows", h.capacityIs("n1", gib-200*mib))
}

func TestARawBlockVolumeHasGrownWhenTheNodeHasGrownIt(t *testing.T) {
	h := newHarness(t)
	h.node("n1", gib)
	h.class("carve", expandable)
	h.run()
	block := v1.PersistentVolumeBlock
	h.claim("c", "n1", func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeMode = &block })
	waittest.Until(h.t, "claim is bound", h.bound("c"))
	h.grow("c", "200Mi")
	waittest.Until(h.t, "claim has grown", func() bool { return h.getClaim("c").Status.Capacity.Storage().Value() == 200*mib })
}

func TestGrowthThatAskedForTooMuchCanBeTakenBack(t *testing.T) {
	for name, test := range map[string]struct {
		size   string
		expect []string
		status v1.ClaimResourceStatus
	}{
		"more than the disks of the node could ever hold": {"100Gi", []string{"OutOfRange", "to 100Gi", "has is 1Gi", "lower the request again"},
			v1.PersistentVolumeClaimControllerResizeInfeasible},
		"more than there is space for": {"500Mi", []string{"by 400Mi", "124Mi available", "lower the request again"},
			v1.PersistentVolumeClaimControllerResizeInProgress},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t)
			node := h.node("n1", gib)
			h.class("carve", expandable)
			h.run()
			h.claim("other", "n1", func(c *v1.PersistentVolumeClaim) {
				c.Spec.Resources.Requests[v1.ResourceStorage] = resource.MustParse("800Mi")
			})
			waittest.Until(t, "the other claim is bound", h.bound("other"))
			h.boundVolume("c", "n1")
			h.grow("c", test.size)
			h.resizeEvent("c", test.expect...)
			waittest.Until(t, "the claim says so", func() bool {
				return h.getClaim("c").Status.AllocatedResourceStatuses[v1.ResourceStorage] == test.status
			})
			h.grow("c", "200Mi")
			waittest.Until(t, "the volume has what is asked for now", func() bool { return node.Volumes()["pvc-uid-c"].GetSizeBytes() == 200*mib })
		})
	}
}

func TestAClaimThatCannotGrowKeepsItsVolumeAndTheUserIsNotified(t *testing.T) {
	h := newHarness(t)
	node := h.node("n1", gib)
	h.class("carve", expandable)
	h.run()
	h.boundVolume("c", "n1")
	h.boundVolume("other", "n1")
	h.grow("c", "5Gi")
	h.resizeEvent("c")
	h.grow("other", "200Mi")
	waittest.Until(h.t, "another one has grown", func() bool { return h.pv("pvc-uid-other").Spec.Capacity.Storage().Value() == 200*mib })
	if node.Volumes()["pvc-uid-c"].GetSizeBytes() != 100*mib || h.pv("pvc-uid-c").Spec.Capacity.Storage().Value() != 100*mib {
		t.Error("something grew")
	}
}

func TestANewLeaderEndsWhatAnEarlierOneLeft(t *testing.T) {
	before := newHarness(t)
	node := before.node("n1", gib)
	before.class("carve", expandable)
	before.run()
	before.boundVolume("c", "n1")
	noted := before.boundVolume("noted", "n1").DeepCopy()
	before.stop()
	before.grow("c", "200Mi")
	// The node grew its file system while no replica led.
	noted.Annotations[util.AnnPreResizeCapacity] = "50Mi"
	must.Get(before.client.CoreV1().PersistentVolumes().Update(t.Context(), noted, metav1.UpdateOptions{}))(t)

	h := newHarnessOn(t, before.client)
	h.attach(node, "n1")
	h.run()
	waittest.Until(t, "the volume has grown", func() bool { return node.Volumes()["pvc-uid-c"].GetSizeBytes() == 200*mib })
	waittest.Until(t, "the note of a size before is gone", func() bool {
		return !metav1.HasAnnotation(h.pv(noted.Name).ObjectMeta, util.AnnPreResizeCapacity)
	})
}
