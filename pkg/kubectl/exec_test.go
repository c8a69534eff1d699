package kubectl

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// The agents of dead-00 to dead-19 never answer; that of n1, which is last in order, answers at
// once. The node dead-19 is not ready.
func TestNodesThatDoNotAnswerTakeNoTimeOfTheOthers(t *testing.T) {
	list := without(func(o runtime.Object) bool { p, ok := o.(*corev1.Pod); return ok && p.Name == "carve-node-n2" })
	for i := range 20 {
		name, status := fmt.Sprintf("dead-%02d", i), corev1.ConditionTrue
		if i == 19 {
			status = corev1.ConditionUnknown
		}
		list = append(list, pod("carve-system", name, nameAgent, name), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name},
			Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}}})
	}
	healthy := scripted(map[string]string{"carve-lvmd volumes --json": held, "carve-lvmd delete cvlost": "",
		"carve-lvmd classes --json": `{"name":"local","type":"linear"}`, "dmsetup targets": "linear v1.4.0\n"})
	agents := func(ctx context.Context, pod, container string, argv ...string) (string, error) {
		if pod == "carve-node-n1" && ctx.Err() == nil {
			return healthy(ctx, pod, container, argv...)
		}
		<-ctx.Done()
		return "", ctx.Err()
	}
	missing := []string{"cvknown", "dead-00 (it did not answer within 10s)", "dead-19 (it was not asked: the node is not ready)"}
	for _, test := range []struct {
		args []string
		err  error
		want []string
	}{
		{[]string{"orphans"}, ErrUnreachable, []string{"cvlost n1 local", "? dead-00 it did not answer within 10s", "? dead-19 it was not asked", "asked: dead-00, dead-01, "}},
		{[]string{"orphans", "remove", "cvlost", "--yes"}, nil, []string{"removed cvlost from n1"}},
		{[]string{"orphans", "remove", "cvknown", "--yes"}, ErrUnreachable, missing},
		{[]string{"orphans", "adopt", "cvknown", "--claim=db"}, ErrUnreachable, missing},
		{[]string{"doctor", "--agents"}, ErrUnhealthy, []string{"ok class local of n1", "WRONG agent of dead-18: it did not answer within 10s",
			"WRONG agent of dead-19: it was not asked: the node is not ready next: kubectl -n carve-system describe pod dead-19"}},
	} {
		t.Run(strings.Join(test.args, " "), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				got, err := call(t, list, agents, test.args...)
				if text := strings.Join(strings.Fields(fmt.Sprint(got, err)), " "); !errors.Is(err, test.err) || !containsAll(text, test.want) || errors.Is(err, ErrNotAnOrphan) {
					t.Errorf("want %v and %q, got %s", test.err, test.want, text)
				}
			})
		})
	}
}

func TestAnAgentIsAskedWhereItsLvmdRuns(t *testing.T) {
	node := &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}
	ready := pod("carve-system", "agent", nameAgent, "n")
	stopped := ready.DeepCopy()
	stopped.Status.Conditions = nil
	running := stopped.DeepCopy()
	running.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "lvmd", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	for _, test := range []struct {
		node  *corev1.Node
		agent *corev1.Pod
		want  string
	}{
		{node, ready, ""}, {node, running, ""}, {node, stopped, "its agent is not ready, and lvmd does not run"},
		{&corev1.Node{}, running, "the node is not ready"}, {nil, ready, "Pod agent is on no node that exists"},
	} {
		err := askable(test.node, test.agent)
		if (err == nil) != (test.want == "") || err != nil && err.Error() != ErrNotAsked.Error()+": "+test.want {
			t.Errorf("want %q, got %v", test.want, err)
		}
	}
}
