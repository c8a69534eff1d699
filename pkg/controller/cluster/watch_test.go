package cluster

import (
	"context"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/carve-csi/carve/pkg/controller/clientfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// TestReplacedObjectIsDeleted replaces a claim by one of the same name in a single event, as an informer
// does that relists.
func TestReplacedObjectIsDeleted(t *testing.T) {
	claim := func(uid types.UID) *v1.PersistentVolumeClaim {
		return &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data", UID: uid}}
	}
	client := clientfake.New(claim("1"))
	all := informers.NewSharedInformerFactory(client, 0)
	informer := all.Core().V1().PersistentVolumeClaims().TypedInformer()
	calls := make(chan string, 8)
	stop := must.Get(Watch(OnChange(informer,
		func(now *v1.PersistentVolumeClaim) { calls <- "changed " + string(now.UID) },
		func(last *v1.PersistentVolumeClaim) { calls <- "deleted " + string(last.UID) })))(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer all.Shutdown()
	defer cancel()
	defer stop()
	all.StartWithContext(ctx)
	cache.WaitForCacheSync(t.Context().Done(), informer.HasSynced)
	must.Get(client.CoreV1().PersistentVolumeClaims("default").Update(t.Context(), claim("2"), metav1.UpdateOptions{}))(t)
	var got []string
	want := []string{"changed 1", "deleted 1", "changed 2"}
	waittest.Until(t, "the replacement is seen", func() bool {
		select {
		case call := <-calls:
			got = append(got, call)
		default:
		}
		return slices.Contains(got, "changed 2")
	})
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
