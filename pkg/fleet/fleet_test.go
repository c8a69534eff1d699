package fleet_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/fleet"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/uplink"
	"github.com/carve-csi/carve/pkg/uplink/uplinktest"
	"github.com/carve-csi/carve/pkg/waittest"
)

const gib = 1 << 30

type harness struct {
	*fleet.Fleet
	net *uplinktest.Network

	mu    sync.Mutex
	views map[string][]*fleet.View // every view passed to OnChange
}

func newHarness(t *testing.T) *harness {
	t.Helper()
	h := &harness{views: map[string][]*fleet.View{}}
	h.Fleet = fleet.New(fleet.Options{Log: slog.New(slog.DiscardHandler), OnChange: func(v *fleet.View) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.views[v.Node] = append(h.views[v.Node], v)
	}})
	net := must.Get(uplinktest.NewNetwork(t.TempDir(), h.Add))(t)
	h.net = net
	t.Cleanup(func() { h.Close(); net.Close() })
	return h
}

func (h *harness) node(t *testing.T, name string) *lvmdfake.Server {
	t.Helper()
	s := lvmdfake.New(name, lvmdfake.Class{Name: "local", Default: true, Bytes: gib})
	h.net.Attach(s)
	h.eventually(t, name, func(v *fleet.View) bool { return v.Connected })
	return s
}

func (h *harness) eventually(t *testing.T, node string, cond func(*fleet.View) bool) *fleet.View {
	t.Helper()
	var last *fleet.View
	waittest.Until(t, "the view of node "+node+" is as expected", func() bool {
		var ok bool
		last, ok = h.View(node)
		return ok && cond(last)
	}, func() any { return last })
	return last
}

func request(name string) *lvmdv1.CreateVolumeRequest {
	return &lvmdv1.CreateVolumeRequest{Name: name, RequiredBytes: 100 << 20, Mode: lvmdv1.VolumeMode_VOLUME_MODE_FILESYSTEM}
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestAViewFollowsTheNode(t *testing.T) {
	h := newHarness(t)
	h.node(t, "n")
	v := must.Get(h.CreateVolume(testContext(t), "n", request("pvc-1")))(t)
	view := h.eventually(t, "n", func(v *fleet.View) bool { return v.ByName["pvc-1"] != nil })
	if c, ok := view.Class(""); !ok || c.GetAvailableBytes() != gib-v.GetSizeBytes() {
		t.Errorf("the view that shows the volume shows %d bytes available, not what is left after it", c.GetAvailableBytes())
	}
	if got := h.Holders("pvc-1"); !slices.Equal(got, []string{"n"}) {
		t.Errorf("holders of pvc-1: %v", got)
	}
	must.Succeed(t, h.DeleteVolumeByID(testContext(t), "n", v.GetId()))
	h.eventually(t, "n", func(v *fleet.View) bool { return len(v.Volumes) == 0 && len(v.ByName) == 0 })
	if got := h.Holders("pvc-1"); len(got) != 0 {
		t.Errorf("holders of a deleted volume: %v", got)
	}
}

func TestEveryViewHandedOutIsAStateTheNodeWasIn(t *testing.T) {
	h := newHarness(t)
	h.node(t, "n")
	var wg sync.WaitGroup
	for _, name := range []string{"pvc-1", "pvc-2", "pvc-3", "pvc-4"} {
		wg.Go(func() {
			for range 5 {
				if _, err := h.CreateVolume(testContext(t), "n", request(name)); err != nil {
					t.Error(err)
				}
				if err := h.DeleteVolumeByName(testContext(t), "n", name); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	h.eventually(t, "n", func(v *fleet.View) bool { return v.Generation == 40 })
	h.mu.Lock()
	defer h.mu.Unlock()
	last := uint64(0)
	for _, v := range h.views["n"] {
		free := int64(gib)
		for _, vol := range v.Volumes {
			free -= vol.GetSizeBytes()
		}
		if c, _ := v.Class("local"); c.GetAvailableBytes() != free {
			t.Errorf("generation %d: %d available, volumes leave %d", v.Generation, c.GetAvailableBytes(), free)
		}
		if v.Generation < last {
			t.Errorf("generation %d after %d", v.Generation, last)
		}
		last = v.Generation
	}
}

func TestANodeThatLeftKeepsItsViewAndCannotBeCalled(t *testing.T) {
	h := newHarness(t)
	s := h.node(t, "n")
	h.net.Detach("n")
	v := h.eventually(t, "n", func(v *fleet.View) bool { return !v.Connected })
	if len(v.Classes) != 1 {
		t.Error("the last report is gone with the connection")
	}
	_, err := h.CreateVolume(testContext(t), "n", request("pvc-1"))
	if !fleet.IsNotConnected(err) || fleet.MayHaveHappened(err) {
		t.Errorf("call to a node that left: %v, want NotConnectedError", err)
	}
	if _, err := h.CreateVolume(testContext(t), "unknown", request("pvc-1")); !fleet.IsNotConnected(err) {
		t.Errorf("call to an unknown node: %v, want NotConnectedError", err)
	}
	h.net.Attach(s)
	h.eventually(t, "n", func(v *fleet.View) bool { return v.Connected })
	if _, err := h.CreateVolume(testContext(t), "n", request("pvc-1")); err != nil {
		t.Error(err)
	}
	h.net.Detach("n")
	h.eventually(t, "n", func(v *fleet.View) bool { return !v.Connected })
	h.Forget("n")
	if _, known := h.View("n"); known || len(h.Holders("pvc-1")) != 0 {
		t.Error("a forgotten node is still known")
	}
}

func TestASecondConnectionOfANodeReplacesTheFirstWithoutCuttingCalls(t *testing.T) {
	h := newHarness(t)
	s := h.node(t, "n")
	entered, release := make(chan struct{}), make(chan struct{})
	s.SetHooks(lvmdfake.Hooks{BeforeCreate: func(ctx context.Context, r *lvmdv1.CreateVolumeRequest) error {
		if r.GetName() != "slow" {
			return nil
		}
		close(entered)
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}})
	slow := make(chan error, 1)
	go func() {
		_, err := h.CreateVolume(testContext(t), "n", request("slow"))
		slow <- err
	}()
	<-entered
	seen := func() int {
		h.mu.Lock()
		defer h.mu.Unlock()
		return len(h.views["n"])
	}
	before := seen()
	h.net.Attach(s)
	waittest.Until(t, "the second connection brings a view", func() bool { return seen() != before })
	if _, err := h.CreateVolume(testContext(t), "n", request("quick")); err != nil {
		t.Error(err)
	}
	close(release)
	if err := <-slow; err != nil {
		t.Errorf("the call in flight on the first connection was cut: %v", err)
	}
	if got := h.Connected(); got != 1 {
		t.Errorf("%d nodes connected, want 1", got)
	}
}

func TestErrorsKeepLvmdsReason(t *testing.T) {
	h := newHarness(t)
	h.node(t, "n")
	r := request("big")
	r.RequiredBytes = 2 * gib
	_, err := h.CreateVolume(testContext(t), "n", r)
	if status.Code(err) != codes.ResourceExhausted || fleet.Reason(err) != names.ReasonNoSpace || fleet.MayHaveHappened(err) {
		t.Errorf("no space: %v, reason %q, may have happened %v", err, fleet.Reason(err), fleet.MayHaveHappened(err))
	}
}

func TestMayHaveHappened(t *testing.T) {
	for name, test := range map[string]struct {
		err  error
		want bool
	}{
		"success happened":                                        {nil, true},
		"a node that is not connected did not":                    {&fleet.NotConnectedError{Node: "n"}, false},
		"a call that found no place was not sent":                 {fmt.Errorf("on node n: %w", &fleet.NoPlaceError{Cause: context.DeadlineExceeded}), false},
		"a broken connection leaves its outcome unknown":          {status.Error(codes.Unavailable, "EOF"), true},
		"a missing device is lvmd's last word":                    {lvmdfake.Error(codes.Unavailable, names.ReasonDeviceMissing, "gone"), false},
		"an answer that is too large leaves its outcome unknown":  {status.Error(codes.ResourceExhausted, "grpc: received message larger than max"), true},
		"an answer that is no message leaves its outcome unknown": {status.Error(codes.Internal, "grpc: failed to unmarshal"), true},
		"a command that failed is final":                          {lvmdfake.Error(codes.Internal, names.ReasonCommandFailed, "failed"), false},
		"a deadline leaves its outcome unknown":                   {status.Error(codes.DeadlineExceeded, "late"), true},
		"a pending operation leaves its outcome unknown":          {lvmdfake.Error(codes.Aborted, names.ReasonOperationPending, "busy"), true},
		"no space is final":                                       {lvmdfake.Error(codes.ResourceExhausted, names.ReasonNoSpace, "full"), false},
		"an error from nowhere leaves its outcome unknown":        {context.Canceled, true},
		"a command that timed out leaves its outcome unknown":     {lvmdfake.Error(codes.DeadlineExceeded, names.ReasonCommandTimedOut, "slow"), true},
		"another request of that name is final":                   {lvmdfake.Error(codes.AlreadyExists, names.ReasonRequestDiffers, "differs"), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := fleet.MayHaveHappened(test.err); got != test.want {
				t.Errorf("%v: got %v", test.err, got)
			}
		})
	}
}

func TestAReportOfANodeThatReconnectsComesAfterItWasForgotten(t *testing.T) {
	var mu sync.Mutex
	var order []string
	note := func(what string) {
		mu.Lock()
		defer mu.Unlock()
		order = append(order, what)
	}
	forgetting, connected := make(chan struct{}), make(chan struct{})
	h := &harness{}
	h.Fleet = fleet.New(fleet.Options{Log: slog.New(slog.DiscardHandler),
		OnChange: func(v *fleet.View) {
			if v.Connected {
				note("reported")
			}
		},
		OnForget: func(string) {
			close(forgetting)
			<-connected
			note("forgotten")
		}})
	net := must.Get(uplinktest.NewNetwork(t.TempDir(), h.Add))(t)
	t.Cleanup(func() { h.Close(); net.Close() })
	h.net = net
	s := h.node(t, "n")
	net.Detach("n")
	h.eventually(t, "n", func(v *fleet.View) bool { return !v.Connected })
	forgot := make(chan struct{})
	go func() { defer close(forgot); h.Forget("n") }()
	<-forgetting
	net.Attach(s)
	waittest.Until(t, "the node has an uplink", func() bool { return h.Connected() == 1 })
	close(connected)
	<-forgot
	h.eventually(t, "n", func(v *fleet.View) bool { return v.Connected })
	waittest.Until(t, "both reports were handed out", func() bool { mu.Lock(); defer mu.Unlock(); return len(order) == 3 })
	if want := []string{"reported", "forgotten", "reported"}; !slices.Equal(order, want) {
		t.Errorf("order %q, want %q", order, want)
	}
}

// slowToClose is a listener whose connections block in Close until hold is closed.
type slowToClose struct {
	net.Listener
	hold chan struct{}
}

func (l slowToClose) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return slowConn{conn, l.hold}, nil
}

type slowConn struct {
	net.Conn
	hold chan struct{}
}

func (c slowConn) Close() error {
	<-c.hold
	return c.Conn.Close()
}

func TestASessionThatIsSlowToCloseHoldsUpNoOtherNode(t *testing.T) {
	lis := slowToClose{Listener: must.Get(net.Listen("tcp", "127.0.0.1:0"))(t), hold: make(chan struct{})}
	f := fleet.New(fleet.Options{Log: slog.New(slog.DiscardHandler)})
	var added atomic.Int64
	network := must.Get(uplinktest.NewNetworkOn(lis, t.TempDir(), func(s *uplink.Session) {
		f.Add(s)
		added.Add(1)
	}))(t)
	release := sync.OnceFunc(func() { close(lis.hold) })
	t.Cleanup(func() { release(); f.Close(); network.Close() })
	for n := range int64(3) { // the third closes the first
		network.Attach(lvmdfake.New("n", lvmdfake.Class{Name: "local", Default: true, Bytes: gib}))
		waittest.Until(t, "the fleet takes over the session", func() bool { return added.Load() == n+1 })
	}
	f.Close()
	release()
}
