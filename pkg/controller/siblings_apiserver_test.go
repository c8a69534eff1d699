//go:build apiserver

package controller

import (
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/carve-csi/carve/pkg/fleet/fakelvmd"
)

// TestAPodWhoseClaimsDoNotFitTogetherComesToAnotherNode has the real scheduler
// judge two claims one by one, without the extender.
func TestAPodWhoseClaimsDoNotFitTogetherComesToAnotherNode(t *testing.T) {
	t.Run("claims that come with the Pod", func(t *testing.T) { testClaimsThatDoNotFitTogether(t, "pair", true) })
	t.Run("claims that somebody made", func(t *testing.T) { testClaimsThatDoNotFitTogether(t, "twins", false) })
}

func testClaimsThatDoNotFitTogether(t *testing.T, name string, ephemeral bool) {
	client := connectToAPIServer(t)
	w := newWorld(t, client)
	w.namespace = ours
	install(t, client)
	w.nodes["n2"] = fakelvmd.New("n2", fakelvmd.Class{Name: "local", Default: true, Bytes: 2 * gib})
	cordon := func(yes string) {
		t.Helper()
		_, err := client.CoreV1().Nodes().Patch(t.Context(), "n2", types.MergePatchType, []byte(`{"spec":{"unschedulable":`+yes+`}}`), metav1.PatchOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	cordon("true")
	w.class(t, nil)
	actOn(t, w, Options{Client: asController(t), Namespace: ours, CompleteBinding: true})

	spec, claim := scheduledPod(ephemeral)
	spec.Tolerations = []v1.Toleration{{Key: v1.TaintNodeNotReady, Operator: v1.TolerationOpExists}, {Key: v1.TaintNodeUnreachable, Operator: v1.TolerationOpExists}}
	claim.Resources.Requests[v1.ResourceStorage] = resource.MustParse("600Mi")
	spec.Volumes = nil
	for _, volume := range []string{"data", "more"} {
		source := v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{VolumeClaimTemplate: &v1.PersistentVolumeClaimTemplate{Spec: claim}}}
		if !ephemeral {
			made := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name + "-" + volume}, Spec: claim}
			if _, err := client.CoreV1().PersistentVolumeClaims(ours).Create(t.Context(), made, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			source = v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: made.Name}}
		}
		spec.Volumes = append(spec.Volumes, v1.Volume{Name: volume, VolumeSource: source})
	}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
	eventually(t, "the Pod is taken", func() bool { // once the namespace has its service account
		_, err := client.CoreV1().Pods(ours).Create(t.Context(), pod, metav1.CreateOptions{})
		return err == nil
	})
	eventually(t, "its claims are handed back, which is told", func() bool {
		events, err := client.CoreV1().Events(ours).List(t.Context(), metav1.ListOptions{FieldSelector: "reason=" + reasonFailed})
		return err == nil && slices.ContainsFunc(events.Items, func(e v1.Event) bool {
			return strings.HasPrefix(e.InvolvedObject.Name, name+"-") && strings.Contains(e.Message, "together")
		})
	})
	cordon("false")
	eventually(t, "the Pod comes to the node that has room", func() bool {
		now, err := client.CoreV1().Pods(ours).Get(t.Context(), name, metav1.GetOptions{})
		return err == nil && now.Spec.NodeName == "n2"
	})
	if n := w.nodes["n1"].Creates(); n != 0 {
		t.Errorf("%d volumes were made on the node where not both fit", n)
	}
	if n := len(w.nodes["n2"].Volumes()); n != 2 {
		t.Errorf("%d volumes on the node with room", n)
	}
	if err := client.CoreV1().Pods(ours).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if !ephemeral {
		for _, volume := range []string{"data", "more"} {
			if err := client.CoreV1().PersistentVolumeClaims(ours).Delete(t.Context(), name+"-"+volume, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	eventually(t, "the volumes go with their claims", func() bool { return len(w.nodes["n2"].Volumes()) == 0 })
}
