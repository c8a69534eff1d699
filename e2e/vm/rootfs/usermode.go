package rootfs

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"github.com/carve-csi/carve/e2e/cache"
	"github.com/carve-csi/carve/e2e/debian"
	"github.com/carve-csi/carve/e2e/vm"
)

const (
	// userModeRevision is part of the cache key; raise it when the way the kernel is
	// made ready changes.
	userModeRevision = "2"
	// userModeSuite has the first release of Debian whose kernel in user mode knows
	// processors with large registers (Linux 6.13) and filters system calls in place of
	// tracing them (6.16), which halves their cost.
	userModeSuite = "forky"
)

// userModeModules are loaded before the root disk can be mounted.
var userModeModules = []string{"overlay"}

// MakeUserMode returns the kernel that runs as a program, with the first process built
// from this source tree. It is empty where Debian has none for the host's processor.
func MakeUserMode(ctx context.Context, progress io.Writer) (vm.UserMode, error) {
	if runtime.GOARCH != "amd64" {
		return vm.UserMode{}, nil
	}
	dir, err := cache.Entry(ctx, "user-mode-linux", cache.Key(userModeRevision, userModeSuite), func(ctx context.Context, dir string) error {
		fmt.Fprintln(progress, "fetching User Mode Linux (once)")
		return fetchUserMode(ctx, progress, dir)
	})
	if err != nil {
		return vm.UserMode{}, err
	}
	initramfs, err := Base{early: filepath.Join(dir, "early.cpio")}.Initramfs(ctx)
	if err != nil {
		return vm.UserMode{}, err
	}
	modules, err := userModeFolder(dir)
	libraries := filepath.Join(dir, "tree", "usr", "lib", "x86_64-linux-gnu")
	return vm.UserMode{
		Kernel: userModeKernel(dir), Libraries: libraries, Initramfs: initramfs, Modules: modules,
	}, err
}

// fetchUserMode unpacks the kernel, and the C library that it wants, without installing
// them.
func fetchUserMode(ctx context.Context, progress io.Writer, dir string) error {
	if err := debian.Ensure(ctx, progress, hostPackages...); err != nil {
		return err
	}
	command := exec.CommandContext(ctx, "mmdebstrap", "--mode=root", "--variant=extract", "--format=directory", "--quiet",
		"--include=user-mode-linux", "--dpkgopt=path-exclude=/usr/share/*", `--aptopt=Acquire::Languages "none"`,
		`--aptopt=Acquire::Retries "3"`,
		// A mirror of a release that is not out yet may be some weeks old. Its signature counts.
		`--aptopt=Acquire::Check-Valid-Until "false"`,
		userModeSuite, filepath.Join(dir, "tree"))
	if err := runCommand(command); err != nil {
		return err
	}
	kernel := userModeKernel(dir)
	if err := errors.Join(loadFromFolder(kernel), nameDisks(kernel)); err != nil {
		return err
	}
	modules, err := userModeFolder(dir)
	if err != nil {
		return err
	}
	names, err := loadOrder(modules, userModeModules)
	if err != nil {
		return err
	}
	return writeModules(filepath.Join(dir, "early.cpio"), modules, names)
}

func userModeKernel(dir string) string { return filepath.Join(dir, "tree", "usr", "bin", "linux.uml") }

// loadFromFolder has a program be loaded by the dynamic loader in the folder in which it is
// started, in place of the system's, see PT_INTERP in elf(5). Calling that loader with the
// program's name is no way: the kernel goes by where its own memory ends.
func loadFromFolder(path string) error {
	program, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	defer func() { _ = program.Close() }()
	for _, header := range program.Progs {
		if header.Type != elf.PT_INTERP {
			continue
		}
		loader, err := io.ReadAll(header.Open())
		if err != nil {
			return fmt.Errorf("read the loader of %s: %w", path, err)
		}
		changed := make([]byte, len(loader))
		copy(changed, filepath.Base(string(bytes.TrimRight(loader, "\x00"))))
		file, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		_, err = file.WriteAt(changed, int64(header.Off))
		return errors.Join(err, file.Close())
	}
	return fmt.Errorf("%s has no dynamic loader", path)
}

// nameDisks has the kernel call its disks vda and so on, as a virtual machine's are, in
// place of ubda.
func nameDisks(path string) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	old, name := []byte("\x00ubd%c\x00"), []byte("\x00vd%c\x00\x00")
	if n := bytes.Count(content, old); n != 1 {
		return fmt.Errorf("%s has the format of disks' names %d times, want once", path, n)
	}
	return os.WriteFile(path, bytes.Replace(content, old, name, 1), 0o755)
}

// userModeFolder finds the modules of the one kernel.
func userModeFolder(dir string) (string, error) {
	folders, err := filepath.Glob(filepath.Join(dir, "tree", "usr", "lib", "uml", "modules", "*"))
	if err == nil && len(folders) != 1 {
		err = fmt.Errorf("want the modules of one kernel, got %q", folders)
	}
	if err != nil {
		return "", err
	}
	_, err = os.Stat(filepath.Join(folders[0], "modules.dep"))
	return folders[0], err
}
