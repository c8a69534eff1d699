package vm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/carve-csi/carve/e2e/cache"
	"github.com/carve-csi/carve/e2e/vm/guest"
)

// Accelerator is how QEMU runs the machine's instructions.
type Accelerator string

const (
	// KVM has the processor run them.
	KVM Accelerator = "kvm"
	// TCG translates them, which is about twenty times slower and works anywhere.
	TCG Accelerator = "tcg"
)

// probeBound is how long a machine may take to boot with KVM; it takes less than
// two seconds where KVM works.
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
	// Reason says why KVM is not used.
	Reason string
}

func (p probed) String() string {
	if p.Accelerator == KVM {
		return "virtual machines run with KVM"
	}
	return "virtual machines are emulated, about twenty times slower than with KVM: " + p.Reason
}

// Probe finds out whether KVM can be used, by booting the kernel with it: a /dev/kvm
// may be there, take all its calls and never run a machine. The answer is kept
// until the host boots again. Progress, which may be nil, gets a line that says which
// of KVM and emulation is used, and why not KVM.
func Probe(ctx context.Context, progress io.Writer, kernel, initramfs string) (Accelerator, error) {
	found, err := keptProbe(ctx, kernel, initramfs)
	if err != nil {
		return "", err
	}
	if progress != nil {
		fmt.Fprintln(progress, found)
	}
	return found.Accelerator, nil
}

func keptProbe(ctx context.Context, kernel, initramfs string) (probed, error) {
	if reason := unusable(kvmDevice); reason != "" {
		return probed{TCG, reason}, nil
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return probed{}, fmt.Errorf("read which boot of the host this is: %w", err)
	}
	const file = "probed.json"
	dir, err := cache.Entry(ctx, "accelerator", cache.Key(string(boot), file), func(ctx context.Context, dir string) error {
		found := probe(ctx, dir, kernel, initramfs, probeBound)
		if ctx.Err() != nil {
			return ctx.Err() // The probe was cut short and says nothing.
		}
		content, err := json.Marshal(found)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, file), content, 0o644)
	})
	if err != nil {
		return probed{}, err
	}
	content, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return probed{}, err
	}
	var found probed
	if err := json.Unmarshal(content, &found); err != nil {
		return probed{}, fmt.Errorf("read what an earlier probe of KVM found: %w", err)
	}
	return found, nil
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

// probe boots a machine with KVM that says on its console that it runs.
func probe(ctx context.Context, dir, kernel, initramfs string, bound time.Duration) probed {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	console := filepath.Join(dir, consoleLog)
	args := append([]string{
		"-M", "pc", "-m", "256M", "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
		"-serial", "file:" + console, "-kernel", kernel, "-initrd", initramfs,
		"-append", kernelArguments + " " + guest.ProbeArgument,
	}, KVM.arguments()...)
	var stderr bytes.Buffer
	command := exec.CommandContext(ctx, Binary, args...)
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	command.Stderr = &stderr
	// What QEMU started may hold its stderr open.
	command.WaitDelay = time.Second
	err := command.Run()
	// The exit code says less than the console.
	content, readErr := os.ReadFile(console)
	if readErr == nil && strings.Contains(string(content), guest.ProbeReply) {
		return probed{Accelerator: KVM}
	}
	switch lines := strings.Split(strings.TrimSpace(stderr.String()), "\n"); {
	case ctx.Err() != nil:
		return probed{TCG, fmt.Sprintf("a machine did not boot with it within %v", bound)}
	case err != nil:
		return probed{TCG, strings.TrimSuffix(fmt.Sprintf("%s ends with %v: %s", Binary, err, lines[len(lines)-1]), ": ")}
	}
	return probed{TCG, "a machine went off before it had booted with it"}
}
