//go:build apiserver

package controller

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/carve-csi/carve/api/names"
)

const ours = "carve-system"

// apply creates what a manifest holds until the test ends; objects without a
// namespace of their own go into ours.
func apply(t *testing.T, client kubernetes.Interface, path string) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
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

// asController is a client with the rights that the controller's account has.
func asController(t *testing.T) kubernetes.Interface {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + ours + ":carve-controller",
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + ours, "system:authenticated"}}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// install makes our namespace with the rights that are shipped.
func install(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	_, err := client.CoreV1().Namespaces().Create(t.Context(), &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ours}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	apply(t, client, "../../deploy/base/rbac-controller.yaml")
}

func patchNode(client kubernetes.Interface, name, patch string) error {
	_, err := client.CoreV1().Nodes().Patch(context.Background(), name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

func hasTaint(client kubernetes.Interface, name string) bool {
	node, err := client.CoreV1().Nodes().Get(context.Background(), name, metav1.GetOptions{})
	return err == nil && slices.ContainsFunc(node.Spec.Taints, agentNotReady)
}

// TestStartupTaintWithTheRightsThatAreShipped runs the controller with the
// rights of its account and the component's, and proves that they are enough
// for the taint and for nothing else.
func TestStartupTaintWithTheRightsThatAreShipped(t *testing.T) {
	client := connectToAPIServer(t)
	w := newWorld(t, client)
	w.namespace = ours
	install(t, client)
	const others = `{"key":"example.com/other","effect":"NoSchedule"}`
	taints := `{"spec":{"taints":[{"key":"` + names.TaintAgentNotReady + `","effect":"NoSchedule"},` + others + `]}}`
	if err := patchNode(client, "n1", taints); err != nil {
		t.Fatal(err)
	}
	limited := asController(t)
	if err := patchNode(limited, "n1", `{"spec":{"unschedulable":true}}`); !apierrors.IsForbidden(err) {
		t.Errorf("the base lets the controller patch nodes: %v", err)
	}

	apply(t, client, "../../deploy/components/startup-taint/rbac.yaml")
	apply(t, client, "../../deploy/components/startup-taint/policy.yaml")
	eventually(t, "the policy is in force", func() bool {
		return apierrors.IsInvalid(patchNode(limited, "n1", `{"metadata":{"labels":{"probe":"x"}}}`))
	})
	for name, patch := range map[string]string{
		"cordon a node":           `{"spec":{"unschedulable":true}}`,
		"label a node":            `{"metadata":{"labels":{"a":"b"}}}`,
		"annotate a node":         `{"metadata":{"annotations":{"a":"b"}}}`,
		"hold a node back":        `{"metadata":{"finalizers":["example.com/x"]}}`,
		"add a taint":             `{"spec":{"taints":[{"key":"example.com/new","effect":"NoExecute"}]}}`,
		"remove another's taint":  `{"spec":{"taints":[{"key":"` + names.TaintAgentNotReady + `","effect":"NoSchedule"}]}}`,
		"remove every taint":      `{"spec":{"taints":null}}`,
		"change the taint's kind": `{"spec":{"taints":[{"key":"` + names.TaintAgentNotReady + `","effect":"NoExecute"}]}}`,
	} {
		if err := patchNode(limited, "n1", patch); !apierrors.IsInvalid(err) {
			t.Errorf("the controller may %s: %v", name, err)
		}
	}
	if !hasTaint(client, "n1") {
		t.Fatal("the taint is gone before the controller runs")
	}

	w.class(t, nil)
	actWith(t, w, Options{Client: limited, Namespace: ours, CompleteBinding: true, RemoveStartupTaint: true})
	eventually(t, "the taint is gone", func() bool { return !hasTaint(client, "n1") })
	node, err := client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	if err != nil || len(node.Spec.Taints) == 0 || node.Spec.Taints[0].Key != "example.com/other" {
		t.Errorf("another's taint went, too: %+v %v", node.Spec.Taints, err)
	}
	name := capacityKey{node: "n1", class: "story"}.objectName()
	if c, err := client.StorageV1().CSIStorageCapacities(ours).Get(t.Context(), name, metav1.GetOptions{}); err != nil || c.Capacity.Value() != gib {
		t.Errorf("published %+v: %v", c, err)
	}
}

// TestCapacityHealsItselfOnARealServer edits, deletes, replaces and adds
// objects, and expects each to be as it was.
func TestCapacityHealsItselfOnARealServer(t *testing.T) {
	client := connectToAPIServer(t)
	w := newWorld(t, client)
	install(t, client)
	class := w.class(t, nil)
	actWith(t, w, Options{Client: asController(t), Namespace: ours, CompleteBinding: true})
	api := client.StorageV1().CSIStorageCapacities(ours)
	name := capacityKey{node: "n1", class: class}.objectName()
	get := func() *storagev1.CSIStorageCapacity {
		c, err := api.Get(context.Background(), name, metav1.GetOptions{})
		if err != nil {
			return nil
		}
		return c
	}
	right := func() bool {
		c := get()
		return c != nil && c.Capacity.Value() == gib && c.MaximumVolumeSize.Value() == gib && topologyNode(c) == "n1" &&
			c.Labels[names.LabelManagedBy] == names.ManagedBy && c.Labels[labelDriver] == names.Driver
	}
	count := func() int {
		list, err := api.List(context.Background(), metav1.ListOptions{})
		if err != nil {
			return -1
		}
		return len(list.Items)
	}
	eventually(t, "both nodes are published", func() bool { return right() && count() == 2 })
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"a capacity that somebody raised", func() error {
			_, err := api.Patch(t.Context(), name, types.MergePatchType, []byte(`{"capacity":"1Ti","maximumVolumeSize":"1Ti"}`), metav1.PatchOptions{})
			return err
		}},
		{"a capacity that somebody lowered", func() error {
			_, err := api.Patch(t.Context(), name, types.MergePatchType, []byte(`{"capacity":"1","maximumVolumeSize":null}`), metav1.PatchOptions{})
			return err
		}},
		{"the upstream label, removed", func() error {
			_, err := api.Patch(t.Context(), name, types.MergePatchType, []byte(`{"metadata":{"labels":{"`+labelDriver+`":null}}}`), metav1.PatchOptions{})
			return err
		}},
		{"the label by which we know it, removed", func() error {
			_, err := api.Patch(t.Context(), name, types.MergePatchType, []byte(`{"metadata":{"labels":{"`+names.LabelManagedBy+`":null}}}`), metav1.PatchOptions{})
			return err
		}},
		{"an object that is deleted", func() error { return api.Delete(t.Context(), name, metav1.DeleteOptions{}) }},
		{"one under its name for another node", func() error {
			if err := api.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
				return err
			}
			other := describe(capacityKey{node: "n2", class: class}, roomOf(gib))
			other.Name = name
			_, err := api.Create(t.Context(), other, metav1.CreateOptions{})
			if apierrors.IsAlreadyExists(err) {
				return nil // ours was quicker
			}
			return err
		}},
		{"a second object for the node", func() error {
			stray := describe(capacityKey{node: "n1", class: class}, roomOf(5*gib))
			stray.Name = "stray"
			_, err := api.Create(t.Context(), stray, metav1.CreateOptions{})
			return err
		}},
		{"all objects deleted", func() error {
			return api.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{})
		}},
	} {
		t.Run(step.name, func(t *testing.T) {
			if err := step.do(); err != nil {
				t.Fatal(err)
			}
			eventually(t, "all is as it was", func() bool { return right() && count() == 2 })
		})
	}
	if c := get(); c != nil && c.Capacity.Cmp(resource.MustParse("1Gi")) != 0 {
		t.Errorf("published %v", c.Capacity)
	}
}
