//go:build apiserver

package controller

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/capacity"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// A Pod comes to a node whose sectors are larger than its StorageClass' blocks, while the
// other node is full and then gets space. That counts against the claim alone.
func TestTheSchedulerLeavesANodeWhoseDisksCannotHaveAFileSystem(t *testing.T) {
	leaveForAFileSystem(t, "", func(w *world, o Options, changes ...harnessOption) { actOn(t, w, o, changes...) })
}

func TestCarveSchedulerLeavesANodeWhoseDisksCannotHaveAFileSystem(t *testing.T) {
	leaveForAFileSystem(t, carveScheduler, func(w *world, o Options, changes ...harnessOption) {
		installScheduler(t, w.client)
		actOn(t, w, o, changes...)
		runScheduler(t)
	})
}

func leaveForAFileSystem(t *testing.T, scheduler string, act func(*world, Options, ...harnessOption)) {
	t.Helper()
	client := connectToAPIServer(t)
	w := newWorld(t, client)
	w.namespace = ours
	install(t, client)
	other := w.class(t, nil)
	class := w.class(t, func(c *storagev1.StorageClass) {
		c.Name, c.Parameters = "small-blocks", map[string]string{names.ParamMkfsPrefix + "block-size": "1Ki"}
	})
	w.nodes["n1"].SetHooks(lvmdfake.Hooks{BeforeCreate: func(_ context.Context, r *lvmdv1.CreateVolumeRequest) error {
		if len(r.GetFsSettings()) > 0 {
			return lvmdfake.Error(codes.InvalidArgument, names.ReasonFormatRefused, "disks with sectors of 4096 bytes")
		}
		return nil
	}})
	w.nodes["n2"].Resize("local", 8*mib)
	act(w, Options{Client: asController(t), Namespace: ours}, backoff(time.Hour))
	published := func(node, class string, bytes int64) func() bool {
		name := capacity.Key{Node: node, Class: class}.ObjectName()
		return func() bool {
			object, err := client.StorageV1().CSIStorageCapacities(ours).Get(context.Background(), name, metav1.GetOptions{})
			return err == nil && object.Capacity.Value() == bytes
		}
	}
	waittest.Until(t, "both nodes are published", func() bool { return published("n1", class, gib)() && published("n2", class, 8*mib)() })
	spec, _ := scheduledPod(true)
	spec.SchedulerName = scheduler
	spec.Volumes[0].Ephemeral.VolumeClaimTemplate.Spec.StorageClassName = &class
	w.runPodOf(t, "user", spec)
	waittest.Until(t, "n1 has nothing for the class", published("n1", class, 0))
	claim := must.Get(client.CoreV1().PersistentVolumeClaims(ours).Get(t.Context(), "user-data", metav1.GetOptions{}))(t)
	waittest.Until(t, "the claim's Event says why", func() bool {
		return w.eventOn(t, claim, "ProvisioningFailed", "node n1: disks with sectors of 4096 bytes", "the scheduler is asked for another node") != nil
	})

	waittest.Until(t, "another StorageClass has all of n1", published("n1", other, gib))
	plain := w.claim(t, other, "n1", named("plain", nil))
	w.waitBound(t, plain)
	node := must.Get(client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{}))(t)
	if e := w.eventOn(t, node, "CapacityHeldBack"); e != nil {
		t.Errorf("an Event on the node: %s", e.Message)
	}

	w.nodes["n2"].Resize("local", gib)
	if on := w.isPlaced(t, "user", "user-data"); on != "n2" {
		t.Errorf("the Pod is on %s", on)
	}
	w.delete(t, plain)
	w.waitNothingLeft(t, plain)
	must.Succeed(t, client.CoreV1().Pods(ours).Delete(t.Context(), "user", metav1.DeleteOptions{}))
	waittest.Until(t, "the Pod's claim is gone", func() bool { return w.get(claim) == nil })
	w.waitNothingLeft(t, claim)
}
