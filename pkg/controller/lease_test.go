package controller

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/carve-csi/carve/pkg/controller/clientfake"
	"github.com/carve-csi/carve/pkg/must"
)

func contender(client kubernetes.Interface, name string) *lease {
	return newLease(Options{Client: client, Namespace: "carve-system", Identity: name})
}

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
			synctest.Wait() // the lease is free only after all that ends with ctx has ended
			return false, nil, nil
		})
		var acted atomic.Bool
		must.Succeed(t, contender(client, "me").holdOnce(ctx, func(context.Context, bool) error {
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
		err := contender(client, "me").hold(ctx, func(acting context.Context, _ bool) error {
			stop()
			<-acting.Done()
			time.Sleep(10 * leaseDuration) // act takes this long to stop
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

// client-go's elector would release a lease that it cannot renew while act still runs.
func TestALeaseThatCannotBeRenewedIsNotReleasedWhileItsHolderActs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := clientfake.New()
		var cut atomic.Bool
		client.PrependReactor("update", "leases", func(a k8stesting.Action) (bool, runtime.Object, error) {
			l, ok := a.(k8stesting.UpdateAction).GetObject().(*coordinationv1.Lease)
			return cut.Load() && ok && ptr.Deref(l.Spec.HolderIdentity, "") != "", nil, errors.New("no answer")
		})
		ctx, stop := context.WithCancel(t.Context())
		must.Succeed(t, contender(client, "me").hold(ctx, func(acting context.Context, _ bool) error {
			cut.Store(true)
			<-acting.Done()
			synctest.Wait()
			if holder := holderOf(t, client); holder != "me" {
				t.Errorf("while it stops, the lease is held by %q", holder)
			}
			stop()
			return nil
		}))
	})
}

func TestLeaderThatHangsIsUnhealthy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := clientfake.New()
		var cut atomic.Bool
		client.PrependReactor("update", "leases", func(k8stesting.Action) (bool, runtime.Object, error) {
			return cut.Load(), nil, errors.New("no answer")
		})
		ctx, stop := context.WithCancel(t.Context())
		l := contender(client, "me")
		must.Succeed(t, l.hold(ctx, func(acting context.Context, _ bool) error {
			time.Sleep(2 * maxOverdue)
			if err := l.healthy(); err != nil {
				t.Errorf("it holds the lease: %v", err)
			}
			cut.Store(true)
			<-acting.Done()
			time.Sleep(maxOverdue / 2)
			if err := l.healthy(); err != nil {
				t.Errorf("it lost the lease %v ago: %v", maxOverdue/2, err)
			}
			time.Sleep(maxOverdue)
			if l.healthy() == nil {
				t.Errorf("it lost the lease %v ago, and is healthy", 3*maxOverdue/2)
			}
			stop()
			return nil
		}))
		if err := l.healthy(); err != nil {
			t.Errorf("it has stopped: %v", err)
		}
	})
}

func TestTheLeaseOfAnotherReplicaIsNotReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := clientfake.New()
		ctx, stop := context.WithCancel(t.Context())
		must.Succeed(t, contender(client, "me").hold(ctx, func(context.Context, bool) error {
			synctest.Wait() // until the renewal: the elector retries every retryPeriod
			l := must.Get(client.CoordinationV1().Leases("carve-system").Get(t.Context(), leaseName, metav1.GetOptions{}))(t)
			l.Spec = leaseOf("another", 4).Spec
			must.Get(client.CoordinationV1().Leases("carve-system").Update(t.Context(), l, metav1.UpdateOptions{}))(t)
			stop()
			return nil
		}))
		if holder := holderOf(t, client); holder != "another" {
			t.Errorf("the lease is held by %q, want the one that took it over", holder)
		}
	})
}

func TestAReplicaKnowsWhetherTheLeaseWasReleased(t *testing.T) {
	for holder, want := range map[string]bool{"": true, "another": false, "me": false} {
		t.Run("held by "+holder, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancel(t.Context())
				must.Succeed(t, contender(clientfake.New(leaseOf(holder, 4)), "me").hold(ctx, func(_ context.Context, released bool) error {
					if released != want {
						t.Errorf("it was released: %t", released)
					}
					stop()
					return nil
				}))
			})
		})
	}
}

// holds contends until the test ends or stop is called.
func (l *lease) holds(t *testing.T) (acts *atomic.Bool, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	acts = &atomic.Bool{}
	done := make(chan error, 1)
	go func() {
		done <- l.hold(ctx, func(acting context.Context, _ bool) error {
			acts.Store(true)
			defer acts.Store(false)
			<-acting.Done()
			return nil
		})
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		must.Succeed(t, <-done)
	})
	t.Cleanup(stop)
	return acts, stop
}

func TestALeaseThatIsReleasedIsTakenAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := clientfake.New()
		slow := func(name string) *lease {
			l := contender(client, name)
			l.duration, l.deadline, l.retry = 3*time.Hour, 2*time.Hour, time.Hour
			return l
		}
		first, stopFirst := slow("first").holds(t)
		synctest.Wait()
		second, _ := slow("second").holds(t)
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		if holder := holderOf(t, client); !first.Load() || second.Load() || holder != "first" {
			t.Fatalf("before, the first acts: %t, the second: %t, the holder is %q; want the first alone", first.Load(), second.Load(), holder)
		}
		before := time.Now()
		stopFirst()
		synctest.Wait()
		if holder := holderOf(t, client); !second.Load() || holder != "second" || time.Since(before) > 0 {
			t.Errorf("%v after the first released it, the second acts: %t, the holder is %q; want the second at once", time.Since(before), second.Load(), holder)
		}
	})
}

func TestTheLeaseOfALeaderThatIsGoneIsTakenInTenSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := clientfake.New()
		var cut atomic.Bool
		client.PrependReactor("update", "leases", func(a k8stesting.Action) (bool, runtime.Object, error) {
			l, ok := a.(k8stesting.UpdateAction).GetObject().(*coordinationv1.Lease)
			refused := cut.Load() && ok && ptr.Deref(l.Spec.HolderIdentity, "") != "second"
			return refused, nil, errors.New("no answer")
		})
		first, _ := contender(client, "first").holds(t)
		synctest.Wait()
		second, _ := contender(client, "second").holds(t)
		time.Sleep(10 * leaseDuration)
		synctest.Wait()
		if !first.Load() || second.Load() {
			t.Fatalf("while the first renews the lease, it acts: %t, the second: %t", first.Load(), second.Load())
		}
		cut.Store(true)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if first.Load() || !second.Load() {
			t.Errorf("ten seconds after the first renewed the lease last, it acts: %t, the second: %t; want the second alone", first.Load(), second.Load())
		}
	})
}
