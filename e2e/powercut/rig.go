package powercut

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/carve-csi/carve/e2e/checkout"
	"github.com/carve-csi/carve/e2e/debian"
	"github.com/carve-csi/carve/e2e/gobuild"
	"github.com/carve-csi/carve/e2e/preflight"
	"github.com/carve-csi/carve/e2e/vm"
	"github.com/carve-csi/carve/e2e/vm/guest"
	"github.com/carve-csi/carve/e2e/vm/rootfs"
	"github.com/carve-csi/carve/e2e/vm/volatile"
)

const (
	groupBytes = 1 << 30
	stateBytes = 256 << 20
	memoryMiB  = 1024
	// bootBound is how long a machine may take until lvmd serves, on a busy host.
	bootBound = 4 * time.Minute

	lvmd   = "/usr/local/bin/carve-lvmd"
	config = "apiVersion: carve.csi.local/v1\nkind: LvmdConfig\ndeviceClasses:\n" +
		"- {name: local, default: true, volumeGroup: carve}\n" +
		"- {name: mirrored, volumeGroup: carve, type: raid1}\n" +
		"- {name: thin, volumeGroup: carve, type: thin, thin: {pool: " + thinPool + ", size: 256Mi, overprovisioning: 10, dataThreshold: 100%}}\n"
	thinPool = "carve-pool"
	// withoutUdev has LVM know that there is no udevd.
	withoutUdev = "activation {\n\tudev_sync = 0\n\tudev_rules = 0\n}\ndevices {\n\tobtain_device_list_from_udev = 0\n\texternal_device_info_source = \"none\"\n}\n"
)

// rig is a machine that can be booted again and again.
type rig struct {
	config vm.Config
	// group and mirror are the volume group's disks, state the journal's.
	group, mirror, state *volatile.Disk
	machine              *vm.Machine // nil while it is off
	lost                 int         // sectors that power cuts took, of all disks
}

// newRig makes the disks in dir and builds lvmd; the machine is off.
func newRig(ctx context.Context, dir string, seed uint64, progress io.Writer) (*rig, error) {
	if err := preflight.Check(preflight.Machines(1, memoryMiB)); err != nil {
		return nil, err
	}
	if err := debian.Ensure(ctx, progress, vm.Packages...); err != nil {
		return nil, err
	}
	base, err := rootfs.Make(ctx, progress)
	if err != nil {
		return nil, err
	}
	initramfs, err := base.Initramfs(ctx)
	if err != nil {
		return nil, err
	}
	accelerator, err := vm.Probe(ctx, progress, base.Kernel, initramfs, vm.UserMode{}, true)
	if err != nil {
		return nil, err
	}
	root, err := checkout.Root()
	if err != nil {
		return nil, err
	}
	build := filepath.Join(dir, "build")
	if err := os.Mkdir(build, 0o755); err != nil {
		return nil, err
	}
	program := gobuild.Program{Name: "lvmd", Dir: root, Package: "cmd/lvmd"}
	if err := gobuild.Build(ctx, program, filepath.Join(build, "carve-lvmd")); err != nil {
		return nil, err
	}
	r := &rig{}
	// LVM writes its metadata and then the pointer to it, without a flush in between:
	// it relies on the disk to keep that order, and so does this one.
	if r.group, err = volatile.Serve(filepath.Join(dir, "group"), groupBytes, volatile.Latest, seed); err != nil {
		return nil, err
	}
	if r.mirror, err = volatile.Serve(filepath.Join(dir, "mirror"), groupBytes, volatile.Latest, seed+2); err != nil {
		return nil, errors.Join(err, r.group.Close())
	}
	if r.state, err = volatile.Serve(filepath.Join(dir, "state"), stateBytes, volatile.Any, seed+1); err != nil {
		return nil, errors.Join(err, r.group.Close(), r.mirror.Close())
	}
	r.config = vm.Config{
		Name: "carve-powercut", Dir: dir,
		Kernel: base.Kernel, Initramfs: initramfs, RootDisk: base.RootDisk,
		CPUs: accelerator.CPUs(), MemoryMiB: memoryMiB, Accelerator: accelerator,
		Disks: []vm.Disk{
			{Socket: r.group.Socket(), Serial: "group"}, {Socket: r.state.Socket(), Serial: "state"},
			{Socket: r.mirror.Socket(), Serial: "mirror"},
		},
		Shares: []vm.Share{{Tag: "build", Path: build, ReadOnly: true}},
		Guest:  guestConfig(config),
	}
	return r, nil
}

// guestConfig is the machine's, with a configuration of lvmd.
func guestConfig(lvmdConfig string) guest.Config {
	return guest.Config{
		Hostname: "powercut",
		Modules:  []string{"dm_mod", "dm_thin_pool", "dm_raid", "raid1", "9p", "9pnet_virtio"},
		Files: []guest.File{
			{Path: "/etc/lvm/lvmlocal.conf", Mode: 0o644, Content: []byte(withoutUdev)},
			{Path: "/etc/carve/lvmd.yaml", Mode: 0o644, Content: []byte(lvmdConfig)},
		},
		Steps: []guest.Step{
			{Name: "make folders", Argv: []string{"mkdir", "-p", "/run/build", "/var/lib/carve", "/run/carve"}},
			{Name: "mount the build folder", Argv: []string{"mount", "-t", "9p", "-o", "trans=virtio,version=9p2000.L,ro,cache=loose,msize=262144", "build", "/run/build"}},
			{Name: "install lvmd", Argv: []string{"install", "-m", "755", "/run/build/carve-lvmd", lvmd}},
			// The superblock is two sectors long, and is written in place: where the disk loses one of
			// them, its checksum is wrong, and ext4 mounts it no more. lvmd is tested here, not ext4.
			{Name: "make the state disk", Argv: []string{"mkfs.ext4", "-q", "-O", "^metadata_csum", "/dev/vdc"}, Unless: []string{"blkid", "/dev/vdc"}},
			{Name: "mount the state disk", Argv: []string{"mount", "/dev/vdc", "/var/lib/carve"}},
			{Name: "make the volume group", Argv: []string{"vgcreate", "--yes", "carve", "/dev/vdb", "/dev/vdd"}, Unless: []string{"vgs", "carve"}},
		},
		Services: []guest.Service{{
			Name: "lvmd", Log: "/var/log/lvmd.log", ReadyPath: "/run/carve/lvmd.sock",
			Argv: []string{lvmd, "--controller=", "--ops-listen="},
		}},
	}
}

// boot switches the machine on and waits until lvmd serves.
func (r *rig) boot(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, bootBound)
	defer cancel()
	machine, err := vm.Start(r.config)
	if err != nil {
		return err
	}
	r.machine = machine
	if err := machine.WaitReady(ctx, nil); err != nil {
		return err
	}
	for {
		_, err := r.run(ctx, lvmd, "classes")
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("lvmd does not serve: %w\n%s", err, r.log())
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// cut cuts the power, which costs the disks what was not flushed.
func (r *rig) cut() (lost string, err error) {
	r.machine.Kill()
	r.machine = nil
	var text []string
	for _, d := range []struct {
		name string
		disk *volatile.Disk
	}{{"group", r.group}, {"its other disk", r.mirror}, {"journal", r.state}} {
		lost, of, err := d.disk.Cut()
		if err != nil {
			return "", err
		}
		r.lost += lost
		text = append(text, fmt.Sprintf("%s: %d of %d unflushed sectors lost", d.name, lost, of))
	}
	return strings.Join(text, ", "), nil
}

// close ends everything.
func (r *rig) close() error {
	if r.machine != nil {
		r.machine.Kill()
	}
	return errors.Join(r.group.Close(), r.mirror.Close(), r.state.Close())
}

func (r *rig) run(ctx context.Context, argv ...string) (string, error) {
	return r.machine.Agent().Output(ctx, argv...)
}

// log is the end of what lvmd wrote since the machine was switched on.
func (r *rig) log() string {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	out, err := r.run(ctx, "tail", "-n", "40", "/var/log/lvmd.log")
	if err != nil {
		return err.Error()
	}
	return out
}

// listed is a volume or a snapshot as lvmd reports it.
type listed struct {
	ID, Name, State, DevicePath, FSType string
	// Ready is of snapshots, which have no state.
	Ready      bool
	SizeBytes  int64 `json:",string"`
	Conditions []struct{ Type, Message string }
}

// well reports whether it is as it was acknowledged. The copies of a mirrored volume
// may differ after a cut, in what was never durable; they are made alike again.
func (v listed) well() bool {
	for _, c := range v.Conditions {
		if c.Type != "OutOfSync" {
			return false
		}
	}
	return v.State == "VOLUME_STATE_READY" || v.State == "" && v.Ready
}

func (r *rig) lvmd(ctx context.Context, args ...string) ([]listed, error) {
	out, err := r.run(ctx, append([]string{lvmd}, append(args, "--json")...)...)
	if err != nil {
		return nil, err
	}
	return decode[listed](out)
}

type class struct {
	Name           string
	AvailableBytes int64 `json:",string"`
}

// freeSpace is what is available in each class.
func (r *rig) freeSpace(ctx context.Context) (map[string]int64, error) {
	out, err := r.run(ctx, lvmd, "classes", "--json")
	if err != nil {
		return nil, err
	}
	all, err := decode[class](out)
	if err != nil {
		return nil, err
	}
	free := map[string]int64{}
	for _, c := range all {
		free[c.Name] = c.AvailableBytes
	}
	return free, nil
}

// decode reads one JSON object after the other.
func decode[T any](text string) ([]T, error) {
	var all []T
	for d := json.NewDecoder(strings.NewReader(text)); ; {
		var one T
		if err := d.Decode(&one); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, fmt.Errorf("read %q: %w", text, err)
		}
		all = append(all, one)
	}
}
