//go:build apiserver

package kubectl

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/kubectl/adoption"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// aClaimStaysBoundOverAnAdoption adopts a volume, reverts that, adopts it again and confirms, with
// a real API server and the real PV controller, and with only the rights of
// deploy/kubectl/rbac.yaml.
func aClaimStaysBoundOverAnAdoption(t *testing.T, config *rest.Config, admin kubernetes.Interface) {
	ctx := t.Context()
	_, err := admin.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "kubectl-adopt-test"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "carve-adopt"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "viewer"}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = admin.RbacV1().ClusterRoleBindings().Delete(context.Background(), "kubectl-adopt-test", metav1.DeleteOptions{})
	})
	claim, pv := bindToTopoLVM(t, admin)
	node := &adoptingNode{lv: topolvmLV}
	call := func(user string, args ...string) (string, error) {
		impersonating := rest.CopyConfig(config)
		impersonating.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:authenticated"}}
		p := &plugin{version: "v1", carve: ours, namespace: ours, now: time.Now}
		p.connect = func() (kubernetes.Interface, run, error) {
			client, err := kubernetes.NewForConfig(impersonating)
			return client, node.run, err
		}
		command := p.command()
		var output bytes.Buffer
		command.SetOut(&output)
		command.SetArgs(append([]string{"adopt", "adopted", "--carve-namespace", ours}, args...))
		err := command.ExecuteContext(ctx)
		return output.String(), err
	}
	if _, err := call("without-rights", "--yes"); !apierrors.IsForbidden(err) {
		t.Errorf("without rights: want Forbidden, got %v", err)
	}
	claimNow := func() *corev1.PersistentVolumeClaim {
		t.Helper()
		return must.Get(admin.CoreV1().PersistentVolumeClaims(ours).Get(ctx, claim.Name, metav1.GetOptions{}))(t)
	}
	check := func(driver string, policy corev1.PersistentVolumeReclaimPolicy) {
		t.Helper()
		waittest.Until(t, "the claim and the volume are bound", func() bool {
			c, errClaim := admin.CoreV1().PersistentVolumeClaims(ours).Get(ctx, claim.Name, metav1.GetOptions{})
			v, errVolume := admin.CoreV1().PersistentVolumes().Get(ctx, pv.Name, metav1.GetOptions{})
			return errClaim == nil && errVolume == nil && c.UID == claim.UID && c.Status.Phase == corev1.ClaimBound && v.Status.Phase == corev1.VolumeBound &&
				v.Spec.CSI.Driver == driver && v.Spec.PersistentVolumeReclaimPolicy == policy && v.Spec.ClaimRef.UID == claim.UID
		})
	}
	step := func(want string, args ...string) {
		t.Helper()
		markReady(t, admin) // without a kubelet, Kubernetes considers the node lost after a while
		if output, err := call("viewer", args...); err != nil || !strings.Contains(output, want) {
			t.Fatalf("%q: want %q, got %v\n%s", args, want, err, output)
		}
	}
	step("planned")
	step("adopted", "--yes")
	check(names.Driver, corev1.PersistentVolumeReclaimRetain)
	step("reverted", "--revert")
	check("topolvm.io", corev1.PersistentVolumeReclaimDelete)
	wantProvisioner(t, claimNow(), "topolvm.io")
	step("adopted", "--yes")
	step("confirmed", "--confirm")
	check(names.Driver, corev1.PersistentVolumeReclaimDelete)
	if _, still := claimNow().Annotations[adoption.Annotation]; still {
		t.Error("the claim has the annotation still")
	}
	wantProvisioner(t, claimNow(), names.Driver)
}

func bindToTopoLVM(t *testing.T, admin kubernetes.Interface) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume) {
	t.Helper()
	ctx := t.Context()
	pv, claim := topolvmVolume()
	late := storagev1.VolumeBindingWaitForFirstConsumer
	_, err := admin.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: pv.Spec.StorageClassName}, Provisioner: "topolvm.io", VolumeBindingMode: &late}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	claim.ObjectMeta = metav1.ObjectMeta{Namespace: ours, Name: "adopted", Annotations: claim.Annotations}
	pv.Name = "pvc-adoption-test"
	claim.Spec.VolumeName = pv.Name
	claim = must.Get(admin.CoreV1().PersistentVolumeClaims(ours).Create(ctx, claim, metav1.CreateOptions{}))(t)
	pv.Spec.ClaimRef.Namespace, pv.Spec.ClaimRef.Name, pv.Spec.ClaimRef.UID, pv.Spec.ClaimRef.ResourceVersion = ours, claim.Name, claim.UID, ""
	home(pv)[0].Values[0] = "kubectl-test"
	pv = must.Get(admin.CoreV1().PersistentVolumes().Create(ctx, pv, metav1.CreateOptions{}))(t)
	node := must.Get(admin.CoreV1().Nodes().Get(ctx, "kubectl-test", metav1.GetOptions{}))(t)
	node.Labels["topology.topolvm.io/node"] = node.Name
	must.Get(admin.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{}))(t)
	t.Cleanup(func() {
		ctx := context.Background()
		_ = admin.CoreV1().PersistentVolumeClaims(ours).Delete(ctx, claim.Name, metav1.DeleteOptions{})
		_, _ = admin.CoreV1().PersistentVolumes().Patch(ctx, pv.Name, "application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		_ = admin.CoreV1().PersistentVolumes().Delete(ctx, pv.Name, metav1.DeleteOptions{})
		_ = admin.StorageV1().StorageClasses().Delete(ctx, pv.Spec.StorageClassName, metav1.DeleteOptions{})
	})
	waittest.Until(t, "the claim is bound", func() bool {
		got, err := admin.CoreV1().PersistentVolumeClaims(ours).Get(ctx, claim.Name, metav1.GetOptions{})
		return err == nil && got.Status.Phase == corev1.ClaimBound
	})
	return claim, pv
}
