//go:build apiserver

package controller

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/must"
)

const ours = "carve-system"

// apply creates a manifest's objects until the test ends.
func apply(t *testing.T, client kubernetes.Interface, path string) {
	t.Helper()
	content := must.Get(os.ReadFile(path))(t)
	reader := yaml.NewDocumentDecoder(io.NopCloser(bytes.NewReader(content)))
	defer reader.Close()
	buffer := make([]byte, len(content))
	for {
		n, err := reader.Read(buffer)
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		object, _, err := scheme.Codecs.UniversalDeserializer().Decode(buffer[:n], nil, nil)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		var remove func(context.Context, string, metav1.DeleteOptions) error
		switch o := object.(type) {
		case *storagev1.CSIDriver:
			_, err = client.StorageV1().CSIDrivers().Create(t.Context(), o, metav1.CreateOptions{})
			remove = client.StorageV1().CSIDrivers().Delete
		case *v1.ServiceAccount:
			_, err = client.CoreV1().ServiceAccounts(ours).Create(t.Context(), o, metav1.CreateOptions{})
			remove = client.CoreV1().ServiceAccounts(ours).Delete
		case *coordinationv1.Lease:
			_, err = client.CoordinationV1().Leases(ours).Create(t.Context(), o, metav1.CreateOptions{})
			remove = client.CoordinationV1().Leases(ours).Delete
		case *rbacv1.ClusterRole:
			_, err = client.RbacV1().ClusterRoles().Create(t.Context(), o, metav1.CreateOptions{})
			remove = client.RbacV1().ClusterRoles().Delete
		case *rbacv1.ClusterRoleBinding:
			_, err = client.RbacV1().ClusterRoleBindings().Create(t.Context(), o, metav1.CreateOptions{})
			remove = client.RbacV1().ClusterRoleBindings().Delete
		case *rbacv1.Role:
			_, err = client.RbacV1().Roles(ours).Create(t.Context(), o, metav1.CreateOptions{})
			remove = client.RbacV1().Roles(ours).Delete
		case *rbacv1.RoleBinding:
			_, err = client.RbacV1().RoleBindings(ours).Create(t.Context(), o, metav1.CreateOptions{})
			remove = client.RbacV1().RoleBindings(ours).Delete
		case *admissionv1.ValidatingAdmissionPolicy:
			_, err = client.AdmissionregistrationV1().ValidatingAdmissionPolicies().Create(t.Context(), o, metav1.CreateOptions{})
			remove = client.AdmissionregistrationV1().ValidatingAdmissionPolicies().Delete
		case *admissionv1.ValidatingAdmissionPolicyBinding:
			_, err = client.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Create(t.Context(), o, metav1.CreateOptions{})
			remove = client.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Delete
		case *admissionv1.MutatingAdmissionPolicy:
			_, err = client.AdmissionregistrationV1().MutatingAdmissionPolicies().Create(t.Context(), o, metav1.CreateOptions{})
			remove = client.AdmissionregistrationV1().MutatingAdmissionPolicies().Delete
		case *admissionv1.MutatingAdmissionPolicyBinding:
			_, err = client.AdmissionregistrationV1().MutatingAdmissionPolicyBindings().Create(t.Context(), o, metav1.CreateOptions{})
			remove = client.AdmissionregistrationV1().MutatingAdmissionPolicyBindings().Delete
		default:
			t.Fatalf("%s: unexpected %T", path, object)
		}
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		name := object.(metav1.Object).GetName()
		t.Cleanup(func() { _ = remove(context.Background(), name, metav1.DeleteOptions{}) })
	}
}

// servesSince also checks the minor version of Kubernetes that introduced the resource.
func servesSince(t *testing.T, client kubernetes.Interface, minor uint, group schema.GroupVersion, resource string) bool {
	t.Helper()
	is := must.Get(version.ParseGeneric(must.Get(client.Discovery().ServerVersion())(t).GitVersion))(t)
	has := must.Get(cluster.Serves(t.Context(), client.Discovery(), group, resource))(t)
	if want := is.AtLeast(version.MajorMinor(1, minor)); has != want {
		t.Fatalf("Kubernetes %s serves %s: %t, want %t", is, resource, has, want)
	}
	return has
}

func asController(t *testing.T) kubernetes.Interface {
	t.Helper()
	return asAccount(t, "carve-controller")
}

func asAccount(t *testing.T, name string, groups ...string) kubernetes.Interface {
	t.Helper()
	return must.Get(kubernetes.NewForConfig(apiServerAs(t, name, groups...)))(t)
}

func install(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	_, err := client.CoreV1().Namespaces().Create(t.Context(), &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ours}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	// Without it the scheduler ignores capacities.
	apply(t, client, "../../deploy/base/csidriver.yaml")
	apply(t, client, "../../deploy/base/rbac-controller.yaml")
	apply(t, client, "../../deploy/base/policy-controller.yaml")
	apply(t, client, "../../deploy/base/policy-nodes.yaml")
}
