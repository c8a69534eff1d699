package clientfake

import (
	"context"
	"errors"
	"sync"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/carve-csi/carve/pkg/must"
)

// The test changes the delivered object, which existed before the watch.
func TestAWatchDeliversCopies(t *testing.T) {
	client := New()
	nodes := client.CoreV1().Nodes()
	before := must.Get(nodes.List(t.Context(), metav1.ListOptions{}))(t)
	must.Get(nodes.Create(t.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"a": "b"}}}, metav1.CreateOptions{}))(t)
	watch := must.Get(nodes.Watch(t.Context(), metav1.ListOptions{ResourceVersion: before.ResourceVersion}))(t)
	defer watch.Stop()
	delivered, ok := (<-watch.ResultChan()).Object.(*v1.Node)
	if !ok || delivered.Name != "n" {
		t.Fatalf("the watch delivers %v, want node n", delivered)
	}
	delivered.Labels["a"] = "changed"
	if got := must.Get(nodes.Get(t.Context(), "n", metav1.GetOptions{}))(t).Labels["a"]; got != "b" {
		t.Errorf("the stored node has the label %q, want b", got)
	}
}

func TestALeaseThatChangedMeanwhileIsNotUpdated(t *testing.T) {
	leases := New().CoordinationV1().Leases("ns")
	first := must.Get(leases.Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "l"}}, metav1.CreateOptions{}))(t)
	second := must.Get(leases.Update(t.Context(), first.DeepCopy(), metav1.UpdateOptions{}))(t)
	if _, err := leases.Update(t.Context(), first, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("the update of a version that is not the last ends with %v, want a conflict", err)
	}
	must.Get(leases.Update(t.Context(), second, metav1.UpdateOptions{}))(t)
}

// This needs the race detector.
func TestReactionsAreAddedWhileTheClientIsUsed(t *testing.T) {
	client := New()
	ctx, stop := context.WithCancel(t.Context())
	var reader sync.WaitGroup
	defer reader.Wait()
	defer stop()
	reader.Go(func() {
		for ctx.Err() == nil {
			_, _ = client.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{})
		}
	})
	want := errors.New("not now")
	for range 100 {
		React(client, "get", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, want })
	}
	if _, err := client.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{}); !errors.Is(err, want) {
		t.Errorf("the answer is %v, want %v", err, want)
	}
}
