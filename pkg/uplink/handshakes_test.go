package uplink

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/logging/logtest"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func introduceFrom(t *testing.T, e *controllerEnd, ca *testCA, local string) (*lvmdv1.Welcome, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	dialer := &tls.Dialer{NetDialer: &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(local)}},
		Config: &tls.Config{MinVersion: tls.VersionTLS13, ServerName: testHost, RootCAs: roots, NextProtos: []string{alpn}}}
	conn, err := dialer.DialContext(ctx, "tcp", e.addr)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { conn.Close() })
	if err := writeFrame(conn, &lvmdv1.Hello{NodeName: "n", Token: testToken}); err != nil {
		return nil, err
	}
	welcome := &lvmdv1.Welcome{}
	return welcome, readFrame(conn, welcome)
}

// occupy opens silent connections from a local address. The server accepts in order, so it has seen
// them before any later connection.
func (e *controllerEnd) occupy(t *testing.T, local string, n int) {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(local)}}
	for range n {
		conn, err := dialer.DialContext(t.Context(), "tcp", e.addr)
		if err != nil {
			t.Error(err)
			return
		}
		t.Cleanup(func() { conn.Close() })
	}
}

// occupyAll takes all places of unknown addresses, concurrently so that the first connection does
// not time out before the last is made.
func (e *controllerEnd) occupyAll(t *testing.T) {
	t.Helper()
	var all sync.WaitGroup
	for i := range (maxHandshakes - keptHandshakes) / maxHandshakesPerAddress {
		all.Go(func() { e.occupy(t, fmt.Sprintf("127.0.1.%d", 1+i), maxHandshakesPerAddress) })
	}
	all.Wait()
}

// isWelcome fails unless the server accepts a node at that address, and ends its session.
func (e *controllerEnd) isWelcome(t *testing.T, ca *testCA, local string) {
	t.Helper()
	if welcome, err := introduceFrom(t, e, ca, local); err != nil || !welcome.GetAccepted() {
		t.Errorf("a node at %s is not welcome: %v, %v", local, welcome, err)
		return
	}
	e.session(t).Close()
}

// isRejected fails unless the server rejects a peer at that address for that reason, counts it, and
// logs it with the remote address (any if empty).
func (e *controllerEnd) isRejected(t *testing.T, ca *testCA, local, remote, reason string) {
	t.Helper()
	var before, after int
	e.set(func() { before = e.rejected[reason] })
	if welcome, err := introduceFrom(t, e, ca, local); err == nil {
		t.Fatalf("a node at %s is answered: %v", local, welcome)
	}
	waittest.Until(t, "it is counted as rejected: "+reason, func() bool {
		e.set(func() { after = e.rejected[reason] })
		return after > before
	})
	if remote == "" {
		return
	}
	waittest.Until(t, remote+" is logged: "+reason, func() bool {
		return len(e.log.Find(func(r logtest.Record) bool {
			host, _, err := net.SplitHostPort(fmt.Sprint(r.Attributes["remote"]))
			return err == nil && host == remote && r.Message == "uplink refused" && fmt.Sprint(r.Attributes["reason"]) == reason
		})) > 0
	})
}

// keepFailures makes failed handshakes count until the end of the test.
func keepFailures(s *Server) { s.hold = time.Hour }

func TestOneAddressCannotTakeAllHandshakes(t *testing.T) {
	ca := newTestCA(t, "ca")
	e := startController(t, ca, "127.0.0.1:0")
	e.occupy(t, "127.0.0.1", maxHandshakes)
	e.isWelcome(t, ca, "127.0.0.2")
}

// After a restart of the controller, all nodes dial at once and no address has a link.
func TestUnknownPeersDoNotKeepAKnownNodeAway(t *testing.T) {
	ca := newTestCA(t, "ca")
	agent := netip.MustParseAddr("127.0.0.2")
	e := startChangedController(t, ca, must.Get(net.Listen("tcp", "127.0.0.1:0"))(t), func(s *Server) {
		keepFailures(s)
		s.handshakes.Known = func(a netip.Addr) bool { return a == agent }
	})
	e.occupyAll(t)
	e.isRejected(t, ca, "127.0.0.3", "127.0.0.3", "total")
	e.isWelcome(t, ca, agent.String())
}

func TestAPodDoesNotKeepNodesOfItsNetworkAway(t *testing.T) {
	ca := newTestCA(t, "ca")
	e := startChangedController(t, ca, inIPv6{must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)}, keepFailures)
	e.occupy(t, "127.0.0.66", maxHandshakesPerAddress)
	e.isRejected(t, ca, "127.0.0.66", "2001:db8::42", "address")
	e.isWelcome(t, ca, "127.0.0.2")
	// An attacker with many addresses of a network can take all its places.
	for i := range maxHandshakesPerNetwork/maxHandshakesPerAddress - 1 {
		e.occupy(t, fmt.Sprintf("127.0.0.%d", 67+i), maxHandshakesPerAddress)
	}
	e.isRejected(t, ca, "127.0.0.4", "2001:db8::4", "network")
	e.isWelcome(t, ca, "127.0.1.3")
}

// inIPv6 maps peers at 127.0.x.y to 2001:db8:0:x::y: the loopback device has only one IPv6 address.
type inIPv6 struct{ net.Listener }

func (l inIPv6) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return peerInIPv6{c}, nil
}

type peerInIPv6 struct{ net.Conn }

func (c peerInIPv6) RemoteAddr() net.Addr {
	peer, ok := c.Conn.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return c.Conn.RemoteAddr()
	}
	ip := net.ParseIP("2001:db8::")
	ip[7], ip[15] = peer.IP.To4()[2], peer.IP.To4()[3]
	return &net.TCPAddr{IP: ip, Port: peer.Port}
}

func TestHandshakesThatFailCountForAWhile(t *testing.T) {
	ca := newTestCA(t, "ca")
	fail := func(e *controllerEnd) {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP("127.0.0.66")}}
		for range maxHandshakesPerAddress {
			conn := must.Get(dialer.DialContext(t.Context(), "tcp", e.addr))(t)
			_, _ = conn.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
			_ = conn.Close()
		}
		e.refusals(t, maxHandshakesPerAddress)
	}
	e := startChangedController(t, ca, must.Get(net.Listen("tcp", "127.0.0.1:0"))(t), keepFailures)
	fail(e)
	e.isRejected(t, ca, "127.0.0.66", "127.0.0.66", "address")
	e.isWelcome(t, ca, "127.0.0.2")
	e.set(func() {
		if n := e.rejected["handshake"]; n != maxHandshakesPerAddress {
			t.Errorf("%d failed handshakes were counted, want %d", n, maxHandshakesPerAddress)
		}
	})

	e = startChangedController(t, ca, must.Get(net.Listen("tcp", "127.0.0.1:0"))(t), func(s *Server) { s.hold = time.Millisecond })
	fail(e)
	waittest.Until(t, "the address has places again", func() bool {
		welcome, err := introduceFrom(t, e, ca, "127.0.0.66")
		return err == nil && welcome.GetAccepted()
	})
}
