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

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// answers are what a look-up returns in a test, which counts them.
type answers struct {
	hosts atomic.Pointer[[]string] // nil: it fails
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

// more waits until as many look-ups began, so that all but the last have had their effect.
func (a *answers) more(t *testing.T, n int32) {
	t.Helper()
	until := a.count.Load() + n
	waittest.Until(t, "the host is looked up", func() bool { return a.count.Load() >= until })
}

// name has the replica of a session name addresses to the node, which has taken them in then.
func name(t *testing.T, s *Session, addresses ...string) {
	t.Helper()
	must.Get(lvmdv1.NewLVMDClient(s).SetControllers(t.Context(), &lvmdv1.SetControllersRequest{Addresses: addresses}))(t)
}

// twoReplicas are controllers of which DNS has the first, with a node that is connected to it.
func twoReplicas(t *testing.T, grace time.Duration) (one, two *controllerEnd, node *nodeEnd, dns *answers) {
	t.Helper()
	ca := newTestCA(t, "ca")
	one = startController(t, ca, "127.0.0.1:0")
	_, port, _ := net.SplitHostPort(one.addr)
	two = startController(t, ca, "127.0.0.2:"+port)
	dns = &answers{}
	dns.set("127.0.0.1")
	node = startNode(t, ca, one.addr, func(c *client) { c.lookup, c.pace.grace = dns.lookup, grace })
	return one, two, node, dns
}

func TestAReplicaThatDNSDoesNotHaveYetIsConnectedWhenItIsNamed(t *testing.T) {
	one, two, node, dns := twoReplicas(t, time.Hour)
	by := one.session(t)
	name(t, by, "127.0.0.1", "127.0.0.2")
	must.Succeed(t, call(t, two.session(t), "a"))
	waittest.Until(t, "the first counts as one that names addresses", func() bool { _, longest := node.client.pauses(); return longest == node.client.pace.rare })
	dns.more(t, 3) // in answers that are older than the name
	if n := node.client.linkCount(); n != 2 {
		t.Errorf("%d links, want the named one kept", n)
	}
	dns.set("127.0.0.1", "127.0.0.2")
	dns.more(t, 3)
	name(t, by, "127.0.0.1") // as a replica that does not see the second
	if n := node.client.linkCount(); n != 2 {
		t.Errorf("%d links, want both kept", n)
	}
	dns.more(t, 3)
	one.noSession(t)
	two.noSession(t)
}

func TestANamedAddressThatDNSDoesNotHaveIsAbandonedAtTheNextAnswer(t *testing.T) {
	one, two, node, dns := twoReplicas(t, 0)
	by := one.session(t)
	dns.hosts.Store(nil)
	dns.more(t, 2)
	name(t, by, "127.0.0.2")
	s := two.session(t)
	dns.more(t, 2)
	if n := node.client.linkCount(); n != 2 {
		t.Errorf("%d links while DNS fails, want 2", n)
	}
	dns.set("127.0.0.1")
	waittest.Until(t, "the named address is abandoned", func() bool { return node.client.linkCount() == 1 })
	must.Succeed(t, call(t, s, "a"))
	s.Close()
	waitDone(t, s)
	dns.more(t, 5)
	two.noSession(t)
}

// TestALinkThatIsLostAsksForALookUpOnce: a replica that stays away is no reason to ask again and again.
func TestALinkThatIsLostAsksForALookUpOnce(t *testing.T) {
	ca := newTestCA(t, "ca")
	ctrl := startController(t, ca, "127.0.0.1:0")
	done := make(chan struct{})
	node := startNode(t, ca, ctrl.addr, func(c *client) {
		c.lookup = func(context.Context, string) ([]string, error) { <-done; return nil, errors.New("no DNS") }
	})
	t.Cleanup(func() { close(done) }) // until then the client itself reads nothing
	l := newLink(node.client, ctrl.addr)
	var running sync.WaitGroup
	running.Go(func() { l.run(t.Context()) })
	t.Cleanup(running.Wait)
	ctrl.session(t)
	waittest.Until(t, "the link is up", l.up.Load)
	l.names.Store(true)
	ctrl.stop()
	waittest.Until(t, "a look-up is asked for", func() bool { return len(node.client.lost) == 1 })
	<-node.client.lost
	if l.names.Load() {
		t.Error("the replica that is gone still counts as one that names addresses")
	}
	lis := must.Get(net.Listen("tcp", ctrl.addr))(t)
	t.Cleanup(func() { _ = lis.Close() })
	for range 3 { // attempts that fail
		must.Succeed(t, must.Get(lis.Accept())(t).Close())
	}
	if len(node.client.lost) != 0 {
		t.Error("a look-up is asked for once more")
	}
}

// TestHowOftenTheHostIsLookedUp counts over six hours of a clock of its own; no link can really be made.
func TestHowOftenTheHostIsLookedUp(t *testing.T) {
	const hours = 6
	for name, c := range map[string]struct {
		up          []string
		names       bool
		least, most int32 // per hour
	}{
		"in rest":                    {[]string{"10.0.0.1", "10.0.0.2"}, true, 2, 9},
		"no replica names addresses": {[]string{"10.0.0.1", "10.0.0.2"}, false, 600, 850},
		"a link is down":             {[]string{"10.0.0.1"}, true, 100, 140},
		"a link is down, no replica names anything": {[]string{"10.0.0.1"}, false, 600, 850},
		"all links are down":                        {nil, false, 600, 850},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, dns := lookingUp(t)
				client.set(c.up, c.names)
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
	for name, c := range map[string]struct {
		names       bool
		least, most int32 // in the minute after
	}{
		"no replica names addresses":    {false, 8, 16}, // after 2 and 4 seconds, then every 5
		"the other one names addresses": {true, 1, 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, dns := lookingUp(t)
				client.set([]string{"10.0.0.1", "10.0.0.2"}, c.names)
				for _, change := range []func(){
					client.lookSoon,
					func() {
						for dns.set("10.0.0.1"); client.linkCount() == 2; { // at the next look-up
							time.Sleep(time.Second)
						}
					},
				} {
					time.Sleep(3 * time.Hour)
					change()
					before := dns.count.Load()
					time.Sleep(time.Minute)
					if n := dns.count.Load() - before; n < c.least || n > c.most {
						t.Errorf("%d look-ups in the minute after, want %d to %d", n, c.least, c.most)
					}
				}
			})
		})
	}
}

// lookingUp is a client in a bubble of synctest whose links cannot be made, with two addresses in DNS.
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

// set makes links to hosts up, and those that are up to replicas that name addresses, or not.
func (c *client) set(up []string, names bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, host := range up {
		l := c.links[net.JoinHostPort(host, c.port)]
		l.up.Store(true)
		l.names.Store(names)
	}
}
