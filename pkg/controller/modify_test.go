package controller

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func limitedTo(writeBPS string) func(*storagev1.StorageClass) {
	return func(c *storagev1.StorageClass) { c.Parameters = map[string]string{names.ParamIOWriteBPS: writeBPS} }
}

func TestAVolumeHasTheLimitsOfItsStorageClass(t *testing.T) {
	h := newHarness(t)
	node := h.node("n1", gib)
	h.class("carve", limitedTo("1Mi"))
	h.run()
	h.boundVolume("c", "n1")
	if limits := node.Volumes()["pvc-uid-c"].GetIoLimits(); limits.GetWriteBps() != mib {
		t.Errorf("limits %v, want 1 MiB written per second", limits)
	}
}

// The create's answer was lost, and then the class was replaced.
func TestAVolumeThatWasMadeWithOtherLimitsGetsThoseOfTheClass(t *testing.T) {
	h := newHarness(t)
	node := h.node("n1", gib)
	h.class("carve", limitedTo("1Mi"))
	var modified, created atomic.Int32
	node.SetHooks(lvmdfake.Hooks{
		AfterCreate: func(ctx context.Context, _ *lvmdv1.Volume) error {
			if created.Add(1) == 1 {
				class := must.Get(h.client.StorageV1().StorageClasses().Get(ctx, "carve", metav1.GetOptions{}))(t).DeepCopy()
				limitedTo("2Mi")(class)
				_, err := h.client.StorageV1().StorageClasses().Update(ctx, class, metav1.UpdateOptions{})
				return errors.Join(err, errors.New("the answer is lost"))
			}
			return nil
		},
		BeforeModify: func(context.Context, *lvmdv1.ModifyVolumeRequest) error {
			if modified.Add(1) == 1 {
				return errors.New("once it fails")
			}
			return nil
		},
	})
	h.run()
	h.claim("c", "n1", nil)
	waittest.Until(t, "claim is bound", h.bound("c"))
	if limits := node.Volumes()["pvc-uid-c"].GetIoLimits(); limits.GetWriteBps() != 2*mib || modified.Load() != 2 {
		t.Errorf("limits %v, want 2 MiB written per second", limits)
	}
}

func TestVolumeAttributesClassesAreReadFromInformer(t *testing.T) {
	h := newHarness(t)
	node := h.node("n1", gib)
	h.class("carve", nil)
	h.client.Resources = []*metav1.APIResourceList{{GroupVersion: storagev1.SchemeGroupVersion.String(), APIResources: []metav1.APIResource{{Name: cluster.VolumeAttributesClasses}}}}
	var reads atomic.Int32
	h.react("get", cluster.VolumeAttributesClasses, func(clienttesting.Action) (bool, runtime.Object, error) { reads.Add(1); return false, nil, nil })
	h.run()
	classes := h.leader().classes.Storage().V1().VolumeAttributesClasses().Informer()
	waittest.Until(t, "the informer has synced", classes.HasSynced)
	h.claim("c", "n1", func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeAttributesClassName = ptr.To("gold") })
	h.event("Warning ProvisioningFailed", "VolumeAttributesClass gold does not exist")
	gold := &storagev1.VolumeAttributesClass{ObjectMeta: metav1.ObjectMeta{Name: "gold"}, DriverName: names.Driver, Parameters: map[string]string{names.ParamIOWriteBPS: "1Mi"}}
	must.Get(h.client.StorageV1().VolumeAttributesClasses().Create(t.Context(), gold, metav1.CreateOptions{}))(t)
	waittest.Until(t, "claim is bound", h.bound("c"))
	if limits := node.Volumes()["pvc-uid-c"].GetIoLimits(); limits.GetWriteBps() != mib || reads.Load() != 0 {
		t.Errorf("limits %v, want 1 MiB written per second; %d reads of classes, want none", limits, reads.Load())
	}
}
