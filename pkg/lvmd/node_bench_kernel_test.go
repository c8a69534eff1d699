//go:build kernel

package lvmd_test

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

const (
	// restarts is per agent.
	idleVolumes, restarts = 100, 5
	busyBytes             = 16 << 20
)

// BenchmarkNode compares a node with few and with many mounted volumes. Each result is divided
// by the time to start a program measured beside it, which cancels most other load, and then by
// the result for the first number of volumes. CARVE_BENCH_VOLUMES lists the numbers, instead of
// "10,100,500"; CARVE_BENCH_IDLE is the time to watch the idle node, instead of two minutes.
func BenchmarkNode(b *testing.B) {
	idle := must.Get(time.ParseDuration(cmp.Or(os.Getenv("CARVE_BENCH_IDLE"), "2m")))(b)
	sizes := strings.Split(cmp.Or(os.Getenv("CARVE_BENCH_VOLUMES"), "10,100,500"), ",")
	n := newBusyNode(b)
	defer n.stop()
	for b.Loop() {
		first := map[string]float64{}
		for _, text := range sizes {
			n.use(must.Get(strconv.Atoi(text))(b))
			suffix := fmt.Sprintf("/%d-volumes", len(n.volumes))
			report := func(value float64, unit string) { b.ReportMetric(value, unit+suffix) }
			took := n.measure()
			n.reportMemory(b, report)
			n.byHand(took)
			n.restart(took)
			start := quantile(took["program"], 50)
			report(1000*start, "program-ms")
			for what, all := range took {
				now := quantile(all, 50)
				report(1000*now, what+"-ms")
				first[what] = cmp.Or(first[what], now/start)
				report(now/start/first[what], what+"-ratio")
			}
			if len(n.volumes) == idleVolumes {
				n.reportIdle(b, idle)
			}
		}
	}
	b.ReportMetric(0, "ns/op")
}

type busyNode struct {
	*node
	lvmd    *process
	metrics func() map[string]float64
	plugin  *exec.Cmd
	csi     csi.NodeClient
	kubelet string
	volumes []*lvmdv1.Volume
}

func newBusyNode(b *testing.B) *busyNode {
	b.Helper()
	n := &busyNode{node: newLargeNode(b)}
	n.kubelet = filepath.Join(n.dir, "kubelet")
	must.Succeed(b, os.MkdirAll(filepath.Join(n.kubelet, "plugins/kubernetes.io/csi"), 0o750))
	must.Succeed(b, unix.Mount(n.kubelet, n.kubelet, "", unix.MS_BIND, ""))
	b.Cleanup(func() { must.Succeed(b, unix.Unmount(n.kubelet, 0)) })
	must.Succeed(b, unix.Mount("", n.kubelet, "", unix.MS_SHARED, ""))
	n.lvmd, n.metrics = n.startMeasured()
	socket := "unix:" + filepath.Join(n.dir, "csi.sock")
	conn := must.Get(grpc.NewClient(socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		// With gRPC's default backoff, a start would seem to take one second, or three.
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1, MaxDelay: 20 * time.Millisecond}}),
	))(b)
	n.csi = csi.NewNodeClient(conn)
	n.startPlugin()
	b.Cleanup(func() { conn.Close() })
	return n
}

func (n *busyNode) stop() {
	n.t.Helper()
	for _, v := range n.volumes {
		if v != nil {
			n.unmount(v)
		}
	}
	n.stopPlugin()
	must.Succeed(n.t, n.lvmd.stop())
}

func (n *busyNode) startPlugin() {
	n.t.Helper()
	log := &output{}
	n.plugin = exec.Command("carve-node", "--node-name=node", "--kubelet-dir="+n.kubelet, "--registration-dir=", "--ops-listen=",
		"--csi-socket="+filepath.Join(n.dir, "csi.sock"), "--lvmd-socket="+filepath.Join(n.dir, "lvmd.sock"))
	n.plugin.Stdout, n.plugin.Stderr = log, log
	must.Succeed(n.t, n.plugin.Start())
	waittest.Until(n.t, "the node plugin serves", func() bool {
		_, err := n.csi.NodeGetInfo(n.t.Context(), &csi.NodeGetInfoRequest{})
		return err == nil
	}, func() any { return log })
}

func (n *busyNode) stopPlugin() {
	n.t.Helper()
	must.Succeed(n.t, n.plugin.Process.Signal(syscall.SIGTERM))
	must.Succeed(n.t, n.plugin.Wait())
}

// use counts existing volumes.
func (n *busyNode) use(volumes int) {
	n.t.Helper()
	had := len(n.volumes)
	n.volumes = append(n.volumes, make([]*lvmdv1.Volume, volumes-had)...)
	concurrently(batch, volumes-had, func(i int) {
		v := n.lvmd.create(create(fmt.Sprintf("held-%d", had+i), busyBytes, "ext4"))
		n.prepare(v)
		n.mount(v)
		n.volumes[had+i] = v
	})
}

func (n *busyNode) staging(v *lvmdv1.Volume) string {
	return filepath.Join(n.kubelet, "plugins/kubernetes.io/csi/carve.csi.local", v.GetId(), "globalmount")
}

func (n *busyNode) target(v *lvmdv1.Volume) string {
	return filepath.Join(n.kubelet, "pods", v.GetName(), "volumes/kubernetes.io~csi", v.GetId(), "mount")
}

// prepare acts as the kubelet does before a mount.
func (n *busyNode) prepare(v *lvmdv1.Volume) {
	n.t.Helper()
	for _, path := range []string{n.staging(v), n.target(v)} {
		must.Succeed(n.t, os.MkdirAll(filepath.Dir(path), 0o750))
		must.Succeed(n.t, os.WriteFile(filepath.Join(filepath.Dir(path), "vol_data.json"), []byte("{}"), 0o600))
	}
	must.Succeed(n.t, os.MkdirAll(n.staging(v), 0o750))
}

func (n *busyNode) mount(v *lvmdv1.Volume) {
	n.t.Helper()
	access := &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
	}
	must.Get(n.csi.NodeStageVolume(n.t.Context(), &csi.NodeStageVolumeRequest{
		VolumeId: v.GetId(), StagingTargetPath: n.staging(v), VolumeCapability: access}))(n.t)
	must.Get(n.csi.NodePublishVolume(n.t.Context(), &csi.NodePublishVolumeRequest{
		VolumeId: v.GetId(), StagingTargetPath: n.staging(v), TargetPath: n.target(v), VolumeCapability: access}))(n.t)
}

func (n *busyNode) unmount(v *lvmdv1.Volume) {
	n.t.Helper()
	ctx := n.t.Context()
	must.Get(n.csi.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: v.GetId(), TargetPath: n.target(v)}))(n.t)
	must.Get(n.csi.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: v.GetId(), StagingTargetPath: n.staging(v)}))(n.t)
}

func (n *busyNode) measure() (took map[string][]time.Duration) {
	n.t.Helper()
	took = map[string][]time.Duration{}
	note := func(what string, f func()) { took[what] = append(took[what], timed(f)) }
	free := n.lvmd.freeSpace()
	for i := range batch {
		note("program", func() { lvmByHand(n.t, "version") })
		var v *lvmdv1.Volume
		note("create", func() { v = n.lvmd.create(create(fmt.Sprintf("bench-%d", i), busyBytes, "ext4")) })
		n.prepare(v)
		note("publish", func() { n.mount(v) })
		for k := range reads {
			some := n.volumes[k*len(n.volumes)/reads]
			request := &csi.NodeGetVolumeStatsRequest{VolumeId: some.GetId(), VolumePath: n.target(some)}
			note("stats", func() { must.Get(n.csi.NodeGetVolumeStats(n.t.Context(), request))(n.t) })
		}
		n.unmount(v)
		n.lvmd.delete(v.GetId())
		waittest.Until(n.t, "all is free", func() bool { return n.lvmd.freeSpace() == free })
	}
	return took
}

// byHand must not run beside a measurement: its commands make lvmd scan the group.
func (n *busyNode) byHand(took map[string][]time.Duration) {
	n.t.Helper()
	for range batch {
		took["lvcreate"] = append(took["lvcreate"], timed(func() {
			lvmByHand(n.t, "lvcreate", "--yes", "--size", strconv.Itoa(busyBytes)+"b", "--name", "hand", n.group)
		}))
		lvmByHand(n.t, "lvremove", "--yes", n.group+"/hand")
	}
}

// restart times lvmd until it lists all volumes, the node plugin until it serves.
func (n *busyNode) restart(took map[string][]time.Duration) {
	n.t.Helper()
	for range restarts {
		must.Succeed(n.t, n.lvmd.stop())
		took["lvmd-start"] = append(took["lvmd-start"], timed(func() {
			n.lvmd, n.metrics = n.startMeasured()
			r := must.Get(n.lvmd.client.ListVolumes(n.t.Context(), &lvmdv1.ListVolumesRequest{}))(n.t)
			if len(r.GetVolumes()) != len(n.volumes) {
				n.t.Fatalf("%d volumes are listed, want %d", len(r.GetVolumes()), len(n.volumes))
			}
		}))
		n.stopPlugin()
		took["plugin-start"] = append(took["plugin-start"], timed(n.startPlugin))
	}
}

func (n *busyNode) reportMemory(b *testing.B, report func(float64, string)) {
	b.Helper()
	pid := n.lvmd.cmd.Process.Pid
	daemon, plugin, lvm := memory(b, pid, "VmRSS"), memory(b, n.plugin.Process.Pid, "VmRSS"), 0.0
	for _, child := range children(b, pid) {
		lvm += memory(b, child, "VmRSS")
	}
	report(daemon, "lvmd-MiB")
	report(lvm, "lvm-MiB")
	report(plugin, "plugin-MiB")
	report(daemon+lvm+plugin, "all-MiB")
}

// reportIdle counts reads of the group's disks by any program.
func (n *busyNode) reportIdle(b *testing.B, idle time.Duration) {
	b.Helper()
	commands, before := n.commands(), diskReads(b)
	time.Sleep(idle)
	after := diskReads(b)
	b.ReportMetric(n.commands()-commands, "idle-commands")
	b.ReportMetric((after.count-before.count)/idle.Minutes(), "idle-reads/min")
	b.ReportMetric((after.sectors-before.sectors)/2/idle.Minutes(), "idle-KiB-read/min")
}

func (n *busyNode) commands() (sum float64) {
	for name, value := range n.metrics() {
		if strings.HasSuffix(name, " count") {
			sum += value
		}
	}
	return sum
}

func diskReads(b *testing.B) (sum struct{ count, sectors float64 }) {
	b.Helper()
	for _, disk := range []string{"vdb", "vdc"} {
		fields := strings.Fields(string(must.Get(os.ReadFile("/sys/class/block/" + disk + "/stat"))(b)))
		sum.count += must.Get(strconv.ParseFloat(fields[0], 64))(b)
		sum.sectors += must.Get(strconv.ParseFloat(fields[2], 64))(b)
	}
	return sum
}
