// Command vmtest runs Go tests that need a real kernel, as root, in a virtual
// machine made for them: see its -help.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

const long = `vmtest runs the tests of packages of the main module that carry the build tag
"kernel", as root, in a machine made for them: a virtual machine of Debian's kernel
where KVM works, or else a kernel that runs as a program (User Mode Linux). It needs
root itself, Debian packages (which it installs) and no KVM.

  go run ./cmd/vmtest ../pkg/lvm ../pkg/lvmd
  go run ./cmd/vmtest -run 'Real/linear' ../pkg/lvm
  go run ./cmd/vmtest -with lvmd,node ../pkg/lvmd

What tests find in the machine:

  /dev/vdb /dev/vdc     two empty disks (-disk-size each), no partition, no LVM
  /dev/pmem0            persistent memory of -pmem-size, fsdax: DAX mounts work; only
                        virtual machines have it, see -virtual
  device mapper         linear, snapshot, thin, raid, crypt, cache, writecache,
                        flakey, delay, log-writes; loop devices; ext4, xfs, btrfs
  arrays                of the md driver; in User Mode Linux also SCSI disks, by modprobe
                        scsi_debug, and dm-multipath over them
  no udevd              device nodes come from the kernel (devtmpfs) and from LVM
                        itself; -udev starts a udevd as on an ordinary host
  no systemd            unless -systemd has it be the machine's first process
  tools                 lvm2, dmsetup, thin-provisioning-tools, e2fsprogs, xfsprogs,
                        btrfs-progs, cryptsetup, fio, util-linux, strace
  carve-NAME            for each -with NAME, ./cmd/NAME, built static, in the PATH
  the source tree       read-only; a test starts in its package's folder, so testdata
                        is there. Write to t.TempDir(), which is memory

-virtual, -selinux, -durable and -kernel ask for a virtual machine, which is emulated
where there is no KVM: a forked command costs twenty times what it costs on the host.
Tests assert ratios or orders, never absolute times.

Without -run and -bench, only the tests in files of that build tag run: the others
run anywhere. With -virtual, -selinux or -kernel only those
run whose tag is that (oldkernel for -kernel). With -kernel, of device mapper there is
linear only, and no module can be loaded. Each test
runs in a process of its own, one after the other in one machine, or in so many machines as -machines says, in the order of the packages; what
is printed then begins with the package's name. Before and after each test the
machine's LVs, VGs, device-mapper entries, loop devices, mounts and processes are
compared; what is left behind fails the test, and the next one starts in a new
machine. At the end a package is "ok" or "FAIL", as with go test, and the exit code is
1 if one failed, 2 if something else went wrong.`

// exitError carries an exit code other than 2.
type exitError struct{ code int }

func (e exitError) Error() string { return fmt.Sprintf("exit code %d", e.code) }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := parseAndRun(ctx, os.Args[1:])
	var exit exitError
	switch {
	case errors.Is(err, flag.ErrHelp):
	case errors.As(err, &exit):
		os.Exit(exit.code)
	case err != nil:
		fmt.Fprintln(os.Stderr, "vmtest:", err)
		os.Exit(2)
	}
}

// parseAndRun reads the flags, which look like those of go test.
func parseAndRun(ctx context.Context, args []string) error {
	var o options
	flags := flag.NewFlagSet("vmtest", flag.ContinueOnError)
	flags.Usage = func() {
		fmt.Fprintf(flags.Output(), "usage: vmtest [flags] PACKAGE...\n\n%s\n\nflags:\n", long)
		flags.PrintDefaults()
	}
	flags.StringVar(&o.run, "run", "", "run the tests that match this `regexp`, whatever file they are in")
	flags.StringVar(&o.skip, "skip", "", "leave out the tests that match this `regexp`")
	flags.StringVar(&o.bench, "bench", "", "run the benchmarks that match this `regexp`")
	flags.IntVar(&o.count, "count", 1, "run each test this often")
	flags.BoolVar(&o.race, "race", false, "build with the race detector")
	flags.DurationVar(&o.timeout, "timeout", 10*time.Minute, "bound for each test")
	flags.Func("with", "`name` of a command of the main module (or several, with commas) to put into the PATH as carve-NAME", func(value string) error {
		o.with = append(o.with, strings.Split(value, ",")...)
		return nil
	})
	flags.Func("env", "`NAME=VALUE` for the tests' environment, repeatable", func(value string) error {
		o.env = append(o.env, value)
		return nil
	})
	flags.IntVar(&o.machines, "machines", 1, "how many machines, with disks of their own, test packages at the same time")
	flags.IntVar(&o.memory, "memory", 1536, "the machine's memory in `MiB`")
	flags.IntVar(&o.pmem, "pmem-size", 512, "size of /dev/pmem0 of a virtual machine in `MiB`, 0 for none")
	flags.IntVar(&o.disk, "disk-size", 4, "size of each disk in `GiB`")
	flags.BoolVar(&o.udev, "udev", false, "run udevd in the machine")
	flags.BoolVar(&o.systemd, "systemd", false, "have systemd be the machine's first process, with all that Debian starts")
	flags.BoolVar(&o.selinux, "selinux", false, "have SELinux in force, with a small policy of base_t, container_t and container_file_t, and run the tests of the tag selinux")
	flags.BoolVar(&o.virtual, "virtual", false, "have a virtual machine also where a kernel in user mode would do, and run the tests of the tag virtual")
	flags.StringVar(&o.kernel, "kernel", "", "boot the kernel of the release of Debian with this `suite`, such as bullseye (Linux 5.10), with the same root file system, and run the tests of the tag oldkernel")
	flags.BoolVar(&o.durable, "durable", false, "make flushes real on the disks, for tests of what they cost")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if o.packages = flags.Args(); len(o.packages) == 0 {
		return errors.New("name at least one package, such as ../pkg/lvm; -help says more")
	}
	if o.machines < 1 {
		return fmt.Errorf("-machines %d: at least one is needed", o.machines)
	}
	return run(ctx, o)
}
