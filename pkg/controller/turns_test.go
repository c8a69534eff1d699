package controller

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/carve-csi/carve/pkg/must"
)

// growing is a node whose LVM makes four changes per second, sequentially.
type growing struct {
	shares *shares
	lvm    chan struct{}
}

func (g *growing) grow(namespace string, attempts int) bool {
	pause := time.Second
	for range attempts {
		release, err := g.shares.take("n", namespace)
		if err == nil {
			g.lvm <- struct{}{}
			time.Sleep(250 * time.Millisecond)
			<-g.lvm
			release()
			return true
		}
		time.Sleep(pause)
		pause = min(2*pause, time.Minute)
	}
	return false
}

// Two namespaces fill a node's share, and a thousand of their claims want each free place.
func TestANamespaceGetsATurnOnANodeWhoseShareOthersHave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &growing{newShares(resizeWorkers), make(chan struct{}, 1)}
		stop := make(chan struct{})
		var greedy sync.WaitGroup
		for _, namespace := range []string{"a", "b"} {
			for range 500 {
				greedy.Go(func() {
					for {
						select {
						case <-stop:
							return
						default:
							g.grow(namespace, 10)
						}
					}
				})
			}
		}
		time.Sleep(10 * time.Minute) // the greedy ones have backed off
		for i := range 10 {
			if !g.grow("c", 2) {
				t.Errorf("growth %d of another namespace had no place at its second attempt", i)
			}
		}
		close(stop)
		greedy.Wait()
	})
}

func TestNamespacesThatWaitForANodeGetTheirTurnsInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShares(64) // a node's share is 4, a namespace's of it 2
		refused := func(namespace string) {
			t.Helper()
			if _, err := s.take("n", namespace); status.Code(err) != codes.Aborted {
				t.Errorf("namespace %q: got %v, want Aborted", namespace, err)
			}
		}
		take := func(namespace string) (release func()) {
			t.Helper()
			return must.Get(s.take("n", namespace))(t)
		}
		releaseA, releaseB := take("a"), take("b")
		take("a")
		take("b")
		refused("c")
		time.Sleep(time.Second)
		refused("d")
		releaseA()
		for _, other := range []string{"a", "b", "d", "e", ""} {
			refused(other) // the place is c's
		}
		must.Get(s.take("other", "a"))(t)
		time.Sleep(time.Minute)
		refused("d")
		releaseC := take("c")
		releaseB()
		refused("b")
		refused("c")
		take("d")
		releaseC()
		// e has not retried since.
		refused("a")
		time.Sleep(waitsFor)
		take("a")
	})
}
