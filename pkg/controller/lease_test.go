package controller

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/carve-csi/carve/pkg/controller/clientfake"
	"github.com/carve-csi/carve/pkg/must"
)

// contender makes the lease of a replica of that name.
func contender(client kubernetes.Interface, name string) *lease {
	return newLease(Options{Client: client, Namespace: "carve-system", Identity: name})
}

// holderOf returns which replica holds the lease, "" for none.
func holderOf(t *testing.T, client kubernetes.Interface) string {
	t.Helper()
	l := must.Get(client.CoordinationV1().Leases("carve-system").Get(t.Context(), leaseName, metav1.GetOptions{}))(t)
	return ptr.Deref(l.Spec.HolderIdentity, "")
}

func TestAReplicaThatIsStoppedWhileItTakesTheLeaseDoesNotActLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := clientfake.New()
		ctx, stop := context.WithCancel(t.Context())
		client.PrependReactor("create", "leases", func(k8stesting.Action) (bool, runtime.Object, error) {
			stop()
			synctest.Wait() // until all that ends with ctx has ended: the lease is taken only then
			return false, nil, nil
		})
		var acted atomic.Bool
		must.Succeed(t, contender(client, "me").hold(ctx, func(context.Context) error {
			acted.Store(true)
			return nil
		}))
		synctest.Wait()
		if holder := holderOf(t, client); acted.Load() || holder != "" {
			t.Errorf("the replica has acted: %t, and the lease is held by %q; want neither", acted.Load(), holder)
		}
	})
}

func TestTheLeaseIsReleasedWhenAllThatActedHasStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := clientfake.New()
		ctx, stop := context.WithCancel(t.Context())
		err := contender(client, "me").hold(ctx, func(acting context.Context) error {
			stop()
			<-acting.Done()
			time.Sleep(10 * leaseDuration) // as long as it takes what acted to stop
			if holder := holderOf(t, client); holder != "me" {
				t.Errorf("while it stops, the lease is held by %q", holder)
			}
			return nil
		})
		must.Succeed(t, err)
		if holder := holderOf(t, client); holder != "" {
			t.Errorf("after it stopped, the lease is held by %q", holder)
		}
	})
}
