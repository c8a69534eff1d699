//go:build apiserver

package controller

import (
	"context"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/storage/volume"

	"github.com/carve-csi/carve/pkg/controller/audit"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func scheduledPod(ephemeral bool) (v1.PodSpec, v1.PersistentVolumeClaimSpec) {
	class, atOnce := "scenario", int64(0)
	claim := v1.PersistentVolumeClaimSpec{StorageClassName: &class, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
		Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("100Mi")}}}
	pod := v1.PodSpec{TerminationGracePeriodSeconds: &atOnce, Tolerations: []v1.Toleration{{Operator: v1.TolerationOpExists}},
		Containers: []v1.Container{{Name: "c", Image: "none"}}}
	if ephemeral {
		pod.Volumes = []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{
			VolumeClaimTemplate: &v1.PersistentVolumeClaimTemplate{Spec: claim}}}}}
	}
	return pod, claim
}

// The set is removed when the test ends, so that a failed test does not disturb the next one.
func startSet(t *testing.T, client kubernetes.Interface, ephemeral bool, changes ...func(*v1.PodSpec)) {
	t.Helper()
	pod, claim := scheduledPod(ephemeral)
	for _, change := range changes {
		change(&pod)
	}
	labels := map[string]string{"app": "db"}
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "db"}, Spec: appsv1.StatefulSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod}}}
	if !ephemeral {
		set.Spec.VolumeClaimTemplates = []v1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: claim}}
	}
	must.Get(client.AppsV1().StatefulSets(ours).Create(t.Context(), set, metav1.CreateOptions{}))(t)
	t.Cleanup(func() {
		_ = client.AppsV1().StatefulSets(ours).Delete(context.Background(), "db", metav1.DeleteOptions{})
	})
}

func TestWhatWaitsForLostDisksRunsAgain(t *testing.T) {
	for name, test := range map[string]struct {
		ephemeral bool
		class     func(*storagev1.StorageClass)
		claim     string
	}{
		"a StatefulSet with claims to be made again": {class: recreate, claim: "data-db-0"},
		"generic ephemeral volumes":                  {ephemeral: true, claim: "db-0-data"},
		"movable volumes":                            {ephemeral: true, class: movable, claim: "db-0-data"},
	} {
		t.Run(name, func(t *testing.T) {
			client := connectToAPIServer(t)
			w := newWorld(t, client)
			w.namespace = ours
			install(t, client)
			w.class(t, test.class)
			c, net := actOn(t, w, Options{Client: asController(t), Namespace: ours})
			startSet(t, client, test.ephemeral)
			first, before := w.running(t, test.claim, "")
			node := first.Annotations[volume.AnnSelectedNode]

			net.Detach(node)
			other := lvmdfake.New(node, lvmdfake.Class{Name: "local", Default: true, Bytes: gib})
			net.Attach(other)
			waittest.Until(t, "the node is back with other disks", func() bool {
				view, ok := c.core.Fleet.View(node)
				return ok && view.Connected && view.Epoch == other.Epoch()
			})
			w.nodes[node] = other
			a := newAuditor(c.core, false, audit.DefaultOrphanGrace, func(string) bool { return false })
			a.MissingGrace = 1
			waittest.Until(t, "the Pod that waits is deleted", func() bool {
				a.Pass(t.Context())
				now, err := client.CoreV1().Pods(ours).Get(t.Context(), "db-0", metav1.GetOptions{})
				return apierrors.IsNotFound(err) || err == nil && now.UID != before.UID
			})
			second, after := w.running(t, test.claim, string(first.UID))
			if after.UID == before.UID || second.Spec.VolumeName == first.Spec.VolumeName {
				t.Errorf("Pod %s and volume %s are the old ones", after.UID, second.Spec.VolumeName)
			}
			must.Succeed(t, client.AppsV1().StatefulSets(ours).Delete(t.Context(), "db", metav1.DeleteOptions{}))
			waittest.Until(t, "the Pods are gone", func() bool {
				pods, err := client.CoreV1().Pods(ours).List(t.Context(), metav1.ListOptions{LabelSelector: "app=db"})
				return err == nil && len(pods.Items) == 0
			})
			if !test.ephemeral {
				w.delete(t, second)
			}
			w.waitNothingLeft(t, first)
			w.waitNothingLeft(t, second)
		})
	}
}

func (w *world) running(t *testing.T, claim, not string) (*v1.PersistentVolumeClaim, *v1.Pod) {
	t.Helper()
	var bound *v1.PersistentVolumeClaim
	var pod *v1.Pod
	waittest.Until(t, "the Pod has a node, and its claim a volume", func() bool {
		var err, podErr error
		bound, err = w.client.CoreV1().PersistentVolumeClaims(w.namespace).Get(t.Context(), claim, metav1.GetOptions{})
		pod, podErr = w.client.CoreV1().Pods(w.namespace).Get(t.Context(), "db-0", metav1.GetOptions{})
		return err == nil && podErr == nil && string(bound.UID) != not && bound.DeletionTimestamp == nil && bound.Status.Phase == v1.ClaimBound &&
			pod.Spec.NodeName != "" && pod.DeletionTimestamp == nil
	})
	return bound, pod
}

func TestTheRightToDeletePodsIsNarrow(t *testing.T) {
	client := connectToAPIServer(t)
	install(t, client)
	limited := asController(t).CoreV1().Pods(ours)
	create := func(name string, change func(*v1.Pod)) {
		t.Helper()
		spec, _ := scheduledPod(true)
		yes := true
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "example.com/v1", Kind: "Unknown", Name: "x", UID: "none", Controller: &yes}}}, Spec: spec}
		change(pod)
		waittest.Until(t, "the Pod is taken", func() bool { // once the namespace has its service account
			_, err := client.CoreV1().Pods(ours).Create(t.Context(), pod, metav1.CreateOptions{})
			return err == nil
		})
		t.Cleanup(func() { _ = client.CoreV1().Pods(ours).Delete(context.Background(), name, metav1.DeleteOptions{}) })
	}
	create("allowed", func(*v1.Pod) {})
	for name, change := range map[string]func(*v1.Pod){
		"have a claim":            func(p *v1.Pod) { p.Spec.Volumes = nil },
		"a controller makes":      func(p *v1.Pod) { p.OwnerReferences = nil },
		"not delete Pods that ar": func(*v1.Pod) {},
	} {
		id := strings.ReplaceAll(strings.ToLower(name), " ", "-")
		create(id, change)
		if strings.HasPrefix(name, "not") {
			must.Get(client.CoreV1().Pods(ours).Patch(t.Context(), id, types.StrategicMergePatchType,
				[]byte(`{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`), metav1.PatchOptions{}, "status"))(t)
		}
		waittest.Until(t, "the policy is in force", func() bool {
			err := limited.Delete(t.Context(), id, metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})
			return err != nil && strings.Contains(err.Error(), name)
		})
	}
	if err := limited.Delete(t.Context(), "allowed", metav1.DeleteOptions{}); err != nil {
		t.Errorf("a Pod that waits and is made again: %v", err)
	}
	if _, err := limited.Get(t.Context(), "allowed", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("the account may read a Pod by its name: %v", err)
	}
}
