package trust

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"k8s.io/client-go/kubernetes/fake"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/fleet"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/uplink"
	"github.com/carve-csi/carve/pkg/waittest"
)

// agent is a node's lvmd and the two files that the kubelet keeps current.
type agent struct {
	node      *lvmdfake.Server
	ca, token string
	address   string
}

// connect dials as an agent that starts or renews its connection. The agent ends with its session,
// or when stop is called.
func (a agent) connect(t *testing.T) (stop func()) {
	t.Helper()
	server := grpc.NewServer(uplink.ServerOptions()...)
	lvmdv1.RegisterLVMDServer(server, a.node)
	ctx, cancel := context.WithCancel(context.Background())
	// The next session belongs to another agent.
	serve := func(l net.Listener) error { return server.Serve(closing{l, cancel}) }
	done := make(chan error, 1)
	go func() {
		done <- uplink.RunClient(ctx, uplink.ClientOptions{Addresses: a.address, ServerName: "carve-uplink.carve-system.svc", CAFile: a.ca,
			TokenFile: a.token, NodeName: "n1", Version: "test", Serve: serve, Log: slog.New(slog.DiscardHandler)})
	}()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the agent's end: %v", err)
		}
		server.Stop()
	}
}

type closing struct {
	net.Listener
	call func()
}

func (l closing) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return closingConn{conn, l.call}, err
}

type closingConn struct {
	net.Conn
	call func()
}

func (c closingConn) Close() error {
	c.call()
	return c.Conn.Close()
}

func put(t *testing.T, path string, content []byte) {
	t.Helper()
	must.Succeed(t, os.WriteFile(path, content, 0o600))
}

// The test takes the store through all steps of a rotation, with a new token at each, while volumes
// are created. After each step the node renews its connection twice: before and after the kubelet
// delivers the new bundle.
func TestNoCreateIsLostWhileTheCARotates(t *testing.T) {
	client := fake.NewClientset()
	store := newTestStore(client)
	// Only the store's clock is in the past; the peers' clocks are right.
	var ago atomic.Int64
	store.now = func() time.Time { return time.Now().Add(-time.Duration(ago.Load())) }
	refresh := func(days float64) {
		t.Helper()
		ago.Store(int64(days * 24 * float64(time.Hour)))
		must.Succeed(t, store.Refresh(t.Context()))
	}
	refresh(280)
	refresh(10) // for a certificate that is valid today

	var accepted atomic.Value // the valid token
	lis := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	nodes := fleet.New(fleet.Options{OnChange: func(*fleet.View) {}, Log: slog.New(slog.DiscardHandler)})
	sessions := make(chan struct{}, 100)
	server := uplink.NewServer(uplink.ServerConfig{
		GetCertificate: store.GetCertificate, Log: slog.New(slog.DiscardHandler),
		Authenticate: func(_ context.Context, h *lvmdv1.Hello) (uplink.Grant, error) {
			if h.GetToken() != accepted.Load() {
				return uplink.Grant{}, &uplink.DeniedError{Reason: "token is not good"}
			}
			return uplink.Grant{ReauthenticateBy: time.Now().Add(time.Hour)}, nil
		},
		OnSession: func(s *uplink.Session) { nodes.Add(s); sessions <- struct{}{} },
	})
	serving, endServing := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- server.Serve(serving, lis) }()
	t.Cleanup(func() {
		nodes.Close()
		endServing()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	dir := t.TempDir()
	n1 := agent{node: lvmdfake.New("n1", lvmdfake.Class{Name: "local", Default: true, Bytes: 1 << 50}),
		ca: filepath.Join(dir, "ca.crt"), token: filepath.Join(dir, "token"), address: lis.Addr().String()}
	// One caller has creates in flight at every renewal.
	creating, endCreating := context.WithCancel(t.Context())
	entered, release := make(chan struct{}), make(chan struct{})
	n1.node.SetHooks(lvmdfake.Hooks{BeforeCreate: func(_ context.Context, r *lvmdv1.CreateVolumeRequest) error {
		if !strings.HasPrefix(r.GetName(), "pvc-0-") {
			return nil
		}
		for _, step := range []chan struct{}{entered, release} {
			select {
			case step <- struct{}{}:
			case <-creating.Done():
			}
		}
		return nil
	}})
	const callers = 4
	var created, before [callers]atomic.Int64 // by caller: volumes so far, and when the session was renewed last
	var stops []func()
	t.Cleanup(func() {
		for _, stop := range stops {
			stop()
		}
	})
	renew := func(step string) {
		t.Helper()
		if len(stops) > 0 {
			// The third session of a node cuts off the calls of the first.
			waittest.Until(t, step+": the calls before the last renewal have ended", func() bool {
				for who := 1; who < callers; who++ {
					if created[who].Load() <= before[who].Load() {
						return false
					}
				}
				return true
			})
			<-entered
			defer func() { <-release }()
		}
		// The previous session ends when its calls have ended.
		stops = append(stops, n1.connect(t))
		select {
		case <-sessions:
		case <-time.After(waittest.Limit):
			t.Fatalf("%s: the node does not connect", step)
		}
		for who := range callers {
			before[who].Store(created[who].Load())
		}
	}
	accepted.Store("token-0")
	put(t, n1.token, []byte("token-0"))
	put(t, n1.ca, published(t, client))
	renew("the beginning")

	var creators sync.WaitGroup
	t.Cleanup(func() { endCreating(); creators.Wait() })
	for who := range callers {
		creators.Go(func() {
			for i := 0; creating.Err() == nil; i++ {
				ctx, cancel := context.WithTimeout(context.Background(), waittest.Limit)
				name := fmt.Sprintf("pvc-%d-%d", who, i)
				if _, err := nodes.CreateVolume(ctx, "n1", &lvmdv1.CreateVolumeRequest{Name: name, RequiredBytes: 1 << 20, Mode: lvmdv1.VolumeMode_VOLUME_MODE_FILESYSTEM}); err != nil {
					t.Errorf("create of %s: %v", name, err)
				}
				cancel()
				created[who].Add(1)
				time.Sleep(time.Millisecond)
			}
		})
	}
	first := published(t, client)
	for i, step := range []struct {
		name string
		days float64
	}{{"the next CA is published", 4}, {"it signs", 2.9}, {"the previous one is dropped", 1.8}} {
		before := published(t, client)
		refresh(step.days)
		if string(published(t, client)) == string(before) && i != 1 {
			t.Fatalf("%s: nothing was published", step.name)
		}
		token := fmt.Sprintf("token-%d", i+1)
		put(t, n1.token, []byte(token))
		accepted.Store(token)
		renew(step.name)
		put(t, n1.ca, published(t, client))
		renew(step.name + ", with its bundle")
		from := created[1].Load()
		waittest.Until(t, step.name+": volumes are made on", func() bool { return created[1].Load() >= from+5 })
	}
	if string(published(t, client)) == string(first) {
		t.Error("the CA is the first one")
	}
	endCreating()
	creators.Wait()
}
