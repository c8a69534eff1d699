package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"

	"github.com/carve-csi/carve/e2e/vm"
	"github.com/carve-csi/carve/e2e/vm/guest"
	"github.com/carve-csi/carve/e2e/vm/platform"
)

// modules are loaded at boot, so that tests measure and see no loading.
var modules = []string{
	"dm_mod", "dm_snapshot", "dm_thin_pool", "dm_raid", "dm_mirror", "raid0", "raid1", "raid10", "raid456",
	"dm_crypt", "dm_cache", "dm_cache_smq", "dm_writecache", "dm_flakey", "dm_delay", "dm_log_writes", "dm_zero",
	"loop", "xfs", "btrfs",
}

// hardwareModules drive what only a virtual machine has.
var hardwareModules = []string{"nd_pmem", "nd_e820", "9p", "9pnet_virtio"}

// otherKernelModules are those that a kernel of another release loads before there is a root
// disk; it finds none later.
var otherKernelModules = []string{"dm_mod", "loop", "xfs", "btrfs", "nd_pmem", "nd_e820", "9p", "9pnet_virtio"}

// bootBound is how long a machine may take to come up, on a busy host; systemdBound
// where systemd starts what it starts on any machine.
const (
	bootBound    = 3 * time.Minute
	systemdBound = 8 * time.Minute
)

// builder starts machines for the tests.
type builder struct {
	options   options
	root, dir string // the source tree; our own folder
	platform  platform.Platform
}

func newBuilder(ctx context.Context, o options, root, dir string) (*builder, error) {
	p, err := o.platform(ctx)
	if err != nil {
		return nil, err
	}
	return &builder{options: o, root: root, dir: dir, platform: p}, nil
}

// platform is what the machines boot from.
func (o options) platform(ctx context.Context) (platform.Platform, error) {
	if o.kernel != "" {
		return platform.MakeWithKernel(ctx, os.Stderr, o.kernel, otherKernelModules)
	}
	return platform.Make(ctx, os.Stderr, o.hardware())
}

// worker has a machine of its own, in a folder of its own.
type worker struct {
	*builder
	number int
	folder string
	// named has each line that is printed begin with the package's name.
	named bool
	// report is what to print at the end about the tests that failed.
	report bytes.Buffer
}

func (b *builder) worker(number int, named bool) (*worker, error) {
	folder := filepath.Join(b.dir, fmt.Sprintf("machine-%d", number))
	if err := os.Mkdir(folder, 0o755); err != nil {
		return nil, err
	}
	return &worker{builder: b, number: number, folder: folder, named: named}, nil
}

// output is where what the tests of a package print goes. The prefix distinguishes machines
// that run tests of the same package at the same time.
func (w *worker) output(p testPackage) io.Writer {
	if !w.named {
		return os.Stdout
	}
	return &prefixer{prefix: fmt.Sprintf("%s-%d: ", path.Base(p.ImportPath), w.number), out: os.Stdout}
}

// start starts a machine with new disks.
func (w *worker) start(ctx context.Context) (*vm.Machine, error) {
	var disks []vm.Disk
	for _, name := range []string{"vdb", "vdc"} {
		file := filepath.Join(w.folder, name)
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if err := vm.MakeSparse(file, int64(w.options.disk)<<30); err != nil {
			return nil, err
		}
		disks = append(disks, vm.Disk{Path: file, Serial: name, Volatile: !w.options.durable})
	}
	config := vm.Config{
		Name: "carve-vmtest", Dir: w.folder, MemoryMiB: w.options.memory, PmemMiB: w.options.pmemMiB(),
		Disks: disks, Shares: w.shares(), SELinux: w.options.selinux, Processor: w.number,
		Guest: guest.Config{
			Hostname: "vmtest", Modules: w.modules(), Files: w.files(), Steps: w.steps(), Services: w.services(), Init: w.init(),
		},
	}
	w.platform.Apply(&config)
	machine, err := vm.Start(config)
	if err != nil {
		return nil, err
	}
	bound := bootBound
	if w.options.systemd {
		bound = systemdBound
	}
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	err = machine.WaitReady(ctx, nil)
	if err == nil && w.options.systemd {
		err = waitBooted(ctx, machine.Agent())
	}
	if err != nil {
		machine.Kill()
		return nil, err
	}
	return machine, nil
}

// shares are the source tree, and what was compiled.
func (b *builder) shares() []vm.Share {
	return []vm.Share{
		{Tag: "source", Path: b.root, ReadOnly: true},
		{Tag: "build", Path: filepath.Join(b.dir, "build"), ReadOnly: true},
	}
}

// modules are those that are loaded from the root disk.
func (b *builder) modules() []string {
	if b.options.kernel != "" {
		return nil
	}
	if b.platform.Accelerator == vm.UML {
		return modules
	}
	return append(slices.Clone(modules), hardwareModules...)
}

func (b *builder) steps() []guest.Step {
	shares := b.shares()
	steps := append(shares[0].MountSteps(b.platform.Accelerator, b.root), shares[1].MountSteps(b.platform.Accelerator, buildFolder)...)
	if b.options.selinux {
		steps = append(steps, selinuxSteps...)
	}
	for _, name := range b.options.with {
		steps = append(steps, guest.Step{
			Name: "install carve-" + name,
			Argv: []string{"install", "-m", "755", filepath.Join(buildFolder, "carve-"+name), "/usr/local/bin"},
		})
	}
	return steps
}

// files has LVM know that there is no udevd, for commands typed as on a shell.
func (b *builder) files() []guest.File {
	if b.options.systemd {
		return systemdFiles
	}
	if b.options.udev {
		return nil
	}
	var files []guest.File
	if b.options.selinux {
		files = selinuxFiles
	}
	return append(files, guest.File{
		Path: "/etc/lvm/lvmlocal.conf", Mode: 0o644,
		// Without monitoring = 0, commands that tests run by hand start a dmeventd.
		Content: []byte("activation {\n\tudev_sync = 0\n\tudev_rules = 0\n\tmonitoring = 0\n}\ndevices {\n\tobtain_device_list_from_udev = 0\n\texternal_device_info_source = \"none\"\n}\n"),
	})
}

func (b *builder) services() []guest.Service {
	if !b.options.udev {
		return nil
	}
	return []guest.Service{{
		Name: "udevd", Argv: []string{"/lib/systemd/systemd-udevd"},
		Log: "/var/log/udevd.log", ReadyPath: "/run/udev/control",
	}}
}

// buildFolder is where the compiled tests lie in the machine.
const buildFolder = "/run/build"

// elapsed is for progress lines.
func elapsed(since time.Time) string { return fmt.Sprintf("%.1fs", time.Since(since).Seconds()) }
