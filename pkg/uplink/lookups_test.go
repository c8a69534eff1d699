package uplink

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

type answers struct {
	hosts atomic.Pointer[[]string] // nil: lookups fail
	count atomic.Int32
}

func (a *answers) set(hosts ...string) { a.hosts.Store(&hosts) }

func (a *answers) lookup(context.Context, string) ([]string, error) {
	a.count.Add(1)
	if hosts := a.hosts.Load(); hosts != nil {
		return *hosts, nil
	}
	return nil, errors.New("no DNS")
}

// A replica that stays away must not cause repeated lookups.
func TestALinkThatIsLostAsksForALookUpOnce(t *testing.T) {
	ca := newTestCA(t, "ca")
	ctrl := startController(t, ca, "127.0.0.1:0")
	done := make(chan struct{})
	node := startNode(t, ca, ctrl.addr, func(c *client) {
		c.lookup = func(context.Context, string) ([]string, error) { <-done; return nil, errors.New("no DNS") }
	})
	t.Cleanup(func() { close(done) }) // until then the client itself does not read lost
	l := newLink(node.client, ctrl.addr)
	var running sync.WaitGroup
	running.Go(func() { l.run(t.Context()) })
	t.Cleanup(running.Wait)
	ctrl.session(t)
	waittest.Until(t, "the link is up", l.up.Load)
	ctrl.stop()
	waittest.Until(t, "a look-up is asked for", func() bool { return len(node.client.lost) == 1 })
	<-node.client.lost
	lis := must.Get(net.Listen("tcp", ctrl.addr))(t)
	t.Cleanup(func() { _ = lis.Close() })
	for range 3 { // failed attempts
		must.Succeed(t, must.Get(lis.Accept())(t).Close())
	}
	if len(node.client.lost) != 0 {
		t.Error("a look-up is asked for once more")
	}
}

// The test counts over six hours of a fake clock; no link can be made.
func TestHowOftenTheHostIsLookedUp(t *testing.T) {
	const hours = 6
	for name, c := range map[string]struct {
		up          []string
		least, most int32 // per hour
	}{
		"at rest":            {[]string{"10.0.0.1", "10.0.0.2"}, 10, 15},
		"a link is down":     {[]string{"10.0.0.1"}, 100, 140},
		"all links are down": {nil, 600, 850},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, dns := lookingUp(t)
				client.setUp(c.up...)
				time.Sleep(time.Hour) // the pauses grow at first
				before := dns.count.Load()
				time.Sleep(hours * time.Hour)
				if n := (dns.count.Load() - before) / hours; n < c.least || n > c.most {
					t.Errorf("%d look-ups per hour, want %d to %d", n, c.least, c.most)
				}
			})
		})
	}
}

func TestALostLinkAndAChangedAnswerMakeLookUpsFrequentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, dns := lookingUp(t)
		client.setUp("10.0.0.1", "10.0.0.2")
		for _, change := range []func(){
			client.lookSoon,
			func() {
				for dns.set("10.0.0.1"); client.linkCount() == 2; { // at the next lookup
					time.Sleep(time.Second)
				}
			},
		} {
			time.Sleep(3 * time.Hour)
			change()
			before := dns.count.Load()
			time.Sleep(30 * time.Second)
			if n := dns.count.Load() - before; n < 3 || n > 5 { // after 2, 6, 14 and 30 seconds, or up to half as long again
				t.Errorf("%d look-ups in the half minute after, want 3 to 5", n)
			}
		}
	})
}

// lookingUp returns a client with two addresses in DNS whose links always fail. It needs a synctest
// bubble.
func lookingUp(t *testing.T) (*client, *answers) {
	t.Helper()
	c := must.Get(newClient(ClientOptions{
		Addresses: testHost + ":9443", CAFile: "/none", TokenFile: "/none", NodeName: "node-1", Log: slog.New(slog.DiscardHandler),
		Serve: func(net.Listener) error { <-t.Context().Done(); return net.ErrClosed },
	}))(t)
	dns := &answers{}
	dns.set("10.0.0.1", "10.0.0.2")
	c.lookup = dns.lookup
	var running sync.WaitGroup
	running.Go(func() {
		if err := c.run(t.Context()); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(running.Wait)
	synctest.Wait()
	return c, dns
}

func (c *client) setUp(hosts ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, host := range hosts {
		c.links[net.JoinHostPort(host, c.port)].up.Store(true)
	}
}
