//go:build kernel

package lvmd_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvmd"
	"github.com/carve-csi/carve/pkg/lvmd/journal"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// TestMain makes the test binary stand in for lvm, see hangable and killCommand, and for
// crashing-lvmd, see crashing.
func TestMain(m *testing.M) {
	// A process must be traced from one thread.
	runtime.LockOSThread()
	switch filepath.Base(os.Args[0]) {
	case "crashing-lvmd":
		fmt.Fprintln(os.Stderr, crashing(os.Args[1], os.Args[2], os.Args[3]))
		os.Exit(1)
	case "thin_check", "cache_check":
		beCheck()
		os.Exit(1)
	case "lvm":
		beLVM(filepath.Dir(os.Args[0]))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func beLVM(dir string) {
	for _, err := os.Stat(filepath.Join(dir, "hang")); err == nil; {
		time.Sleep(100 * time.Millisecond)
		_, err = os.Stat(filepath.Join(dir, "hang"))
	}
	if _, err := os.Stat(filepath.Join(dir, "babble")); err == nil {
		line := []byte(strings.Repeat("  WARNING: a lot to warn of. ", 30) + "\n")
		for written := 0; written < 1<<20; written += len(line) {
			os.Stderr.Write(line)
		}
	}
	if word, err := os.ReadFile(filepath.Join(dir, "refuse")); err == nil && slices.Contains(os.Args, string(word)) {
		f, err := os.OpenFile(filepath.Join(dir, "refused"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		if err == nil {
			_, err = f.Write(append(word, '\n'))
		}
		fmt.Fprintln(os.Stderr, "refused", err)
		os.Exit(5)
	}
	if killCommand(dir) {
		return
	}
	if len(os.Args) == 1 {
		killLasting(dir)
	}
	if more, err := os.ReadFile(filepath.Join(dir, "config")); err == nil {
		if i := slices.Index(os.Args, "--config"); i >= 0 {
			os.Args[i+1] = string(more) + " " + os.Args[i+1] // The last one counts.
		}
	}
	path, err := exec.LookPath("lvm")
	if err == nil {
		err = syscall.Exec(path, os.Args, os.Environ())
	}
	fmt.Fprintln(os.Stderr, err)
}

func (n *node) hangable() (file string) {
	n.t.Helper()
	n.standIn()
	return filepath.Join(n.dir, "hang")
}

func (n *node) standIn() {
	n.t.Helper()
	self, err := os.Executable()
	if err == nil {
		n.lvm = filepath.Join(n.dir, "lvm")
		err = os.Symlink(self, n.lvm)
	}
	if err != nil {
		n.t.Fatal(err)
	}
}

const waitTimeout = 2 * time.Minute

func byHand(t testing.TB, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	// Without this, dmsetup leaves device nodes to udev, which does not run.
	cmd.Env = append(os.Environ(), "DM_DISABLE_UDEV=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

const handConfig = "activation { udev_sync=0 udev_rules=0 monitoring=0 } devices { scan_lvs=0 use_devicesfile=0 obtain_device_list_from_udev=0 } backup { backup=0 archive=0 }"

func lvmByHand(t testing.TB, args ...string) string {
	t.Helper()
	return byHand(t, "lvm", append(args, "--config", handConfig)...)
}

type node struct {
	t      testing.TB
	group  string
	dir    string
	config string
	// keeps names the machine's own volumes, such as a thin pool.
	keeps []string
	debug bool
	flags []string
	// lvm is empty for the real one. Each command gets its own process unless lasting is set.
	lvm     string
	lasting bool
	// programs is a folder that precedes PATH, if not empty.
	programs string
	// timeout zero means lvmd's default.
	timeout     time.Duration
	poolTimeout time.Duration
}

// newNode uses /dev/vdb by default. The test's end removes the group and the volumes that lvmd
// has a record of.
func newNode(t testing.TB, devices ...string) *node {
	t.Helper()
	if len(devices) == 0 {
		devices = []string{"/dev/vdb"}
	}
	sweep(t)
	n := &node{t: t, group: "carve", dir: t.TempDir()}
	lvmByHand(t, append([]string{"vgcreate", "--yes", n.group}, devices...)...)
	takeAway(t, func() {
		if !t.Failed() {
			n.wantRecords()
		}
		lvmByHand(t, "vgremove", "--yes", "--force", "--force", n.group)
		lvmByHand(t, append([]string{"pvremove", "--yes"}, devices...)...)
	})
	n.config = "- {name: local, default: true, volumeGroup: carve}\n"
	return n
}

// wantRecords expects lvmd to have ended. It would never remove volumes without a record.
func (n *node) wantRecords() {
	n.t.Helper()
	if _, err := os.Stat(n.journalFile()); err != nil {
		return // No lvmd has run.
	}
	records := n.records()
	tagged := lvmByHand(n.t, "lvs", "--noheadings", "--options", "lv_name", "--select", "lv_tags="+spec.TagMarker+" && segtype!=thin-pool", n.group)
	for name := range strings.FieldsSeq(tagged) {
		if _, ok := records[name]; !ok {
			n.t.Errorf("left behind: volume %s/%s, which the journal does not have", n.group, name)
		}
	}
}

func (n *node) journalFile() string { return filepath.Join(n.dir, "state", "journal.db") }

func (n *node) records() map[string]spec.Record {
	n.t.Helper()
	j, _, _, err := journal.Open(n.journalFile())
	must.Succeed(n.t, err)
	defer j.Close()
	return must.Get(j.Volumes())(n.t)
}

type process struct {
	*node
	cmd    *exec.Cmd
	exited chan error
	log    *output
	conn   *grpc.ClientConn
	client lvmdv1.LVMDClient
}

type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

func (n *node) writeConfig() (file string) {
	file = filepath.Join(n.dir, "lvmd.yaml")
	contents := "apiVersion: carve.csi.local/v1\nkind: LvmdConfig\ndeviceClasses:\n" + n.config
	must.Succeed(n.t, os.WriteFile(file, []byte(contents), 0o600))
	return file
}

func (n *node) command() *exec.Cmd {
	args := []string{
		"--config", n.writeConfig(), "--socket", filepath.Join(n.dir, "lvmd.sock"), "--state-dir", filepath.Join(n.dir, "state"),
		"--controller=", "--ops-listen=",
	}
	if n.debug {
		args = append(args, "--log-level=debug")
	}
	if n.lvm != "" {
		args = append(args, "--lvm", n.lvm, "--lvm-lasting="+strconv.FormatBool(n.lasting))
	}
	if n.timeout != 0 {
		args = append(args, "--lvm-timeout", n.timeout.String())
	}
	if n.poolTimeout != 0 {
		args = append(args, "--pool-activation-timeout", n.poolTimeout.String())
	}
	cmd := exec.Command("carve-lvmd", append(args, n.flags...)...)
	if n.programs != "" {
		cmd.Env = append(os.Environ(), "PATH="+n.programs+":"+os.Getenv("PATH"))
	}
	return cmd
}

func (n *node) start() *process {
	n.t.Helper()
	_ = os.Remove(filepath.Join(n.dir, "crashed"))
	return n.launch(n.command())
}

func (n *node) launch(cmd *exec.Cmd) *process {
	n.t.Helper()
	return n.launchUntil(cmd, (*process).serving)
}

func (n *node) launchUntil(cmd *exec.Cmd, serves func(*process) bool) *process {
	n.t.Helper()
	p := &process{node: n, cmd: cmd, exited: make(chan error, 1), log: &output{}}
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	must.Succeed(n.t, p.cmd.Start())
	go func() { p.exited <- p.cmd.Wait() }()
	n.t.Cleanup(func() {
		p.kill()
		if n.t.Failed() {
			n.t.Logf("lvmd's log:\n%s", p.log)
		}
	})
	var err error
	p.conn, err = lvmd.Dial(filepath.Join(n.dir, "lvmd.sock"))
	if err != nil {
		n.t.Fatal(err)
	}
	p.client = lvmdv1.NewLVMDClient(p.conn)
	waittest.Until(n.t, "lvmd serves", func() bool {
		select {
		case err := <-p.exited:
			p.exited <- err
			if n.read("crashed") != "" {
				return true // as intended
			}
			n.t.Fatalf("lvmd ended: %v\n%s", err, p.log)
		default:
		}
		return serves(p)
	})
	return p
}

func (p *process) serving() bool {
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	r, err := healthpb.NewHealthClient(p.conn).Check(ctx, &healthpb.HealthCheckRequest{})
	return err == nil && r.GetStatus() == healthpb.HealthCheckResponse_SERVING
}

func (p *process) kill() {
	p.conn.Close()
	p.cmd.Process.Kill()
	err := <-p.exited
	p.exited <- err
}

func (p *process) stop() error {
	p.t.Helper()
	must.Succeed(p.t, p.cmd.Process.Signal(syscall.SIGTERM))
	waittest.Until(p.t, "lvmd ended when it was asked to stop", func() bool { return p.hasEnded(time.Millisecond) })
	err := <-p.exited
	p.exited <- err
	p.conn.Close()
	return err
}

func create(name string, bytes int64, fs string) *lvmdv1.CreateVolumeRequest {
	r := &lvmdv1.CreateVolumeRequest{
		Name: name, RequiredBytes: bytes, Mode: lvmdv1.VolumeMode_VOLUME_MODE_BLOCK,
		Owner: &lvmdv1.Owner{ClusterId: "cluster", ClaimNamespace: "ns", ClaimName: name},
	}
	if fs != "" {
		r.Mode, r.FsType = lvmdv1.VolumeMode_VOLUME_MODE_FILESYSTEM, fs
	}
	return r
}

func (p *process) create(r *lvmdv1.CreateVolumeRequest) *lvmdv1.Volume {
	p.t.Helper()
	resp, err := p.client.CreateVolume(p.t.Context(), r)
	if err != nil {
		p.t.Fatalf("create %s: %v", r.GetName(), err)
	}
	return resp.GetVolume()
}

func (p *process) delete(id string) {
	p.t.Helper()
	if _, err := p.client.DeleteVolume(p.t.Context(), &lvmdv1.DeleteVolumeRequest{Id: id}); err != nil {
		p.t.Fatalf("delete %s: %v", id, err)
	}
}

func (p *process) state() *lvmdv1.WatchResponse {
	p.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	w := must.Get(p.client.Watch(ctx, &lvmdv1.WatchRequest{}))(p.t)
	r := must.Get(w.Recv())(p.t)
	return r
}

func (p *process) available() int64 { return p.state().GetClasses()[0].GetAvailableBytes() }

func mount(t testing.TB, v *lvmdv1.Volume) (dir string, unmount func()) {
	t.Helper()
	dir = t.TempDir()
	if err := syscall.Mount(v.GetDevicePath(), dir, v.GetFsType(), 0, ""); err != nil {
		t.Fatalf("mount %s: %v", v.GetDevicePath(), err)
	}
	mounted := true
	unmount = func() {
		if mounted {
			mounted = false
			if err := syscall.Unmount(dir, 0); err != nil {
				t.Errorf("unmount: %v", err)
			}
		}
	}
	t.Cleanup(unmount)
	return dir, unmount
}

func (n *node) waitUntagged() {
	n.t.Helper()
	waittest.Until(n.t, "the tag of volumes that are made is taken off", func() bool {
		return !strings.Contains(lvmByHand(n.t, "lvs", "--noheadings", "-o", "lv_tags", n.group), "carve.making")
	})
}

// leftovers lists the group's volumes, the kernel devices of none of them, and the nodes under
// /dev without such a device, except the volumes in keeps.
func (n *node) leftovers() []string {
	n.t.Helper()
	var left, whole []string
	for name := range strings.FieldsSeq(lvmByHand(n.t, "lvs", "--noheadings", "-o", "lv_name", n.group)) {
		whole = append(whole, n.group+"-"+strings.ReplaceAll(name, "-", "--"))
		if !slices.Contains(n.keeps, name) {
			left = append(left, name)
		}
	}
	var mapped []string
	for line := range strings.Lines(mappings(n.t, "--separator", " ", "-o", "name,uuid")) {
		device, uuid, _ := strings.Cut(strings.TrimSpace(line), " ")
		mapped = append(mapped, device)
		// Its own device or a component's.
		known := slices.ContainsFunc(whole, func(w string) bool {
			rest, ok := strings.CutPrefix(device, w)
			return ok && (rest == "" || rest[0] == '_' || rest[0] == '-')
		})
		if strings.HasPrefix(uuid, "LVM-") && strings.HasPrefix(device, n.group+"-") && !known {
			left = append(left, "device "+device)
		}
	}
	for _, pattern := range []string{"/dev/" + n.group + "/*", "/dev/mapper/" + n.group + "-*"} {
		nodes := must.Get(filepath.Glob(pattern))(n.t)
		for _, node := range nodes {
			target, err := os.Readlink(node)
			if err != nil {
				target = node // not a link
			}
			if !slices.Contains(mapped, filepath.Base(target)) {
				left = append(left, node)
			}
		}
	}
	return left
}

// mappings retries dmsetup info, which fails if a device disappears while it lists them.
func mappings(t testing.TB, options ...string) (list string) {
	t.Helper()
	waittest.Until(t, "devices are listed", func() bool {
		cmd := exec.Command("dmsetup", append([]string{"info", "--columns", "--noheadings"}, options...)...)
		out, err := cmd.CombinedOutput()
		if err != nil && !strings.Contains(string(out), "Device does not exist") {
			t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
		}
		list = string(out)
		return err == nil
	})
	return list
}
