//go:build kernel

package driver_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/driver"
	"github.com/carve-csi/carve/pkg/driver/drivertest"
	"github.com/carve-csi/carve/pkg/driver/mount"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/privilege"
	"github.com/carve-csi/carve/pkg/privilege/privilegetest"
)

// Environment of a process that acts as the plugin.
const (
	pluginDir  = "CARVE_TEST_PLUGIN_DIR"
	pluginCaps = "CARVE_TEST_PLUGIN_CAPABILITIES"
)

func TestMain(m *testing.M) {
	if slices.Contains(tools, filepath.Base(os.Args[0])) {
		os.Exit(beTool())
	}
	if dir := os.Getenv(crashEnv); dir != "" {
		fmt.Fprintln(os.Stderr, beCrashingPlugin(dir))
		os.Exit(1)
	}
	if dir := os.Getenv(pluginDir); dir != "" {
		if err := bePlugin(dir, os.Getenv(pluginCaps)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// bePlugin is a node plugin with only the given capabilities, until SIGTERM.
func bePlugin(dir, caps string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var keep []int
	for _, s := range strings.Fields(caps) {
		c, err := strconv.Atoi(s)
		if err != nil {
			return err
		}
		keep = append(keep, c)
	}
	if err := privilege.Reduce(keep...); err != nil {
		return err
	}
	if err := privilegetest.Reduced(os.Getpid(), keep); err != nil {
		return err
	}
	conn, err := driver.DialLVMD(filepath.Join(dir, "lvmd.sock"))
	if err != nil {
		return err
	}
	defer conn.Close()
	kubelet := filepath.Join(dir, "kubelet")
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	metrics := driver.NewMetrics()
	node, err := driver.New(ctx, driver.Options{
		NodeName: drivertest.NodeName, KubeletDir: kubelet, LVMD: lvmdv1.NewLVMDClient(conn),
		Mounts: mount.System{Trusted: kubelet}, FileSystems: driver.SystemFileSystems{}, LUKS: drivertest.Cryptsetup(), Metrics: metrics, Log: log,
	})
	if err != nil {
		return err
	}
	return driver.Plugin{
		CSISocket: filepath.Join(dir, "reduced.sock"), Node: node, Metrics: metrics, Log: log,
		Identity:     driver.NewIdentity("test", func(context.Context) error { return nil }),
		Registration: driver.NewRegistration("", metrics, log),
	}.Serve(ctx)
}

func TestRealReducedCapabilities(t *testing.T) {
	m := drivertest.NewRealMachine(t, "/dev/vdb", "disk")
	// On a hardened host (Yama, ptrace_scope) a process needs a capability to
	// trace another.
	const scope = "/proc/sys/kernel/yama/ptrace_scope"
	former := must.Get(os.ReadFile(scope))(t)
	must.Succeed(t, os.WriteFile(scope, []byte("2"), 0))
	defer func() { must.Succeed(t, os.WriteFile(scope, former, 0)) }()
	t.Run("all that are kept are enough", func(t *testing.T) {
		r := reducedPlugin(t, m, driver.Capabilities)
		must.Succeed(r.t, r.everything())
	})
	for i, c := range driver.Capabilities {
		t.Run(fmt.Sprintf("without capability %d it does not work", c), func(t *testing.T) {
			var fewer []int
			for j, other := range driver.Capabilities {
				if j != i {
					fewer = append(fewer, other)
				}
			}
			r := reducedPlugin(t, m, fewer)
			if err := r.everything(); err == nil {
				t.Error("it did")
			}
			points := must.Get(m.Mounts.Below(m.KubeletDir))(r.t)
			for _, p := range points {
				must.Succeed(r.t, unix.Unmount(p.Path, 0))
			}
		})
	}
}

func reducedPlugin(t *testing.T, m *drivertest.Machine, capabilities []int) *real {
	t.Helper()
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), pluginDir+"="+m.Dir, pluginCaps+"="+strings.Trim(fmt.Sprint(capabilities), "[]"))
	command.Stderr = m.Log
	must.Succeed(t, command.Start())
	conn := must.Get(grpc.NewClient("unix:"+filepath.Join(m.Dir, "reduced.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.WaitForReady(true))))(t)
	t.Cleanup(func() {
		conn.Close()
		_ = command.Process.Signal(syscall.SIGTERM)
		if err := command.Wait(); err != nil {
			t.Errorf("the plugin: %v", err)
		}
	})
	return &real{kubelet{
		Plugin: &drivertest.Plugin{NodeClient: csi.NewNodeClient(conn), IdentityClient: csi.NewIdentityClient(conn)},
		t:      t, machine: m, size: 320 * mib,
	}}
}

// everything uses all that the plugin must be able to do. It returns the first
// error and deletes its volumes.
func (r *real) everything() error {
	for _, fsType := range []string{"ext4", "xfs", "btrfs", ""} {
		if err := r.wholeCycle(fsType); err != nil {
			return fmt.Errorf("%q: %w", fsType, err)
		}
	}
	owned := r.owned(fmt.Sprint("reduced-root", time.Now().UnixNano()), "ext4")
	r.byHand(owned, givenAway)
	if err := r.wholeCycleOf(owned); err != nil {
		return fmt.Errorf("with a root of its own: %w", err)
	}
	return r.wholeCycleLUKS()
}

func (r *real) wholeCycleLUKS() error {
	if err := r.wholeCycleOf(r.locked(fmt.Sprint("reduced-luks", time.Now().UnixNano()), "ext4")); err != nil {
		return fmt.Errorf("encrypted: %w", err)
	}
	return nil
}

func (r *real) wholeCycle(fsType string) error {
	return r.wholeCycleOf(r.volume(fmt.Sprint("reduced", fsType, time.Now().UnixNano()), fsType))
}

func (r *real) wholeCycleOf(v *lvmdv1.Volume) error {
	fsType := v.GetFsType()
	defer r.deleteLater(v)
	target := r.target(v, "pod")
	if err := errors.Join(r.stage(v, access(v)), r.publish(v, "pod", access(v), false)); err != nil {
		return err
	}
	if fsType != "" {
		must.Succeed(r.t, errors.Join(os.Chown(target, 1000, 1000), os.Chmod(target, 0o700)))
		r.write(filepath.Join(target, "kept"), "content")
	}
	if _, err := r.machine.LVMD.ExpandVolume(r.ctx(), &lvmdv1.ExpandVolumeRequest{Id: v.GetId(), RequiredBytes: 2 * r.size}); err != nil {
		return err
	}
	if _, err := r.NodeExpandVolume(r.ctx(), &csi.NodeExpandVolumeRequest{
		VolumeId: v.GetId(), VolumePath: target, StagingTargetPath: r.staging(v),
	}); err != nil {
		return err
	}
	if _, err := r.NodeGetVolumeStats(r.ctx(), &csi.NodeGetVolumeStatsRequest{VolumeId: v.GetId(), VolumePath: target}); err != nil {
		return err
	}
	if fsType != "" && fsType != "btrfs" { // btrfs has no shutdown ioctl
		r.shutDown(r.staging(v))
	}
	if err := errors.Join(r.unpublish(v, "pod"), r.unstage(v)); err != nil {
		return err
	}
	// The check after a crash, then read-only.
	if err := errors.Join(r.stage(v, access(v)), r.publish(v, "pod", access(v), true)); err != nil {
		return err
	}
	if fsType != "" {
		r.wantFile(filepath.Join(target, "kept"), "content")
	}
	if _, err := r.NodeGetVolumeHealth(r.ctx(), &csi.NodeGetVolumeHealthRequest{VolumeId: v.GetId()}); err != nil {
		return err
	}
	return errors.Join(r.unpublish(v, "pod"), r.unstage(v))
}

func (r *real) deleteLater(v *lvmdv1.Volume) {
	r.t.Cleanup(func() { r.delete(v) })
}
