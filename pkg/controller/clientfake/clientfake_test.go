package clientfake

import (
	"context"
	"errors"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/carve-csi/carve/pkg/must"
)

// TestAWatchDeliversCopies changes what a watch delivers of an object that was there before it.
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

// TestReactionsAreAddedWhileTheClientIsUsed wants the race detector.
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
