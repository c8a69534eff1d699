//go:build apiserver

package kubectl

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/must"
)

const ours = "carve-kubectl"

// The test runs the commands on a real API server as a user with only the rights of
// deploy/kubectl/rbac.yaml, and as one without them.
func TestTheRightsThatAreListedAreEnoughAndNeeded(t *testing.T) {
	config := must.Get(clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG")))(t)
	config.QPS = -1
	admin := must.Get(kubernetes.NewForConfig(config))(t)
	as := func(user string) kubernetes.Interface {
		impersonating := rest.CopyConfig(config)
		impersonating.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:authenticated"}}
		return must.Get(kubernetes.NewForConfig(impersonating))(t)
	}
	populate(t, admin)

	call := func(user string, args ...string) (string, error) {
		p := &plugin{version: "v1", carve: ours, namespace: ours, now: time.Now}
		answer := func(context.Context, string, string, ...string) (string, error) { return "", nil }
		p.connect = func() (kubernetes.Interface, run, error) { return as(user), answer, nil }
		command := p.command()
		var output bytes.Buffer
		command.SetOut(&output)
		command.SetArgs(append(args, "--carve-namespace", ours))
		err := command.ExecuteContext(t.Context())
		return output.String(), err
	}
	for _, command := range [][]string{{"status"}, {"capacity"}, {"volumes"}, {"orphans"}, {"why", "waiting"}} {
		if output, err := call("viewer", command...); err != nil {
			t.Errorf("%q with the rights: %v\n%s", command, err, output)
		}
		if _, err := call("without-rights", command...); !apierrors.IsForbidden(err) {
			t.Errorf("%q without rights: want Forbidden, got %v", command, err)
		}
	}
	// The result of doctor does not matter, only that it may read.
	if output, err := call("viewer", "doctor"); err != nil && !strings.Contains(output, "WRONG") {
		t.Errorf("doctor with the rights: %v\n%s", err, output)
	}
	output, err := call("viewer", "why", "waiting")
	if want := "the largest volume of kubectl-test is 1Gi, data asks for 10Gi"; err != nil || !strings.Contains(output, want) {
		t.Errorf("why: want %q, got %v\n%s", want, err, output)
	}
	for _, test := range []struct {
		user, verb, resource, sub, name string
		allowed                         bool
	}{
		{"viewer", "get", "secrets", "", "", false},
		{"viewer", "list", "configmaps", "", "", false},
		{"viewer", "get", "pods", "log", "", false},
		{"viewer", "create", "pods", "exec", "", false},
		{"viewer", "delete", "persistentvolumes", "", "", false},
		{"supporter", "get", "pods", "log", "", true},
		{"supporter", "create", "pods", "exec", "", false},
		{"keeper", "create", "pods", "exec", "", true},
		{"keeper", "get", "secrets", "", "", false},
	} {
		review, err := admin.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{User: test.user, ResourceAttributes: &authorizationv1.ResourceAttributes{
				Namespace: ours, Verb: test.verb, Resource: test.resource, Subresource: test.sub, Name: test.name}},
		}, metav1.CreateOptions{})
		if err != nil || review.Status.Allowed != test.allowed {
			t.Errorf("%+v: got %+v, %v", test, review, err)
		}
	}
	// No kubelet answers here, but without the right the request fails earlier.
	for user, forbidden := range map[string]bool{"viewer": true, "keeper": false} {
		impersonating := rest.CopyConfig(config)
		impersonating.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:authenticated"}}
		p := &plugin{carve: ours}
		_, err := p.runner(impersonating, as(user))(t.Context(), "agent", "lvmd", "true")
		if err == nil || strings.Contains(err.Error(), "forbidden") != forbidden {
			t.Errorf("%s runs a program in an agent: want forbidden %v, got %v", user, forbidden, err)
		}
	}
	t.Run("adopt", func(t *testing.T) { aClaimStaysBoundOverAnAdoption(t, config, admin) })
}

func markReady(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	agent := must.Get(client.CoreV1().Pods(ours).Get(t.Context(), "agent", metav1.GetOptions{}))(t)
	agent.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	must.Get(client.CoreV1().Pods(ours).UpdateStatus(t.Context(), agent, metav1.UpdateOptions{}))(t)
}

func populate(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	ctx := t.Context()
	made := func(name string, err error, remove func(context.Context, string, metav1.DeleteOptions) error) {
		t.Helper()
		if err != nil {
			t.Fatalf("make %s: %v", name, err)
		}
		t.Cleanup(func() { _ = remove(context.Background(), name, metav1.DeleteOptions{}) })
	}
	text := must.Get(os.ReadFile("../../deploy/kubectl/rbac.yaml"))(t)
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		role := &rbacv1.ClusterRole{}
		if err := yaml.UnmarshalStrict([]byte(document), role); err != nil {
			t.Fatal(err)
		}
		_, err := client.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{})
		made(role.Name, err, client.RbacV1().ClusterRoles().Delete)
	}
	_, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ours}}, metav1.CreateOptions{})
	made(ours, err, client.CoreV1().Namespaces().Delete)
	user := func(name string) []rbacv1.Subject {
		return []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: name}}
	}
	role := func(name string) rbacv1.RoleRef {
		return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name}
	}
	_, err = client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "kubectl-test"}, RoleRef: role("carve-view"), Subjects: user("viewer")}, metav1.CreateOptions{})
	made("kubectl-test", err, client.RbacV1().ClusterRoleBindings().Delete)
	for name, who := range map[string]string{"carve-support": "supporter", "carve-volumes": "keeper"} {
		_, err = client.RbacV1().RoleBindings(ours).Create(ctx, &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: role(name), Subjects: user(who)}, metav1.CreateOptions{})
		made(name, err, client.RbacV1().RoleBindings(ours).Delete)
	}
	const class, node = "kubectl-test", "kubectl-test"
	late := storagev1.VolumeBindingWaitForFirstConsumer
	_, err = client.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: class}, Provisioner: names.Driver, VolumeBindingMode: &late}, metav1.CreateOptions{})
	made(class, err, client.StorageV1().StorageClasses().Delete)
	_, err = client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, Labels: map[string]string{names.TopologyNode: node}},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}, metav1.CreateOptions{})
	made(node, err, client.CoreV1().Nodes().Delete)
	_, err = client.StorageV1().CSINodes().Create(ctx, &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: node},
		Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: names.Driver, NodeID: node, TopologyKeys: []string{names.TopologyNode}}}}}, metav1.CreateOptions{})
	made(node, err, client.StorageV1().CSINodes().Delete)
	little := resource.MustParse("1Gi")
	_, err = client.StorageV1().CSIStorageCapacities(ours).Create(ctx, &storagev1.CSIStorageCapacity{
		ObjectMeta: metav1.ObjectMeta{Name: node}, StorageClassName: class, Capacity: &little,
		NodeTopology: &metav1.LabelSelector{MatchLabels: map[string]string{names.TopologyNode: node}}}, metav1.CreateOptions{})
	made(node, err, client.StorageV1().CSIStorageCapacities(ours).Delete)
	containers := []corev1.Container{{Name: "lvmd", Image: "carve"}}
	account, err := client.CoreV1().ServiceAccounts(ours).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatalf("make an account: %v, %v", account, err)
	}
	_, err = client.CoreV1().Pods(ours).Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "agent", Labels: map[string]string{labelName: nameAgent}},
		Spec: corev1.PodSpec{NodeName: node, Containers: containers}}, metav1.CreateOptions{})
	made("agent", err, client.CoreV1().Pods(ours).Delete)
	markReady(t, client)
	name := class
	_, err = client.CoreV1().PersistentVolumeClaims(ours).Create(ctx, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data"},
		Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &name, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("10Gi")}}}}, metav1.CreateOptions{})
	made("data", err, client.CoreV1().PersistentVolumeClaims(ours).Delete)
	_, err = client.CoreV1().Pods(ours).Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "waiting"}, Spec: corev1.PodSpec{Containers: containers,
		Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}}}, metav1.CreateOptions{})
	made("waiting", err, client.CoreV1().Pods(ours).Delete)
}
