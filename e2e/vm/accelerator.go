package vm

import (
	"context"
	"errors"
	"fmt"
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

// Probe tells whether KVM can be used, by booting the kernel with it: a /dev/kvm
// may be there, take all its calls and never run a machine. The answer is kept
// until the host boots again.
func Probe(ctx context.Context, kernel, initramfs string) (Accelerator, error) {
	if _, err := os.Stat("/dev/kvm"); errors.Is(err, fs.ErrNotExist) {
		return TCG, nil
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("tell this boot of the host from others: %w", err)
	}
	dir, err := cache.Entry(ctx, "accelerator", cache.Key(string(boot)), func(ctx context.Context, dir string) error {
		found := probe(ctx, dir, kernel, initramfs)
		if ctx.Err() != nil {
			return ctx.Err() // The probe was cut short and says nothing.
		}
		return os.WriteFile(filepath.Join(dir, "accelerator"), []byte(found), 0o644)
	})
	if err != nil {
		return "", err
	}
	content, err := os.ReadFile(filepath.Join(dir, "accelerator"))
	if err != nil {
		return "", err
	}
	return Accelerator(content), nil
}

func probe(ctx context.Context, dir, kernel, initramfs string) Accelerator {
	ctx, cancel := context.WithTimeout(ctx, probeBound)
	defer cancel()
	console := filepath.Join(dir, consoleLog)
	args := append([]string{
		"-M", "pc", "-m", "256M", "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
		"-serial", "file:" + console, "-kernel", kernel, "-initrd", initramfs,
		"-append", kernelArguments + " " + guest.ProbeArgument,
	}, KVM.arguments()...)
	command := exec.CommandContext(ctx, Binary, args...)
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	// The exit code says less than the console.
	_ = command.Run()
	content, err := os.ReadFile(console)
	if err == nil && strings.Contains(string(content), guest.ProbeReply) {
		return KVM
	}
	return TCG
}
