//go:build apiserver

package controller

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/controller/spec"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func attributes(t *testing.T, client kubernetes.Interface, name, writeBPS string) {
	t.Helper()
	class := &storagev1.VolumeAttributesClass{ObjectMeta: metav1.ObjectMeta{Name: name}, DriverName: names.Driver,
		Parameters: map[string]string{names.ParamIOWriteBPS: writeBPS}}
	must.Get(client.StorageV1().VolumeAttributesClasses().Create(t.Context(), class, metav1.CreateOptions{}))(t)
	t.Cleanup(func() {
		_ = client.StorageV1().VolumeAttributesClasses().Delete(context.Background(), name, metav1.DeleteOptions{})
	})
}

func (w *world) asks(t *testing.T, claim *v1.PersistentVolumeClaim, class string) error {
	t.Helper()
	for {
		now := w.get(claim)
		now.Spec.VolumeAttributesClassName = &class
		_, err := w.client.CoreV1().PersistentVolumeClaims(now.Namespace).Update(t.Context(), now, metav1.UpdateOptions{})
		if !apierrors.IsConflict(err) {
			return err
		}
	}
}

func (w *world) waitModified(t *testing.T, claim *v1.PersistentVolumeClaim, class string, writeBPS uint64) {
	t.Helper()
	waittest.Succeeds(t, "the claim has class "+class, func() error {
		now, pv := w.get(claim), w.pv(claim)
		var got uint64
		for _, node := range w.nodes {
			if v := node.Volumes()[spec.VolumeName(claim)]; v != nil {
				got = v.GetIoLimits().GetWriteBps()
			}
		}
		if got != writeBPS || ptr.Deref(now.Status.CurrentVolumeAttributesClassName, "") != class || now.Status.ModifyVolumeStatus != nil ||
			ptr.Deref(pv.Spec.VolumeAttributesClassName, "") != class {
			return fmt.Errorf("limit %d, status %+v, volume's class %q", got, now.Status, ptr.Deref(pv.Spec.VolumeAttributesClassName, ""))
		}
		return nil
	})
}

func (w *world) waitRefused(t *testing.T, claim *v1.PersistentVolumeClaim, class string, as v1.PersistentVolumeClaimModifyVolumeStatus) {
	t.Helper()
	waittest.Succeeds(t, "the change fails", func() error {
		status := w.get(claim).Status
		failed := slices.ContainsFunc(status.Conditions, func(c v1.PersistentVolumeClaimCondition) bool {
			return c.Type == v1.PersistentVolumeClaimVolumeModifyVolumeError && c.Status == v1.ConditionTrue && c.Message != ""
		})
		if s := status.ModifyVolumeStatus; !failed || s == nil || s.Status != as || s.TargetVolumeAttributesClassName != class {
			return fmt.Errorf("status %+v", status)
		}
		return nil
	})
}

func TestVolumesFollowTheirVolumeAttributesClassWithTheRightsThatAreShipped(t *testing.T) {
	client := connectToAPIServer(t)
	if !servesSince(t, client, 34, storagev1.SchemeGroupVersion, cluster.VolumeAttributesClasses) {
		doesWithoutAttributesClasses(t, client)
		return
	}
	w := newWorld(t, client)
	w.namespace = ours
	install(t, client)
	storage := w.class(t, func(c *storagev1.StorageClass) { c.Parameters = map[string]string{names.ParamIOReadIOPS: "500"} })
	attributes(t, client, "slow", "1Mi")
	attributes(t, client, "fast", "100Mi")
	attributes(t, client, "mistaken", "12")
	actOn(t, w, Options{Client: asController(t), Namespace: ours})
	with := func(class string) func(*v1.PersistentVolumeClaim) {
		return func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeAttributesClassName = &class }
	}

	t.Log("a class that comes later than its claim")
	waiting := w.claim(t, storage, "n2", named("waiting", with("late")))
	waittest.Until(t, "the claim's user learns of it", func() bool {
		events := must.Get(client.CoreV1().Events(ours).List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + waiting.Name}))(t)
		return slices.ContainsFunc(events.Items, func(e v1.Event) bool {
			return e.Message == "spec.volumeAttributesClassName: VolumeAttributesClass late does not exist; waiting for it"
		})
	})
	attributes(t, client, "late", "max")
	w.waitBound(t, waiting)
	w.waitModified(t, waiting, "late", 0)

	t.Log("a claim begins with a class, in place of the limits of its StorageClass")
	claim := w.claim(t, storage, "n1", named("data", with("slow")))
	w.waitBound(t, claim)
	w.waitModified(t, claim, "slow", mib)
	if limits := w.nodes["n1"].Volumes()[spec.VolumeName(claim)].GetIoLimits(); limits.GetReadIops() != 0 {
		t.Errorf("the limits are %v, want those of the VolumeAttributesClass alone", limits)
	}

	t.Log("it changes")
	must.Succeed(t, w.asks(t, claim, "fast"))
	w.waitModified(t, claim, "fast", 100*mib)

	t.Log("to a class with a mistake, and back")
	must.Succeed(t, w.asks(t, claim, "mistaken"))
	w.waitRefused(t, claim, "mistaken", v1.PersistentVolumeClaimModifyVolumeInfeasible)
	must.Succeed(t, w.asks(t, claim, "fast"))
	w.waitModified(t, claim, "fast", 100*mib)

	t.Log("to a class that the node cannot give it, and back")
	w.nodes["n1"].SetHooks(lvmdfake.Hooks{BeforeModify: func(_ context.Context, r *lvmdv1.ModifyVolumeRequest) error {
		if r.GetIoLimits().GetWriteBps() == mib {
			return lvmdfake.Error(codes.Internal, names.ReasonCommandFailed, "lvchange failed")
		}
		return nil
	}})
	must.Succeed(t, w.asks(t, claim, "slow"))
	w.waitRefused(t, claim, "slow", v1.PersistentVolumeClaimModifyVolumeInProgress)
	must.Succeed(t, w.asks(t, claim, "fast"))
	w.waitModified(t, claim, "fast", 100*mib)

	t.Log("to a class that does not exist yet")
	must.Succeed(t, w.asks(t, claim, "later"))
	waittest.Until(t, "the change is pending", func() bool {
		s := w.get(claim).Status.ModifyVolumeStatus
		return s != nil && s.Status == v1.PersistentVolumeClaimModifyVolumePending
	})
	attributes(t, client, "later", "50Mi")
	w.waitModified(t, claim, "later", 50*mib)
	must.Succeed(t, w.asks(t, claim, "fast"))
	w.waitModified(t, claim, "fast", 100*mib)

	t.Log("a quota bounds how many claims have a class")
	quota := &v1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "fast", Namespace: ours}, Spec: v1.ResourceQuotaSpec{
		Hard: v1.ResourceList{v1.ResourcePersistentVolumeClaims: resource.MustParse("1")},
		ScopeSelector: &v1.ScopeSelector{MatchExpressions: []v1.ScopedResourceSelectorRequirement{{
			ScopeName: v1.ResourceQuotaScopeVolumeAttributesClass, Operator: v1.ScopeSelectorOpIn, Values: []string{"fast"}}}},
	}}
	must.Get(client.CoreV1().ResourceQuotas(ours).Create(t.Context(), quota, metav1.CreateOptions{}))(t)
	t.Cleanup(func() {
		_ = client.CoreV1().ResourceQuotas(ours).Delete(context.Background(), "fast", metav1.DeleteOptions{})
	})
	waittest.Until(t, "the quota counts the claim", func() bool {
		used := must.Get(client.CoreV1().ResourceQuotas(ours).Get(t.Context(), "fast", metav1.GetOptions{}))(t).Status.Used[v1.ResourcePersistentVolumeClaims]
		return used.Value() == 1
	})
	if err := w.asks(t, waiting, "fast"); !apierrors.IsForbidden(err) {
		t.Errorf("a second claim asks for the class: error %v, want that the quota forbids it", err)
	}
	must.Succeed(t, w.asks(t, waiting, "mistaken")) // without a quota
}

// Before Kubernetes 1.34 the API server drops the name: the limits of the StorageClass apply.
func doesWithoutAttributesClasses(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	w := newWorld(t, client)
	w.namespace = ours
	install(t, client)
	storage := w.class(t, func(c *storagev1.StorageClass) { c.Parameters = map[string]string{names.ParamIOReadIOPS: "500"} })
	actOn(t, w, Options{Client: asController(t), Namespace: ours})
	claim := w.claim(t, storage, "n1", named("data", func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeAttributesClassName = ptr.To("slow") }))
	w.waitBound(t, claim)
	if limits := w.nodes["n1"].Volumes()[spec.VolumeName(claim)].GetIoLimits(); limits.GetReadIops() != 500 || limits.GetWriteBps() != 0 {
		t.Errorf("the limits are %v, want those of the StorageClass", limits)
	}
	if name := w.get(claim).Spec.VolumeAttributesClassName; name != nil {
		t.Errorf("the API server has kept the claim's class %s", *name)
	}
	// With the beta enabled it keeps the name, and answers this.
	if _, err := client.StorageV1().VolumeAttributesClasses().Get(t.Context(), "slow", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("asked for a class, the API server answers %v", err)
	}
}
