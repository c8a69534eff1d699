//go:build kernel

package driver_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/driver"
	"github.com/carve-csi/carve/pkg/driver/drivertest"
	"github.com/carve-csi/carve/pkg/driver/mount"
	"github.com/carve-csi/carve/pkg/must"
)

const crashEnv = "CARVE_TEST_CRASHING_PLUGIN"

// Files in the machine's directory: crashFile has the point at which to kill
// the plugin, crashedFile the point reached, effectsFile the number of effects
// of a tool that ran to its end.
const (
	crashFile   = "crash"
	crashedFile = "crashed"
	effectsFile = "effects"
)

const answered = "answer"

// crashPoint is where a plugin gets SIGKILL: in a call, before the named effect
// or the answer. If tool is set, it is before the tool's numbered system call
// that changes anything, and the tool is killed at the same moment.
type crashPoint struct {
	call, effect string
	tool         string
	number       int
}

func (c crashPoint) String() string {
	if c.tool != "" {
		return fmt.Sprintf("%s %s %d", c.call, c.tool, c.number)
	}
	return c.call + " " + c.effect
}

type crasher struct {
	dir, point string
	// The call being served and its effects so far. Calls come one at a time.
	call    string
	reached []string
}

func (c *crasher) reach(effect string) {
	if point := c.call + " " + effect; point == c.point {
		crash(c.dir, point+": "+strings.Join(c.reached, " "), os.Getpid())
		select {}
	}
	c.reached = append(c.reached, effect)
}

func crash(dir, note string, pid int) {
	if err := os.WriteFile(filepath.Join(dir, crashedFile), []byte(note), 0o600); err != nil {
		fmt.Fprintln(os.Stderr, "crash:", err)
		return
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
}

// step implements stepper. An unmount also has a point after it, when the path
// is removed.
func (c *crasher) step(name string, do func() error) error {
	c.reach(name)
	err := do()
	if name == "unmount" {
		c.reach("unmounted")
	}
	return err
}

type crashingNode struct {
	csi.NodeServer
	*crasher
}

func (n crashingNode) begin(call string) (end func()) {
	n.call, n.reached = call, nil
	return func() { n.reach(answered) }
}

func (n crashingNode) NodeStageVolume(ctx context.Context, r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	defer n.begin("stage")()
	return n.NodeServer.NodeStageVolume(ctx, r)
}

func (n crashingNode) NodePublishVolume(ctx context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	defer n.begin("publish")()
	return n.NodeServer.NodePublishVolume(ctx, r)
}

func (n crashingNode) NodeExpandVolume(ctx context.Context, r *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	defer n.begin("expand")()
	return n.NodeServer.NodeExpandVolume(ctx, r)
}

func (n crashingNode) NodeUnpublishVolume(ctx context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	defer n.begin("unpublish")()
	return n.NodeServer.NodeUnpublishVolume(ctx, r)
}

func (n crashingNode) NodeUnstageVolume(ctx context.Context, r *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	defer n.begin("unstage")()
	return n.NodeServer.NodeUnstageVolume(ctx, r)
}

// beCrashingPlugin assembles the node plugin as cmd/node does, with the crasher
// around its dependencies.
func beCrashingPlugin(dir string) error {
	point, err := os.ReadFile(filepath.Join(dir, crashFile))
	if err != nil {
		return err
	}
	conn, err := driver.DialLVMD(filepath.Join(dir, "lvmd.sock"))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, kubelet := context.Background(), filepath.Join(dir, "kubelet")
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	metrics := driver.NewMetrics()
	c := &crasher{dir: dir, point: string(point)}
	node, err := driver.New(ctx, driver.Options{
		NodeName: drivertest.NodeName, KubeletDir: kubelet, LVMD: lvmdv1.NewLVMDClient(conn),
		Mounts:      crashingMounts{mount.System{Trusted: kubelet}, c},
		FileSystems: crashingFileSystems{driver.SystemFileSystems{}, c},
		LUKS:        crashingLUKS{drivertest.Cryptsetup(), c},
		Metrics:     metrics, Log: log,
	})
	if err != nil {
		return err
	}
	node.Sweep(ctx)
	return driver.Plugin{
		CSISocket: filepath.Join(dir, "csi.sock"), Node: crashingNode{node, c}, Metrics: metrics, Log: log,
		Identity:     driver.NewIdentity("test", func(ctx context.Context) error { return driver.LVMDAnswers(ctx, conn) }),
		Registration: driver.NewRegistration("", metrics, log),
	}.Serve(ctx)
}

type pluginProcess struct {
	*drivertest.Plugin
	cmd    *exec.Cmd
	conn   *grpc.ClientConn
	exited chan struct{}
}

// launch starts a plugin whose working directory is the machine's.
func launch(t testing.TB, m *drivertest.Machine, cmd *exec.Cmd) *pluginProcess {
	t.Helper()
	cmd.Dir, cmd.Stdout, cmd.Stderr = m.Dir, m.Log, m.Log
	must.Succeed(t, cmd.Start())
	p := &pluginProcess{cmd: cmd, exited: make(chan struct{})}
	go func() {
		defer close(p.exited)
		_ = cmd.Wait()
	}()
	var err error
	p.conn, err = grpc.NewClient("unix:"+m.CSISocket(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 5 * time.Millisecond, Multiplier: 2, MaxDelay: 50 * time.Millisecond},
			MinConnectTimeout: 10 * time.Second,
		}))
	t.Cleanup(func() { p.end(t) })
	if err != nil {
		t.Fatal(err)
	}
	p.Plugin = &drivertest.Plugin{NodeClient: csi.NewNodeClient(p.conn), IdentityClient: csi.NewIdentityClient(p.conn)}
	return p
}

func (p *pluginProcess) end(t testing.TB) {
	t.Helper()
	_ = p.cmd.Process.Kill()
	select {
	case <-p.exited:
	case <-time.After(time.Minute):
		t.Error("a plugin that was killed goes on")
	}
	if p.conn != nil {
		_ = p.conn.Close()
	}
}

func launchCrashing(t testing.TB, m *drivertest.Machine, point crashPoint) *pluginProcess {
	t.Helper()
	must.Succeed(t, os.WriteFile(filepath.Join(m.Dir, crashFile), []byte(point.String()), 0o600))
	for _, file := range []string{crashedFile, effectsFile} {
		must.Succeed(t, os.RemoveAll(filepath.Join(m.Dir, file)))
	}
	self := must.Get(os.Executable())(t)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), crashEnv+"="+m.Dir, "PATH="+standIns(t, m)+":"+os.Getenv("PATH"))
	return launch(t, m, cmd)
}

func launchReal(t testing.TB, m *drivertest.Machine) *pluginProcess {
	t.Helper()
	return launch(t, m, exec.Command("carve-node", "--node-name="+drivertest.NodeName, "--kubelet-dir="+m.KubeletDir,
		"--csi-socket="+m.CSISocket(), "--registration-dir="+filepath.Dir(m.RegistrationSocket()),
		"--lvmd-socket="+m.LVMDSocket(), "--ops-listen="))
}

// wantCrashed waits for the plugin's end and checks that it was killed at the
// point, in a call that returned an error. It returns the effects of the call
// before that.
func (p *pluginProcess) wantCrashed(t testing.TB, m *drivertest.Machine, point crashPoint, err error) (effects []string) {
	t.Helper()
	select {
	case <-p.exited:
	case <-time.After(time.Minute):
		t.Fatalf("a plugin that was to be killed at %q goes on, and returned %v", point, err)
	}
	note, err := os.ReadFile(filepath.Join(m.Dir, crashedFile))
	at, reached, _ := strings.Cut(string(note), ": ")
	if err != nil || at != point.String() {
		t.Fatalf("the plugin was killed at %q, error %v, want %q", at, err, point)
	}
	status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !ok || !status.Signaled() || status.Signal() != syscall.SIGKILL {
		t.Fatalf("the plugin ended with %v, want SIGKILL", p.cmd.ProcessState)
	}
	return strings.Fields(reached)
}

var tools = []string{"cryptsetup", "mkfs.ext4", "mkfs.xfs", "xfs_growfs"}

// standIns makes a directory of programs that run the real tools under a
// tracer, see beTool.
func standIns(t testing.TB, m *drivertest.Machine) string {
	t.Helper()
	dir := filepath.Join(m.Dir, "tools")
	if _, err := os.Stat(dir); err == nil {
		return dir
	}
	self, err := os.Executable()
	if err == nil {
		err = os.Mkdir(dir, 0o700)
	}
	for _, tool := range tools {
		if err == nil {
			err = os.Symlink(self, filepath.Join(dir, tool))
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// toolName names a tool's action; for cryptsetup that includes its first
// argument.
func toolName(args []string) string {
	name := filepath.Base(args[0])
	if name == "cryptsetup" && len(args) > 1 {
		name += "-" + args[1]
	}
	return name
}
