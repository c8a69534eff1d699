package uplink

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func TestControllerCallsTheNodeOverTheConnectionTheNodeMade(t *testing.T) {
	ca := newTestCA(t, "ca")
	ctrl := startController(t, ca, "127.0.0.1:0")
	node := startNode(t, ca, ctrl.addr, nil)
	s := ctrl.session(t)
	if s.Node() != "node-1" || s.Version() != "test" {
		t.Errorf("session of %q %q", s.Node(), s.Version())
	}
	must.Succeed(t, call(t, s, "a"))
	node.stop()
	waitDone(t, s)
	if err := call(t, s, "a"); !errors.Is(err, ErrSessionClosed) {
		t.Errorf("call on a session that ended: %v, want ErrSessionClosed", err)
	}
}

func TestANodeDialsFromTheAddressThatItIsGiven(t *testing.T) {
	ca := newTestCA(t, "ca")
	ctrl := startController(t, ca, "127.0.0.1:0")
	startNode(t, ca, ctrl.addr, func(c *client) { c.o.From = netip.MustParseAddr("127.1.0.2") })
	if host, _, _ := net.SplitHostPort(ctrl.session(t).RemoteAddr()); host != "127.1.0.2" {
		t.Errorf("it dialled from %s", host)
	}
}

func TestNodeReconnectsWhenTheControllerComesBack(t *testing.T) {
	ca := newTestCA(t, "ca")
	first := startController(t, ca, "127.0.0.1:0")
	startNode(t, ca, first.addr, nil)
	s := first.session(t)
	first.stop()
	waitDone(t, s)
	second := startController(t, ca, first.addr)
	if err := call(t, second.session(t), "a"); err != nil {
		t.Error(err)
	}
}

func TestEveryAddressHasALinkAndALostOneIsDroppedOnlyWhenItBreaks(t *testing.T) {
	ca := newTestCA(t, "ca")
	one := startController(t, ca, "127.0.0.1:0")
	_, port, _ := net.SplitHostPort(one.addr)
	two := startController(t, ca, "127.0.0.2:"+port)
	var mu sync.Mutex
	hosts, lookupErr, lookups := []string{"127.0.0.1", "127.0.0.2"}, error(nil), 0
	node := startNode(t, ca, one.addr, func(c *client) {
		c.lookup = func(context.Context, string) ([]string, error) {
			mu.Lock()
			defer mu.Unlock()
			lookups++
			return hosts, lookupErr
		}
	})
	s1, s2 := one.session(t), two.session(t)
	for _, s := range []*Session{s1, s2} {
		if err := call(t, s, "a"); err != nil {
			t.Error(err)
		}
	}

	mu.Lock()
	lookupErr, lookups = errors.New("no DNS"), 0
	mu.Unlock()
	waittest.Until(t, "two lookups fail", func() bool { // the second was applied before the third begins
		mu.Lock()
		defer mu.Unlock()
		return lookups >= 3
	})
	if n := node.client.linkCount(); n != 2 {
		t.Errorf("%d links after a failed lookup, want both kept", n)
	}

	mu.Lock()
	hosts, lookupErr = []string{"127.0.0.1"}, nil
	mu.Unlock()
	waittest.Until(t, "the address that left DNS is not dialled any more", func() bool { return node.client.linkCount() == 1 })
	if err := call(t, s2, "a"); err != nil {
		t.Errorf("a standing connection was cut because its address left DNS: %v", err)
	}
	s2.Close()
	waitDone(t, s2)
	for range 5 { // while the node keeps dialling the other address
		s1.Close()
		s1 = one.session(t)
	}
	two.noSession(t)
}

func (c *client) linkCount() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.links)
}

func TestOptionsThatCannotWorkAreErrors(t *testing.T) {
	good := ClientOptions{Addresses: "host:1", CAFile: "ca", TokenFile: "token", NodeName: "n",
		Serve: func(net.Listener) error { return nil }}
	for name, change := range map[string]func(*ClientOptions){
		"an address without a port": func(o *ClientOptions) { o.Addresses = "host" },
		"an address without a host": func(o *ClientOptions) { o.Addresses = ":9443" },
		"no node name":              func(o *ClientOptions) { o.NodeName = "" },
		"no CA file":                func(o *ClientOptions) { o.CAFile = "" },
		"no token file":             func(o *ClientOptions) { o.TokenFile = "" },
		"nothing to serve":          func(o *ClientOptions) { o.Serve = nil },
	} {
		t.Run(name, func(t *testing.T) {
			o := good
			change(&o)
			if err := RunClient(context.Background(), o); err == nil {
				t.Error("accepted")
			}
		})
	}
}

func TestRunClientEndsWhenItsServerEnds(t *testing.T) {
	dir := t.TempDir()
	err := RunClient(context.Background(), ClientOptions{
		Addresses: "127.0.0.1:1", CAFile: dir + "/ca", TokenFile: dir + "/t", NodeName: "n",
		Serve: func(net.Listener) error { return errors.New("broken") },
		Log:   slog.New(slog.DiscardHandler),
	})
	if err == nil || !strings.Contains(err.Error(), "broken") {
		t.Errorf("got %v, want the server's error", err)
	}
}

func TestFramesLargerThanAllowedAreNotWritten(t *testing.T) {
	var tooLarge *FrameTooLargeError
	err := writeFrame(io.Discard, &lvmdv1.Hello{Token: strings.Repeat("x", MaxFrameBytes)})
	if !errors.As(err, &tooLarge) {
		t.Errorf("got %v, want FrameTooLargeError", err)
	}
}
