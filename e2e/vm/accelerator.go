package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carve-csi/carve/e2e/cache"
	"github.com/carve-csi/carve/e2e/vm/guest"
)

// Accelerator is how the machine's instructions are run.
type Accelerator string

const (
	// KVM has the processor run them, in QEMU.
	KVM Accelerator = "kvm"
	// UML has the processor run them, in a kernel that is a program on the host. There is
	// no persistent memory, and no SELinux, in such a machine.
	UML Accelerator = "uml"
	// TCG has QEMU translate them, which is about twenty times slower and works anywhere.
	TCG Accelerator = "tcg"
)

// probeBound is how long a machine may take to boot with KVM or UML; it takes less than
// two seconds where they work.
const probeBound = 8 * time.Second

func (a Accelerator) arguments() []string {
	if a == KVM {
		return []string{"-accel", "kvm", "-cpu", "host"}
	}
	return []string{"-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max,la57=off"}
}

// CPUs is how many processors a machine has. An emulated one has one: several would spin
// for locks whose holder the host has put aside, and send each other interrupts, which
// costs more than they add where the host is busy.
func (a Accelerator) CPUs() int {
	if a == KVM {
		return 2
	}
	return 1
}

// kvmDevice is what QEMU opens to use KVM.
const kvmDevice = "/dev/kvm"

// probed is what a probe found.
type probed struct {
	Accelerator Accelerator
	// Reason says why nothing faster is used.
	Reason string
}

func (p probed) String() string {
	switch p.Accelerator {
	case KVM:
		return "virtual machines run with KVM"
	case UML:
		return "machines run as programs, User Mode Linux, not with KVM: " + p.Reason
	default:
		return "virtual machines are emulated, about twenty times slower than with KVM: " + p.Reason
	}
}

// Probe finds out which is the fastest accelerator that can be used, by booting with each:
// a /dev/kvm may be there, take all its calls and never run a machine, and a kernel in user
// mode may not know the host's processor. hardware says that the machine is to have
// persistent memory or SELinux, which UML does not have. The answer is kept until the host
// boots again. Progress, which may be nil, gets a line that says which one is used, and why
// no other.
func Probe(ctx context.Context, progress io.Writer, kernel, initramfs string, userMode UserMode, hardware bool) (Accelerator, error) {
	candidates := []candidate{kvm(kernel, initramfs)}
	if !hardware {
		candidates = append(candidates, candidate{UML, userMode.unusable(memoryFolder), userModeProbe(userMode)})
	}
	found, err := choose(ctx, candidates)
	if err != nil {
		return "", err
	}
	if progress != nil {
		fmt.Fprintln(progress, found)
	}
	return found.Accelerator, nil
}

// WithoutKVM says why Probe does not choose KVM; nothing if it does.
func WithoutKVM(ctx context.Context, kernel, initramfs string) (string, error) {
	return kvm(kernel, initramfs).reason(ctx)
}

func kvm(kernel, initramfs string) candidate {
	return candidate{KVM, unusable(kvmDevice), kvmCommand(kernel, initramfs)}
}

const (
	// memoryFolder is where a kernel in user mode keeps its machine's memory.
	memoryFolder = "/dev/shm"
	// memoryBytes is what must be free there, for a few machines.
	memoryBytes = 5 << 30
)

// unusable says why no machine can run in user mode; nothing if it may.
func (u UserMode) unusable(folder string) string {
	var stat unix.Statfs_t
	switch err := unix.Statfs(folder, &stat); {
	case u.Kernel == "":
		return "there is no such kernel for " + runtime.GOARCH
	case err != nil:
		return fmt.Sprintf("measure %s: %v", folder, err)
	case int64(stat.Bavail)*stat.Bsize < memoryBytes:
		return fmt.Sprintf("%s has %d MiB free, want %d", folder, int64(stat.Bavail)*stat.Bsize>>20, memoryBytes>>20)
	}
	return ""
}

// candidate is an accelerator that may work.
type candidate struct {
	accelerator Accelerator
	// unusable says why it need not be tried.
	unusable string
	// command returns what boots a machine that says on its console, the file, that it runs.
	command func(ctx context.Context, dir, console string) *exec.Cmd
}

// choose returns the first candidate that works, or TCG, with why the others do not.
func choose(ctx context.Context, candidates []candidate) (probed, error) {
	var reasons []string
	for _, c := range candidates {
		reason, err := c.reason(ctx)
		if err != nil {
			return probed{}, err
		}
		if reason == "" {
			return probed{c.accelerator, strings.Join(reasons, "; ")}, nil
		}
		reasons = append(reasons, reason)
	}
	return probed{TCG, strings.Join(reasons, "; ")}, nil
}

// reason returns why the accelerator does not work, or nothing.
func (c candidate) reason(ctx context.Context) (string, error) {
	if c.unusable != "" {
		return c.unusable, nil
	}
	return c.keptProbe(ctx)
}

// keptProbe returns why the accelerator does not work, or nothing.
func (c candidate) keptProbe(ctx context.Context) (string, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read which boot of the host this is: %w", err)
	}
	const file = "reason"
	dir, err := cache.Entry(ctx, "accelerator", cache.Key(string(boot), file, string(c.accelerator)), func(ctx context.Context, dir string) error {
		reason := c.probe(ctx, dir, probeBound)
		if ctx.Err() != nil {
			return ctx.Err() // The probe was cut short and says nothing.
		}
		return os.WriteFile(filepath.Join(dir, file), []byte(reason), 0o644)
	})
	if err != nil {
		return "", err
	}
	content, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return "", fmt.Errorf("read what an earlier probe of %s found: %w", c.accelerator, err)
	}
	return string(content), nil
}

// unusable says why a device cannot be opened; nothing if it can.
func unusable(device string) string {
	f, err := os.OpenFile(device, os.O_RDWR, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "there is no " + device
	case err != nil:
		return err.Error()
	}
	_ = f.Close()
	return ""
}

// kvmCommand boots the kernel with KVM.
func kvmCommand(kernel, initramfs string) func(ctx context.Context, dir, console string) *exec.Cmd {
	return func(ctx context.Context, _, console string) *exec.Cmd {
		return exec.CommandContext(ctx, Binary, append([]string{
			"-M", "pc", "-m", "256M", "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
			"-serial", "file:" + console, "-kernel", kernel, "-initrd", initramfs,
			"-append", kernelArguments + " " + guest.ProbeArgument,
		}, KVM.arguments()...)...)
	}
}

// userModeProbe boots the kernel that is a program.
func userModeProbe(u UserMode) func(ctx context.Context, dir, console string) *exec.Cmd {
	return func(ctx context.Context, dir, console string) *exec.Cmd {
		// The console is the kernel's stdout. The shell is not to have the kernel's libraries.
		arguments := append([]string{
			"-c", loaderVariable + ` exec "$@" > "$0"`, console, u.Kernel,
			"umid=probe", folderOption + dir, "mem=256M", "initrd=" + u.Initramfs, guest.ProbeArgument,
		}, strings.Fields(userModeArguments)...)
		command := exec.CommandContext(ctx, "sh", arguments...)
		command.Dir = u.Libraries
		return command
	}
}

// probe boots a machine that says on its console that it runs. It returns why that did not
// work, or nothing.
func (c candidate) probe(ctx context.Context, dir string, bound time.Duration) string {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	console := filepath.Join(dir, consoleLog)
	var stderr bytes.Buffer
	command := c.command(ctx, dir, console)
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	command.Stderr = &stderr
	// What was started may hold its stderr open.
	command.WaitDelay = time.Second
	err := command.Run()
	// The exit code says less than the console.
	content, readErr := os.ReadFile(console)
	if readErr == nil && strings.Contains(string(content), guest.ProbeReply) {
		return ""
	}
	switch lines := strings.Split(strings.TrimSpace(stderr.String()), "\n"); {
	case ctx.Err() != nil:
		return fmt.Sprintf("a machine did not boot with %s within %v", c.accelerator, bound)
	case err != nil:
		return strings.TrimSuffix(fmt.Sprintf("%s ends with %v: %s", filepath.Base(command.Path), err, lines[len(lines)-1]), ": ")
	}
	return fmt.Sprintf("a machine went off before it had booted with %s", c.accelerator)
}
