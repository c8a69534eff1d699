package uplink

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/logging/logtest"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

const (
	testHost  = "carve-uplink.test"
	testToken = "good-token"
)

// controllerEnd is a Server on a loopback address, with the sessions it handed over.
type controllerEnd struct {
	addr     string
	sessions chan *Session
	server   *Server
	log      logtest.Recorder
	stop     func()

	mu       sync.Mutex
	rejected map[string]int // by reason
	cert     *tls.Certificate
	auth     func(*lvmdv1.Hello) (Grant, error)
}

func startController(t *testing.T, ca *testCA, addr string) *controllerEnd {
	t.Helper()
	return startChangedController(t, ca, must.Get(net.Listen("tcp", addr))(t), nil)
}

// startChangedController is startController on a listener, with a server that was changed.
func startChangedController(t *testing.T, ca *testCA, lis net.Listener, change func(*Server)) *controllerEnd {
	t.Helper()
	e := &controllerEnd{sessions: make(chan *Session, 16), cert: ca.serving(t, testHost), rejected: map[string]int{}}
	e.auth = func(h *lvmdv1.Hello) (Grant, error) {
		if h.GetToken() != testToken {
			return Grant{}, &DeniedError{Reason: "token is not good"}
		}
		return Grant{}, nil
	}
	e.server = NewServer(ServerConfig{
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			e.mu.Lock()
			defer e.mu.Unlock()
			return e.cert, nil
		},
		ClusterID: "cluster",
		Authenticate: func(_ context.Context, h *lvmdv1.Hello) (Grant, error) {
			e.mu.Lock()
			defer e.mu.Unlock()
			return e.auth(h)
		},
		OnSession: func(s *Session) { e.sessions <- s },
		OnReject:  func(reason string) { e.set(func() { e.rejected[reason]++ }) },
		Log:       e.log.Logger(),
	})
	if change != nil {
		change(e.server)
	}
	e.addr = lis.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.server.Serve(ctx, lis) }()
	e.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	t.Cleanup(e.stop)
	return e
}

func (e *controllerEnd) set(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f()
}

func (e *controllerEnd) session(t *testing.T) *Session {
	t.Helper()
	select {
	case s := <-e.sessions:
		return s
	case <-time.After(time.Minute):
		t.Fatal("no session within a minute")
		return nil
	}
}

// noSession fails where a session was accepted that session did not return.
func (e *controllerEnd) noSession(t *testing.T) {
	t.Helper()
	select {
	case s := <-e.sessions:
		t.Fatalf("unexpected session of node %q", s.Node())
	default:
	}
}

// refusals waits until the controller has refused as many connections.
func (e *controllerEnd) refusals(t *testing.T, n int) {
	t.Helper()
	waittest.Until(t, "the controller refuses connections", func() bool {
		return len(e.log.Find(func(r logtest.Record) bool { return r.Message == "uplink refused" })) >= n
	})
}

// introduceFrom connects from a local address and introduces node n by hand.
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

// occupy opens connections from a local address that say nothing. The server accepts in order: it
// has seen all of them before one that is opened after them.
func (e *controllerEnd) occupy(t *testing.T, local string, n int) {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(local)}}
	for range n {
		conn := must.Get(dialer.DialContext(t.Context(), "tcp", e.addr))(t)
		t.Cleanup(func() { conn.Close() })
	}
}

// isWelcome fails unless a node at that address is accepted, and ends its session.
func (e *controllerEnd) isWelcome(t *testing.T, ca *testCA, local string) {
	t.Helper()
	if welcome, err := introduceFrom(t, e, ca, local); err != nil || !welcome.GetAccepted() {
		t.Errorf("a node at %s is not welcome: %v, %v", local, welcome, err)
		return
	}
	e.session(t).Close()
}

// isRejected fails unless a peer at that address is rejected for that reason, which is
// counted, and logged with the remote address, unless that is empty.
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

// keepFailures has peers whose handshake failed count until the end of the test.
func keepFailures(s *Server) { s.hold = time.Hour }

func TestOneAddressCannotTakeAllHandshakes(t *testing.T) {
	ca := newTestCA(t, "ca")
	e := startController(t, ca, "127.0.0.1:0")
	e.occupy(t, "127.0.0.1", maxHandshakes)
	e.isWelcome(t, ca, "127.0.0.2")
}

func TestUnknownPeersDoNotKeepANodeAwayThatHadALink(t *testing.T) {
	ca := newTestCA(t, "ca")
	e := startChangedController(t, ca, must.Get(net.Listen("tcp", "127.0.0.1:0"))(t), keepFailures)
	e.isWelcome(t, ca, "127.0.0.2")
	for i := range maxHandshakes / maxHandshakesPerAddress {
		e.occupy(t, fmt.Sprintf("127.0.1.%d", i+1), maxHandshakesPerAddress)
	}
	e.isRejected(t, ca, "127.0.0.3", "", "total") // too many for all to be logged
	e.isWelcome(t, ca, "127.0.0.2")
}

// All nodes dial at once after the controller's restart, when no address had a link to it.
func TestUnknownPeersDoNotKeepANodeAwayThatNeverHadALink(t *testing.T) {
	ca := newTestCA(t, "ca")
	agent := netip.MustParseAddr("127.0.0.2")
	e := startChangedController(t, ca, must.Get(net.Listen("tcp", "127.0.0.1:0"))(t), func(s *Server) {
		keepFailures(s)
		s.handshakes.Known = func(a netip.Addr) bool { return a == agent }
	})
	for i := range maxHandshakes / maxHandshakesPerAddress {
		e.occupy(t, fmt.Sprintf("127.0.1.%d", i+1), maxHandshakesPerAddress)
	}
	e.isRejected(t, ca, "127.0.0.3", "", "total") // too many for all to be logged
	e.isWelcome(t, ca, agent.String())
}

func TestAPodDoesNotKeepNodesOfItsNetworkAway(t *testing.T) {
	ca := newTestCA(t, "ca")
	e := startChangedController(t, ca, inIPv6{must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)}, keepFailures)
	e.occupy(t, "127.0.0.66", maxHandshakesPerAddress)
	e.isRejected(t, ca, "127.0.0.66", "2001:db8::42", "address")
	e.occupy(t, "127.0.0.66", maxHandshakesPerNetwork)
	e.isWelcome(t, ca, "127.0.0.2")
	// With addresses of its own choice, it can take what the network has.
	for i := range maxHandshakesPerNetwork/maxHandshakesPerAddress - 1 {
		e.occupy(t, fmt.Sprintf("127.0.0.%d", 67+i), maxHandshakesPerAddress)
	}
	e.isRejected(t, ca, "127.0.0.3", "2001:db8::3", "network")
	e.isWelcome(t, ca, "127.0.0.2") // it had a link
	e.isWelcome(t, ca, "127.0.1.3")
}

// inIPv6 has peers at 127.0.x.y seem to be at 2001:db8:0:x::y: the loopback device has one IPv6
// address only.
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

// nodeLVMD answers GetVolume, after release is closed for the name "slow".
type nodeLVMD struct {
	lvmdv1.UnimplementedLVMDServer
	entered chan struct{}
	release chan struct{}
}

func (n *nodeLVMD) GetVolume(ctx context.Context, r *lvmdv1.GetVolumeRequest) (*lvmdv1.GetVolumeResponse, error) {
	if r.GetName() == "slow" {
		n.entered <- struct{}{}
		select {
		case <-n.release:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return &lvmdv1.GetVolumeResponse{Volume: &lvmdv1.Volume{Name: r.GetName()}}, nil
}

// nodeEnd is a client with its files and its gRPC service.
type nodeEnd struct {
	client   *client
	lvmd     *nodeLVMD
	ca, tok  string
	welcomes atomic.Int32
	log      logtest.Recorder
	stop     func()
}

// failure waits until the node has logged that a dial failed with an error that matches,
// and returns the error.
func (n *nodeEnd) failure(t *testing.T, what string, match func(error) bool) error {
	t.Helper()
	var found []logtest.Record
	waittest.Until(t, "the node says that its dial failed: "+what, func() bool {
		found = n.log.Find(func(r logtest.Record) bool { return r.Error() != nil && match(r.Error()) })
		return len(found) != 0
	}, func() any { return n.log.Find(func(logtest.Record) bool { return true }) })
	return found[0].Error()
}

// startNode connects to addr's port on the addresses that lookup returns
// (addr's own host when nil).
func startNode(t *testing.T, ca *testCA, addr string, change func(*client)) *nodeEnd {
	t.Helper()
	dir := t.TempDir()
	n := &nodeEnd{ca: filepath.Join(dir, "ca.crt"), tok: filepath.Join(dir, "token"),
		lvmd: &nodeLVMD{entered: make(chan struct{}, 1), release: make(chan struct{})}}
	writeFile(t, n.ca, ca.pem())
	writeFile(t, n.tok, []byte(testToken+"\n"))
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(ServerOptions()...)
	lvmdv1.RegisterLVMDServer(server, n.lvmd)
	n.client, err = newClient(ClientOptions{
		Addresses: net.JoinHostPort(testHost, port), CAFile: n.ca, TokenFile: n.tok,
		NodeName: "node-1", Version: "test", Serve: server.Serve,
		OnWelcome: func(w *lvmdv1.Welcome) {
			if w.GetClusterId() != "cluster" {
				t.Errorf("cluster id %q", w.GetClusterId())
			}
			n.welcomes.Add(1)
		},
		Log: n.log.Logger(),
	})
	if err != nil {
		t.Fatal(err)
	}
	n.client.lookup = func(context.Context, string) ([]string, error) { return []string{host}, nil }
	n.client.resolveFast, n.client.resolveSlow = 20*time.Millisecond, 20*time.Millisecond
	n.client.backoffMin, n.client.backoffMax = 5*time.Millisecond, 50*time.Millisecond
	if change != nil {
		change(n.client)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.client.run(ctx) }()
	n.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
		server.Stop()
	})
	t.Cleanup(n.stop)
	return n
}

func writeFile(t *testing.T, path string, data []byte) {
	t.Helper()
	must.Succeed(t, os.WriteFile(path, data, 0o600))
}

func call(t *testing.T, s *Session, name string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	got, err := lvmdv1.NewLVMDClient(s).GetVolume(ctx, &lvmdv1.GetVolumeRequest{Name: name})
	if err == nil && got.GetVolume().GetName() != name {
		t.Errorf("answer for %q, want %q", got.GetVolume().GetName(), name)
	}
	return err
}

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

func waitDone(t *testing.T, s *Session) {
	t.Helper()
	select {
	case <-s.Done():
	case <-time.After(time.Minute):
		t.Fatal("session did not end within a minute")
	}
}

func TestNodeRefusesAControllerOfAnotherCA(t *testing.T) {
	ctrl := startController(t, newTestCA(t, "ours"), "127.0.0.1:0")
	var sawToken atomic.Bool
	ctrl.set(func() {
		ctrl.auth = func(*lvmdv1.Hello) (Grant, error) { sawToken.Store(true); return Grant{}, nil }
	})
	node := startNode(t, newTestCA(t, "theirs"), ctrl.addr, nil)
	node.failure(t, "its CA did not sign that", func(err error) bool {
		var unknown x509.UnknownAuthorityError
		return errors.As(err, &unknown)
	})
	ctrl.refusals(t, 2) // the node keeps trying, and each of its connections ends here
	ctrl.noSession(t)
	if sawToken.Load() {
		t.Error("the node sent its token to a controller that it cannot verify")
	}
}

func TestNodeRefusesAControllerOfAnotherName(t *testing.T) {
	ca := newTestCA(t, "ca")
	ctrl := startController(t, ca, "127.0.0.1:0")
	var sawToken atomic.Bool
	ctrl.set(func() {
		ctrl.cert = ca.serving(t, "other.test")
		ctrl.auth = func(*lvmdv1.Hello) (Grant, error) { sawToken.Store(true); return Grant{}, nil }
	})
	node := startNode(t, ca, ctrl.addr, nil)
	node.failure(t, "the certificate is for another name", func(err error) bool {
		var name x509.HostnameError
		return errors.As(err, &name) && name.Host == testHost
	})
	ctrl.refusals(t, 2)
	ctrl.noSession(t)
	if sawToken.Load() {
		t.Error("the node sent its token to a controller of another name")
	}
}

func TestControllerRefusesPlaintextAndOldTLSAndUnknownPeers(t *testing.T) {
	ca := newTestCA(t, "ca")
	ctrl := startController(t, ca, "127.0.0.1:0")
	dial := func() net.Conn {
		c := must.Get(net.Dial("tcp", ctrl.addr))(t)
		t.Cleanup(func() { c.Close() })
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		return c
	}
	t.Run("a Hello without TLS is not read", func(t *testing.T) {
		c := dial()
		must.Succeed(t, writeFrame(c, &lvmdv1.Hello{NodeName: "node-1", Token: testToken}))
		if err := readFrame(c, &lvmdv1.Welcome{}); err == nil {
			t.Error("plaintext was welcomed")
		}
	})
	t.Run("TLS 1.2 is not spoken", func(t *testing.T) {
		c := tls.Client(dial(), &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12, NextProtos: []string{alpn}})
		if err := c.Handshake(); err == nil {
			t.Error("TLS 1.2 was accepted")
		}
	})
	t.Run("a peer without our application protocol is cut off", func(t *testing.T) {
		c := tls.Client(dial(), &tls.Config{InsecureSkipVerify: true})
		if err := c.Handshake(); err != nil {
			return
		}
		_ = writeFrame(c, &lvmdv1.Hello{NodeName: "node-1", Token: testToken})
		if err := readFrame(c, &lvmdv1.Welcome{}); err == nil {
			t.Error("a peer without ALPN was welcomed")
		}
	})
	t.Run("an oversize frame is not read", func(t *testing.T) {
		c := tls.Client(dial(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{alpn}})
		var header [4]byte
		binary.BigEndian.PutUint32(header[:], MaxFrameBytes+1)
		must.Get(c.Write(header[:]))(t)
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !strings.Contains(err.Error(), "reset") {
			t.Errorf("after an oversize frame: %v, want the connection closed", err)
		}
	})
	ctrl.refusals(t, 4) // each of those above
	ctrl.noSession(t)
}

func TestRefusedNodeLearnsTheReasonAndTriesOn(t *testing.T) {
	ca := newTestCA(t, "ca")
	ctrl := startController(t, ca, "127.0.0.1:0")
	node := startNode(t, ca, ctrl.addr, nil)
	s := ctrl.session(t)
	writeFile(t, node.tok, []byte("bad-token"))
	s.Close() // the token file is read again at the next dial
	var refused *RefusedError
	if err := node.failure(t, "it gets the reason", func(err error) bool { return errors.As(err, &refused) }); refused.Reason != "token is not good" {
		t.Errorf("a dial with a bad token: %v, want the controller's reason", err)
	}
	ctrl.noSession(t)
	l := newLink(node.client, ctrl.addr)
	_, _, err := l.dial(context.Background())
	if refused = nil; !errors.As(err, &refused) || refused.Reason != "token is not good" {
		t.Errorf("dial with a bad token: %v, want the controller's reason", err)
	}
	ctrl.set(func() {
		ctrl.auth = func(*lvmdv1.Hello) (Grant, error) { return Grant{}, errors.New("secret detail") }
	})
	if _, _, err := l.dial(context.Background()); err == nil || strings.Contains(err.Error(), "secret detail") {
		t.Errorf("the controller's own trouble was sent to the peer: %v", err)
	}
	ctrl.set(func() {
		ctrl.auth = func(*lvmdv1.Hello) (Grant, error) { return Grant{}, nil }
	})
	if err := call(t, ctrl.session(t), "a"); err != nil {
		t.Error(err)
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

func TestRotatedCAIsReadAtTheNextDial(t *testing.T) {
	before, after := newTestCA(t, "before"), newTestCA(t, "after")
	ctrl := startController(t, before, "127.0.0.1:0")
	node := startNode(t, before, ctrl.addr, nil)
	s := ctrl.session(t)
	writeFile(t, node.ca, append(before.pem(), after.pem()...))
	ctrl.set(func() { ctrl.cert = after.serving(t, testHost) })
	s.Close()
	if err := call(t, ctrl.session(t), "a"); err != nil {
		t.Error(err)
	}
}

func TestConnectionIsReplacedBeforeItsCredentialRunsOutAndNoCallIsCut(t *testing.T) {
	ca := newTestCA(t, "ca")
	ctrl := startController(t, ca, "127.0.0.1:0")
	ctrl.set(func() {
		ctrl.auth = func(*lvmdv1.Hello) (Grant, error) {
			return Grant{ReauthenticateBy: time.Now().Add(500 * time.Millisecond)}, nil
		}
	})
	node := startNode(t, ca, ctrl.addr, func(c *client) { c.reauthenticateAtLeast = 10 * time.Millisecond })
	old := ctrl.session(t)
	slow := make(chan error, 1)
	go func() { slow <- call(t, old, "slow") }()
	<-node.lvmd.entered

	fresh := ctrl.session(t)
	select {
	case <-old.Done():
		t.Fatal("the old connection ended before the new one stood")
	default:
	}
	old.Retire(10 * time.Second)
	if err := call(t, old, "a"); !errors.Is(err, ErrSessionClosed) {
		t.Errorf("new call on a retired session: %v, want ErrSessionClosed", err)
	}
	if err := call(t, fresh, "a"); err != nil {
		t.Error(err)
	}
	close(node.lvmd.release)
	if err := <-slow; err != nil {
		t.Errorf("the call in flight was cut: %v", err)
	}
	waitDone(t, old)
}

func TestRotationOfTheCAAndOfTokensCutsNoCall(t *testing.T) {
	before, after := newTestCA(t, "before"), newTestCA(t, "after")
	ctrl := startController(t, before, "127.0.0.1:0")
	token := testToken
	var renewed atomic.Int32
	ctrl.set(func() {
		ctrl.auth = func(h *lvmdv1.Hello) (Grant, error) {
			if h.GetToken() != token {
				return Grant{}, &DeniedError{Reason: "token is not good"}
			}
			if token != testToken {
				renewed.Add(1)
			}
			return Grant{ReauthenticateBy: time.Now().Add(300 * time.Millisecond)}, nil
		}
	})
	node := startNode(t, before, ctrl.addr, func(c *client) { c.reauthenticateAtLeast = 10 * time.Millisecond })
	old := ctrl.session(t)
	slow := make(chan error, 1)
	go func() { slow <- call(t, old, "slow") }()
	<-node.lvmd.entered

	// As the controller does it: first everybody trusts both, then it serves by
	// the new one, then no one trusts the old one.
	writeFile(t, node.ca, append(before.pem(), after.pem()...))
	writeFile(t, node.tok, []byte("next-token"))
	ctrl.set(func() { token, ctrl.cert = "next-token", after.serving(t, testHost) })
	for renewed.Load() == 0 {
		ctrl.session(t) // dialled before
	}
	if err := call(t, ctrl.session(t), "a"); err != nil {
		t.Errorf("after the rotation: %v", err)
	}
	writeFile(t, node.ca, after.pem())
	if err := call(t, ctrl.session(t), "a"); err != nil {
		t.Errorf("without the old CA: %v", err)
	}
	close(node.lvmd.release)
	if err := <-slow; err != nil {
		t.Errorf("the call in flight was cut: %v", err)
	}
}

func TestSessionIsClosedWhenItsCredentialWasNotRenewed(t *testing.T) {
	ca := newTestCA(t, "ca")
	ctrl := startController(t, ca, "127.0.0.1:0")
	ctrl.server.grace = 0
	ctrl.set(func() {
		ctrl.auth = func(*lvmdv1.Hello) (Grant, error) {
			return Grant{ReauthenticateBy: time.Now().Add(100 * time.Millisecond)}, nil
		}
	})
	startNode(t, ca, ctrl.addr, nil) // renews every 30 s at most
	waitDone(t, ctrl.session(t))
	ctrl.session(t) // and comes back by itself
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
	waittest.Until(t, "two lookups fail", func() bool { // before the third begins, the second was judged
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
	for range 5 { // while the other address is dialled again and again
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
