// Package drivertest supports tests of the node plugin. It has in-memory file
// systems, a machine that keeps them with a mount table (package mountfake) and
// an lvmd (package lvmdfake) while plugins come and go, and a CSI controller
// that creates volumes for conformance suites.
package drivertest

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/driver"
	"github.com/carve-csi/carve/pkg/driver/inline"
	"github.com/carve-csi/carve/pkg/driver/mount"
	"github.com/carve-csi/carve/pkg/driver/mount/mountfake"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/luks"
	"github.com/carve-csi/carve/pkg/luks/luksfake"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// NodeName is the node's name on every machine.
const NodeName = "node-1"

// diskBytes, the size of a fake machine's disks, exceeds what any test needs.
const diskBytes = 1 << 50

// Machine is the part of a node that outlives the plugin.
type Machine struct {
	// Dir is a temporary directory that contains KubeletDir.
	Dir, KubeletDir string
	// LVMD is the server behind the lvmd socket.
	LVMD        lvmdv1.LVMDServer
	Mounts      mount.Interface
	FileSystems driver.FileSystems
	LUKS        luks.Interface
	// Controller makes plugins claim a controller service: conformance suites
	// create volumes only then.
	Controller bool
	// The following fields become driver.Options.
	InlineVolumes              bool
	InlineMaxBytes             int64
	CheckMemory                int64
	IOLimits                   driver.IOLimitDirs
	MaxVolumes, SmallestVolume int64
	// Log collects the log of all plugins.
	Log *Buffer

	t        testing.TB
	stopLVMD func()
}

// OtherRecord is the kubelet's record of another driver's volume, below its
// directory.
const OtherRecord = "plugins/kubernetes.io/csi/other.csi.example/hash/vol_data.json"

// NewMachine assembles a machine and starts its lvmd.
func NewMachine(t testing.TB, lvmd lvmdv1.LVMDServer, mounts mount.Interface, fileSystems driver.FileSystems, crypt luks.Interface) *Machine {
	t.Helper()
	// Not t.TempDir: a socket's path is limited to 107 bytes.
	dir := must.Get(os.MkdirTemp("", "carve"))(t)
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	m := &Machine{Dir: dir, KubeletDir: filepath.Join(dir, "kubelet"), Log: &Buffer{}, t: t,
		LVMD: lvmd, Mounts: mounts, FileSystems: fileSystems, LUKS: crypt}
	for _, d := range []string{m.KubeletDir, m.registrationDir()} {
		must.Succeed(t, os.Mkdir(d, 0o750))
	}
	// The plugin's own Pod, and a volume of another driver.
	m.MakeDir("pods", "plugin")
	must.Succeed(t, os.WriteFile(m.Path(OtherRecord), []byte(`{"driverName":"other.csi.example","volumeHandle":"other"}`), 0o600))
	m.StartLVMD()
	t.Cleanup(func() { m.StopLVMD() })
	return m
}

// FakeMachine is a machine of fakes with real directories.
type FakeMachine struct {
	*Machine
	LVMD        *lvmdfake.Server
	Mounts      *mountfake.Table
	FileSystems *FileSystems
	LUKS        *luksfake.Table
}

// NewFakeMachine returns a machine that gives each new volume of lvmd a device
// node and, if requested, a clean file system.
func NewFakeMachine(t testing.TB) *FakeMachine {
	t.Helper()
	f := &FakeMachine{
		LVMD:   lvmdfake.New(NodeName, lvmdfake.Class{Name: "local", Default: true, Group: "carve", Bytes: diskBytes}),
		Mounts: &mountfake.Table{}, FileSystems: &FileSystems{}, LUKS: &luksfake.Table{},
	}
	classes := must.Get(f.LVMD.ListClasses(t.Context(), &lvmdv1.ListClassesRequest{}))(t)
	f.Mounts.SetGroupUUID(classes.GetClasses()[0].GetVgUuid())
	f.LUKS.Formatted = func(_, volume string) { f.FileSystems.Set(luks.Path(volume), filesystem.Info{}) }
	f.LUKS.Opened = func(device, volume string, m luks.Mapping) {
		size, err := f.Mounts.NodeSize(device)
		if err != nil {
			t.Error(err)
		}
		f.Mounts.AddNode(luks.Path(volume), mount.Device{Major: m.Major, Minor: m.Minor}, size-luks.HeaderBytes)
	}
	f.LUKS.Closed = func(volume string) { f.Mounts.RemoveNode(luks.Path(volume)) }
	f.LUKS.InUse = func(m luks.Mapping) bool { return f.Mounts.Shows(mount.Device{Major: m.Major, Minor: m.Minor}) }
	f.LVMD.SetHooks(lvmdfake.Hooks{Device: func(v *lvmdv1.Volume) {
		below := v.GetSizeBytes()
		if v.GetEncryption() == names.EncryptionLUKS {
			below += luks.HeaderBytes
		}
		f.Mounts.AddNode(v.GetDevicePath(), mount.Device{Major: v.GetDeviceMajor(), Minor: v.GetDeviceMinor()}, below)
		f.FileSystems.Set(v.GetDevicePath(), filesystem.Info{Type: filesystem.Type(v.GetFsType()), UUID: v.GetFsUuid(), SizeBytes: v.GetSizeBytes(),
			Journal: v.GetFsType() == string(filesystem.Ext4)})
	}})
	f.Machine = NewMachine(t, f.LVMD, f.Mounts, f.FileSystems, f.LUKS)
	return f
}

// LVMDSocket is the socket of the machine's lvmd.
func (m *Machine) LVMDSocket() string { return filepath.Join(m.Dir, "lvmd.sock") }

// CSISocket is the plugin's CSI socket.
func (m *Machine) CSISocket() string { return filepath.Join(m.Dir, "csi.sock") }

// RegistrationSocket is the plugin's registration socket.
func (m *Machine) RegistrationSocket() string {
	return filepath.Join(m.registrationDir(), "carve.csi.local-reg.sock")
}

func (m *Machine) registrationDir() string { return filepath.Join(m.Dir, "registry") }

// StartLVMD starts the lvmd again after StopLVMD.
func (m *Machine) StartLVMD() {
	m.t.Helper()
	listener := must.Get(net.Listen("unix", m.LVMDSocket()))(m.t)
	server, served := grpc.NewServer(), make(chan struct{})
	lvmdv1.RegisterLVMDServer(server, m.LVMD)
	go func() {
		defer close(served)
		_ = server.Serve(listener)
	}()
	m.stopLVMD = sync.OnceFunc(func() {
		server.Stop()
		<-served
	})
}

// StopLVMD stops the lvmd if it runs. The volumes stay.
func (m *Machine) StopLVMD() { m.stopLVMD() }

// Path returns a path below the kubelet's directory and creates its parent.
func (m *Machine) Path(elements ...string) string {
	m.t.Helper()
	path := filepath.Join(append([]string{m.KubeletDir}, elements...)...)
	must.Succeed(m.t, os.MkdirAll(filepath.Dir(path), 0o750))
	return path
}

// MakeDir creates a directory below the kubelet's and returns its path.
func (m *Machine) MakeDir(elements ...string) string {
	m.t.Helper()
	path := m.Path(elements...)
	// Not MkdirAll: it would stat the path, which may be a dead mount.
	if err := os.Mkdir(path, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
		m.t.Fatal(err)
	}
	return path
}

// Plugin is one run of the node plugin on a machine.
type Plugin struct {
	csi.NodeClient
	csi.IdentityClient
	Registration *driver.Registration
	Metrics      *driver.Metrics
	// The node service's methods.
	Sweep           func(context.Context)
	CheckHealth     func(context.Context, driver.Conditions) driver.Conditions
	RequestIOLimits func(context.Context)
	ReclaimInline   func(context.Context, inline.Abandoned, time.Time) inline.Abandoned

	stop func() error
}

// Start starts a plugin and stops it at the end of the test at the latest.
func (m *Machine) Start() *Plugin {
	m.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	lvmd, err := driver.DialLVMD(m.LVMDSocket())
	if err != nil {
		m.t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(m.Log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	metrics := driver.NewMetrics()
	registration := driver.NewRegistration(m.CSISocket(), metrics, log)
	node, err := driver.New(ctx, driver.Options{
		NodeName: NodeName, KubeletDir: m.KubeletDir, LVMD: lvmdv1.NewLVMDClient(lvmd),
		Mounts: m.Mounts, FileSystems: m.FileSystems, LUKS: m.LUKS, Metrics: metrics, Log: log, InlineVolumes: m.InlineVolumes, InlineMaxBytes: m.InlineMaxBytes, CheckMemory: m.CheckMemory, MaxVolumes: m.MaxVolumes, SmallestVolume: m.SmallestVolume, IOLimits: m.IOLimits,
		Registration: registration,
	})
	if err != nil {
		m.t.Fatal(err)
	}
	ready := func(ctx context.Context) error { return driver.LVMDAnswers(ctx, lvmd) }
	var identity csi.IdentityServer = driver.NewIdentity("test", ready)
	if m.Controller {
		identity = WithController{identity}
	}
	served := make(chan error, 1)
	go func() {
		served <- driver.Plugin{
			CSISocket: m.CSISocket(), RegistrationDir: m.registrationDir(),
			Identity: identity, Node: node,
			Registration: registration, Metrics: metrics, Log: log,
		}.Serve(ctx)
	}()
	conn, err := grpc.NewClient("unix:"+m.CSISocket(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)),
		// The plugin may not listen yet.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: time.Millisecond, Multiplier: 2, MaxDelay: 20 * time.Millisecond},
			MinConnectTimeout: 10 * time.Second,
		}))
	if err != nil {
		m.t.Fatal(err)
	}
	p := &Plugin{
		NodeClient: csi.NewNodeClient(conn), IdentityClient: csi.NewIdentityClient(conn),
		Registration: registration, Metrics: metrics, Sweep: node.Sweep, CheckHealth: node.CheckHealth,
		ReclaimInline: node.ReclaimInline, RequestIOLimits: node.RequestIOLimits,
	}
	p.stop = sync.OnceValue(func() error {
		cancel()
		_, _ = conn.Close(), lvmd.Close()
		return <-served
	})
	m.t.Cleanup(func() { p.Stop(m.t) })
	return p
}

// Stop stops the plugin. It fails the test if that takes too long or returns an
// error.
func (p *Plugin) Stop(t testing.TB) {
	t.Helper()
	begin := time.Now()
	if err := p.stop(); err != nil {
		t.Errorf("the plugin ended with %v", err)
	}
	if took := time.Since(begin); took > waittest.Limit {
		t.Errorf("the plugin took %v to stop", took)
	}
}

// Buffer is a bytes.Buffer for concurrent use.
type Buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

// String returns everything written.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// Reset empties the buffer.
func (b *Buffer) Reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.b.Reset()
}
