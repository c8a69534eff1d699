package uplink

import (
	"context"
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
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

// startChangedController starts a controller on lis after change(server).
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

// noSession fails if a session was accepted that session did not return.
func (e *controllerEnd) noSession(t *testing.T) {
	t.Helper()
	select {
	case s := <-e.sessions:
		t.Fatalf("unexpected session of node %q", s.Node())
	default:
	}
}

func (e *controllerEnd) refusals(t *testing.T, n int) {
	t.Helper()
	waittest.Until(t, "the controller refuses connections", func() bool {
		return len(e.log.Find(func(r logtest.Record) bool { return r.Message == "uplink refused" })) >= n
	})
}

// nodeLVMD answers GetVolume; for the name "slow", only after release is closed.
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

type nodeEnd struct {
	client   *client
	lvmd     *nodeLVMD
	ca, tok  string
	welcomes atomic.Int32
	log      logtest.Recorder
	stop     func()
}

// failure waits until the node logs a failed dial whose error matches, and returns the error.
func (n *nodeEnd) failure(t *testing.T, what string, match func(error) bool) error {
	t.Helper()
	var found []logtest.Record
	waittest.Until(t, "the node says that its dial failed: "+what, func() bool {
		found = n.log.Find(func(r logtest.Record) bool { return r.Error() != nil && match(r.Error()) })
		return len(found) != 0
	}, func() any { return n.log.Find(func(logtest.Record) bool { return true }) })
	return found[0].Error()
}

// startNode connects to the port of addr on the addresses that lookup returns (the host of addr if
// nil).
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
		NodeName: "node-1", Version: "test", Serve: server.Serve, Log: n.log.Logger(),
	})
	if err != nil {
		t.Fatal(err)
	}
	n.client.onWelcome = func() { n.welcomes.Add(1) }
	n.client.lookup = func(context.Context, string) ([]string, error) { return []string{host}, nil }
	n.client.pace = pace{first: 20 * time.Millisecond, cut: 20 * time.Millisecond, degraded: 20 * time.Millisecond, rest: 25 * time.Millisecond}
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

func waitDone(t *testing.T, s *Session) {
	t.Helper()
	select {
	case <-s.Done():
	case <-time.After(time.Minute):
		t.Fatal("session did not end within a minute")
	}
}
