//go:build !kernel

package lvmd

import (
	"context"
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
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"google.golang.org/genproto/googleapis/rpc/errdetails"

	"github.com/carve-csi/carve/api/config"
	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/luks"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/lvmfake"
	"github.com/carve-csi/carve/pkg/lvmd/inventory"
	"github.com/carve-csi/carve/pkg/lvmd/reclaim"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

const (
	testGroup  = "carve"
	testExtent = int64(4 << 20)
	testTotal  = int64(64)
)

type machine struct {
	// crashed is set once a daemon was killed.
	crashed atomic.Bool
	fake    *lvmfake.Groups
	state   string
	config  string

	mu        sync.Mutex
	formatted map[string]filesystem.FormatOptions // by device path
	// formatHook, if not nil, runs before a format is recorded.
	formatHook func(ctx context.Context, device string) error
}

const oneClass = `
- name: local
  default: true
  volumeGroup: carve
`

// stateDir is in memory if possible: these tests would flush a disk thousands of times.
func stateDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "carve-lvmd-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{fake: lvmfake.New(), state: stateDir(t), config: oneClass, formatted: map[string]filesystem.FormatOptions{}}
	m.fake.AddGroup(testGroup, testExtent, testTotal)
	return m
}

func (m *machine) format(ctx context.Context, device string, o filesystem.FormatOptions) error {
	if m.formatHook != nil {
		if err := m.formatHook(ctx, device); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.formatted[device] = o
	return nil
}

func (m *machine) probe(device string) (filesystem.Info, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	o, ok := m.formatted[device]
	if !ok {
		return filesystem.Info{}, filesystem.ErrUnformatted
	}
	return filesystem.Info{Type: o.Type, UUID: o.UUID}, nil
}

func (m *machine) setUUID(device string, t filesystem.Type, uuid string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.formatted[device] = filesystem.FormatOptions{Type: t, UUID: uuid}
	return nil
}

type daemon struct {
	*Service
	t          *testing.T
	machine    *machine
	gate       *gate
	server     *grpc.Server
	socket     net.Listener
	conn       *grpc.ClientConn
	client     lvmdv1.LVMDClient
	uplinks    *grpc.Server
	uplink     *grpc.ClientConn
	controller lvmdv1.LVMDClient
	end        *atEnd
}

func (m *machine) start(t *testing.T, adjust ...func(*daemon, *Options)) *daemon {
	t.Helper()
	d, err := m.tryStart(t, adjust...)
	if err != nil {
		t.Fatalf("lvmd does not start: %v", err)
	}
	return d
}

func (m *machine) tryStart(t *testing.T, adjust ...func(*daemon, *Options)) (*daemon, error) {
	t.Helper()
	c, err := config.Parse("lvmd.yaml", []byte("apiVersion: carve.csi.local/v1\nkind: LvmdConfig\ndeviceClasses:\n"+m.config))
	if err != nil {
		return nil, err
	}
	m.fake.Restart()
	d := &daemon{t: t, machine: m, gate: &gate{Groups: m.fake}}
	format := func(ctx context.Context, device string, o filesystem.FormatOptions) error {
		return d.gate.around("format", func() error { return m.format(ctx, device, o) })
	}
	o := Options{
		Config: c, LVM: d.gate, StateDir: m.state, Format: format, Probe: m.probe, SetUUID: m.setUUID,
		Inspect: func(string, string) (luks.State, error) { return luks.Blank, nil },
		Log:     slog.New(slog.DiscardHandler), PollInterval: 5 * time.Millisecond, crashPoint: d.gate.pass,
		entered: d.entered, defect: func(message string, args ...any) { t.Errorf("%s: %v", message, args) },
		wipeCheckpoint: reclaim.WipeChunk, copyCheckpoint: copyChunk, // The disks are small, and progress must be journaled.
	}
	for _, a := range adjust {
		a(d, &o)
	}
	err = errCrashed
	started := make(chan struct{})
	go func() { // It may crash here already.
		defer close(started)
		d.Service, err = New(t.Context(), o)
	}()
	<-started
	if err != nil {
		return nil, err
	}
	l, err := Listen(filepath.Join(m.state, "lvmd.sock"))
	if err != nil {
		t.Fatal(err)
	}
	d.socket = l
	d.server = d.NewServer(Socket, grpc.ChainUnaryInterceptor(d.gate.called))
	go d.server.Serve(l)
	d.uplinks = d.NewServer(Uplink, grpc.ChainUnaryInterceptor(d.gate.called))
	uplinks := bufconn.Listen(1 << 16)
	go d.uplinks.Serve(uplinks)
	d.conn, err = Dial(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	d.client = lvmdv1.NewLVMDClient(d.conn)
	d.uplink, err = grpc.NewClient("passthrough:uplink", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return uplinks.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	d.controller = lvmdv1.NewLVMDClient(d.uplink)
	d.Start()
	d.end = &atEnd{d}
	t.Cleanup(d.end.stop)
	return d, nil
}

// atEnd drops its reference to a daemon that has ended: some tests start thousands, which the
// garbage collector would scan.
type atEnd struct{ daemon *daemon }

func (e *atEnd) stop() {
	if e.daemon != nil {
		e.daemon.stop()
	}
}

func (d *daemon) stop() {
	if d.ended() {
		return
	}
	d.end.daemon = nil
	d.conn.Close()
	d.uplink.Close()
	if err := StopServers(d.Service, d.server, d.uplinks); err != nil {
		d.t.Errorf("stop: %v", err)
	}
	d.socket.Close() // A server that ended before it served did not close it.
}

func (d *daemon) ended() bool { return d.end.daemon == nil }

// entered records changes in a daemon that is to crash, or that starts after a crash.
func (d *daemon) entered(from, to inventory.State) {
	d.gate.mu.Lock()
	defer d.gate.mu.Unlock()
	if d.gate.mayCrash() || d.machine.crashed.Load() {
		crashPoints.note(transitionOf(from, to))
	}
}

// kill acts like SIGKILL: later attempts have no effect.
func (d *daemon) kill() {
	d.end.daemon = nil
	d.machine.crashed.Store(true)
	d.gate.crashed.Store(true)
	d.journal.Close()
	d.conn.Close()
	d.uplink.Close()
	d.server.Stop()
	d.uplinks.Stop()
	d.socket.Close()
	d.cancel()
	d.machine.fake.CloseAll()
}

// Requests and checks.

func request(name string, extents int64) *lvmdv1.CreateVolumeRequest {
	return &lvmdv1.CreateVolumeRequest{
		Name: name, RequiredBytes: extents * testExtent, Mode: lvmdv1.VolumeMode_VOLUME_MODE_BLOCK,
		Owner: &lvmdv1.Owner{ClusterId: "cluster", ClaimNamespace: "ns", ClaimName: "claim-" + name, ClaimUid: "uid"},
	}
}

func fsRequest(name string, extents int64, fs string) *lvmdv1.CreateVolumeRequest {
	r := request(name, extents)
	r.Mode, r.FsType = lvmdv1.VolumeMode_VOLUME_MODE_FILESYSTEM, fs
	return r
}

func (d *daemon) create(r *lvmdv1.CreateVolumeRequest) *lvmdv1.Volume {
	d.t.Helper()
	resp, err := d.client.CreateVolume(d.t.Context(), r)
	if err != nil {
		d.t.Fatalf("create %s: %v", r.GetName(), err)
	}
	return resp.GetVolume()
}

func (d *daemon) delete(id string) {
	d.t.Helper()
	if _, err := d.client.DeleteVolume(d.t.Context(), &lvmdv1.DeleteVolumeRequest{Id: id}); err != nil {
		d.t.Fatalf("delete %s: %v", id, err)
	}
}

func (d *daemon) list() []*lvmdv1.Volume {
	d.t.Helper()
	resp := must.Get(d.client.ListVolumes(d.t.Context(), &lvmdv1.ListVolumesRequest{}))(d.t)
	return resp.GetVolumes()
}

func (d *daemon) state() *lvmdv1.WatchResponse {
	d.t.Helper()
	ctx, cancel := context.WithCancel(d.t.Context())
	defer cancel()
	w := must.Get(d.client.Watch(ctx, &lvmdv1.WatchRequest{}))(d.t)
	r := must.Get(w.Recv())(d.t)
	d.checkConditions(r)
	return r
}

// checkConditions fails the test if a condition shows the UUID of a physical volume: conditions
// are published, and the UUID allows forging a disk.
func (d *daemon) checkConditions(r *lvmdv1.WatchResponse) {
	d.t.Helper()
	var all []*lvmdv1.Condition
	for _, c := range r.GetClasses() {
		all = append(all, c.GetConditions()...)
	}
	for _, v := range r.GetVolumes() {
		all = append(all, v.GetConditions()...)
	}
	for _, c := range all {
		if strings.Contains(c.GetMessage(), "fake-pv-") {
			d.t.Errorf("the condition %s has the UUID of a physical volume: %s", c.GetType(), c.GetMessage())
		}
	}
}

// available is in extents.
func (d *daemon) available() int64 {
	d.t.Helper()
	return d.state().GetClasses()[0].GetAvailableBytes() / testExtent
}

func refusesSize(err error) bool {
	return status.Code(err) == codes.ResourceExhausted || status.Code(err) == codes.OutOfRange
}

func wantCode(t *testing.T, err error, code codes.Code, reason string) {
	t.Helper()
	s := status.Convert(err)
	got := ""
	for _, d := range s.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			got = info.GetReason()
		}
	}
	if s.Code() != code || got != reason {
		t.Errorf("got %v %q (%s), want %v %q", s.Code(), got, s.Message(), code, reason)
	}
}

// checkClean waits until LVM, the journal and the disk hold nothing of any volume.
func (d *daemon) checkClean() {
	d.t.Helper()
	waittest.Until(d.t, "all space is back", func() bool { return d.available() == testTotal })
	d.checkModel()
	waittest.Until(d.t, "the journal is empty", func() bool {
		records, err := d.journal.Volumes()
		return err == nil && len(records) == 0
	})
	must.Succeed(d.t, d.machine.fake.Create(d.t.Context(), lvm.CreateOptions{Group: testGroup, Volume: "inspect", Extents: testTotal}))
	// Without its key, an encrypted volume's remains are noise.
	if n, pattern, _ := d.machine.fake.Traces(testGroup, "inspect"); n > d.machine.fake.Noise(testGroup, "inspect") {
		d.t.Errorf("%d blocks still show what an earlier volume held, such as %#x", n, pattern)
	}
	must.Succeed(d.t, d.machine.fake.Remove(d.t.Context(), testGroup, []string{"inspect"}))
	waittest.Until(d.t, "all space is back again", func() bool { return d.available() == testTotal })
}

// checkModel compares the inventory with a fresh scan once lvmd is idle.
func (d *daemon) checkModel() {
	d.t.Helper()
	var why string
	deadline := time.Now().Add(time.Minute)
	for why = d.modelDiffers(); why != "" && time.Now().Before(deadline); why = d.modelDiffers() {
		time.Sleep(2 * time.Millisecond)
	}
	if why != "" {
		d.t.Errorf("the model is not what the disk says: %s", why)
	}
}

func (d *daemon) modelDiffers() string {
	found, err := d.machine.fake.Scan(context.Background(), []string{testGroup})
	if err != nil {
		return err.Error()
	}
	if err := d.groups.Named(testGroup).Compare(&found[0]); err != nil {
		return err.Error()
	}
	return ""
}
