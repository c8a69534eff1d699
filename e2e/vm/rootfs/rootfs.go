package rootfs

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
	"strconv"
	"strings"

	"github.com/carve-csi/carve/e2e/cache"
	"github.com/carve-csi/carve/e2e/debian"
)

// revision is part of the cache key; raise it when the way the image is made
// changes.
const revision = "5"

// suite is the release of Debian on the nodes, whatever the host runs.
const suite = "bookworm"

// packages are what a node needs beyond Debian's essential packages.
var packages = []string{
	// The kernel and what sets a machine up.
	"linux-image-amd64", "kmod", "iproute2", "mount", "util-linux", "procps", "udev",
	// Storage.
	"lvm2", "dmsetup", "thin-provisioning-tools", "e2fsprogs", "xfsprogs", "btrfs-progs", "cryptsetup-bin", "fio",
	// What ordinary machines boot with; nodes have an init of their own.
	"systemd",
	// Containers and their network.
	"containerd", "runc", "crun", "containernetworking-plugins", "iptables", "nftables", "conntrack", "ethtool", "socat",
	// For people who look around in a node.
	"strace", "less", "busybox-static", "memcached", "ca-certificates",
}

// excluded are paths that are never read on a node, or drivers of hardware that no
// virtual machine has.
var excluded = []string{
	"/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*", "/usr/share/zoneinfo/*",
	"/boot/System.map*",
	"/lib/modules/*/kernel/drivers/gpu/*", "/lib/modules/*/kernel/drivers/media/*",
	"/lib/modules/*/kernel/drivers/net/ethernet/*", "/lib/modules/*/kernel/drivers/net/wireless/*",
	"/lib/modules/*/kernel/drivers/staging/*", "/lib/modules/*/kernel/drivers/infiniband/*",
	"/lib/modules/*/kernel/drivers/iio/*", "/lib/modules/*/kernel/drivers/usb/*",
	"/lib/modules/*/kernel/drivers/hwmon/*", "/lib/modules/*/kernel/drivers/input/*",
	"/lib/modules/*/kernel/drivers/isdn/*", "/lib/modules/*/kernel/drivers/platform/*", "/lib/modules/*/kernel/drivers/mtd/*",
	"/lib/modules/*/kernel/sound/*", "/lib/modules/*/kernel/net/bluetooth/*", "/lib/modules/*/kernel/net/wireless/*",
}

// earlyModules are loaded before the root disk can be mounted: its driver, its
// file system, the overlay on it, the port of the agent and the configuration.
var earlyModules = []string{"crc32c_generic", "virtio_pci", "virtio_blk", "virtio_console", "ext4", "overlay", "qemu_fw_cfg"}

// hostPackages are what this package runs on the host.
var hostPackages = []string{"mmdebstrap", "debian-archive-keyring", "e2fsprogs", "xz-utils"}

// Files of a kernel in its folder in the cache.
const (
	kernelFile, versionFile, earlyFile = "vmlinux", "version", "early.cpio"
)

// Base is a node's kernel and root disk.
type Base struct {
	// Kernel (an ELF image, which the emulator starts without firmware) and RootDisk
	// (raw, ext4, read-only) are paths of files.
	Kernel, RootDisk string
	// Version is the kernel's release, as uname prints it.
	Version string
	// early is the first part of the initial RAM file system: the modules.
	early string
}

// Make returns the base, making it when the cache has none, which takes about
// two minutes and is reported to progress. It needs root.
func Make(ctx context.Context, progress io.Writer) (Base, error) {
	key := cache.Key(revision, suite, strings.Join(packages, " "), strings.Join(excluded, " "), strings.Join(earlyModules, " "))
	dir, err := cache.Entry(ctx, "node-root", key, func(ctx context.Context, dir string) error {
		fmt.Fprintf(progress, "making the nodes' root file system (once, about two minutes)\n")
		return build(ctx, progress, dir)
	})
	if err != nil {
		return Base{}, err
	}
	return Base{RootDisk: filepath.Join(dir, "root.ext4")}.kernelFrom(dir)
}

func build(ctx context.Context, progress io.Writer, dir string) error {
	if err := debian.Ensure(ctx, progress, hostPackages...); err != nil {
		return err
	}
	tree := filepath.Join(dir, "tree")
	if err := bootstrap(ctx, tree); err != nil {
		return err
	}
	version, err := kernelVersion(tree)
	if err != nil {
		return err
	}
	if err := keepKernel(ctx, dir, tree, version, earlyModules); err != nil {
		return err
	}
	// Machines do not boot from their root disk.
	if err := os.Remove(filepath.Join(tree, "boot", "vmlinuz-"+version)); err != nil {
		return err
	}
	if err := MakeDisk(ctx, filepath.Join(dir, "root.ext4"), tree); err != nil {
		return err
	}
	return os.RemoveAll(tree)
}

// bootstrap unpacks the packages into the directory tree.
func bootstrap(ctx context.Context, tree string) error {
	args := []string{
		"--mode=root", "--variant=minbase", "--format=directory", "--quiet",
		"--include=" + strings.Join(packages, ","),
		`--aptopt=Acquire::Languages "none"`, `--aptopt=Acquire::Retries "3"`,
	}
	for _, pattern := range excluded {
		args = append(args, "--dpkgopt=path-exclude="+pattern)
	}
	command := exec.CommandContext(ctx, "mmdebstrap", append(args, suite, tree)...)
	// The nodes boot from an initial RAM file system of our own.
	command.Env = append(os.Environ(), "INITRD=No", "DEBIAN_FRONTEND=noninteractive")
	return runCommand(command)
}

// MakeDisk makes an ext4 image of the directory tree, without a mount. It has no
// journal: it is meant to be read.
func MakeDisk(ctx context.Context, image, tree string) error {
	size, err := treeSize(tree)
	if err != nil {
		return err
	}
	// Metadata, and blocks partly used.
	size = size + size/5 + 64<<20
	return runCommand(exec.CommandContext(ctx, "mke2fs", "-q", "-F", "-t", "ext4", "-m", "0",
		"-O", "^has_journal,^resize_inode", "-d", tree, image, strconv.FormatInt(size>>10, 10)+"k"))
}

func treeSize(tree string) (int64, error) {
	var size int64
	err := filepath.WalkDir(tree, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		const block = 4096
		size += (info.Size() + block - 1) / block * block
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("measure %s: %w", tree, err)
	}
	return size, nil
}

// kernelVersion finds the release of the one kernel in the tree.
func kernelVersion(tree string) (string, error) {
	kernels, err := filepath.Glob(filepath.Join(tree, "boot", "vmlinuz-*"))
	if err != nil {
		return "", err
	}
	if len(kernels) != 1 {
		return "", fmt.Errorf("the root file system has %d kernels, want 1", len(kernels))
	}
	return strings.TrimPrefix(filepath.Base(kernels[0]), "vmlinuz-"), nil
}

// runCommand runs a command and puts the end of its output into its error.
func runCommand(command *exec.Cmd) error {
	var output bytes.Buffer
	command.Stdout, command.Stderr = &output, &output
	if err := command.Run(); err != nil {
		text := output.String()
		if len(text) > 2000 {
			text = "…" + text[len(text)-2000:]
		}
		return errors.Join(fmt.Errorf("%s: %w", filepath.Base(command.Path), err), errors.New(text))
	}
	return nil
}
