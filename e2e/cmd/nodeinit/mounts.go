package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

type mountPoint struct {
	source, target, kind string
	flags                uintptr
	data                 string
	// optional is a file system that not every kernel has.
	optional bool
}

// earlyMounts are needed to load drivers; they move to the root later.
var earlyMounts = []mountPoint{
	{"proc", "/proc", "proc", 0, "", false},
	{"sysfs", "/sys", "sysfs", 0, "", false},
	{"devtmpfs", "/dev", "devtmpfs", 0, "", false},
}

// rootMounts lay a RAM file system over the root disk.
var rootMounts = []mountPoint{
	{"/dev/vda", "/lower", "ext4", unix.MS_RDONLY, "", false},
	{"tmpfs", "/upper", "tmpfs", 0, "size=75%", false},
	{"overlay", "/new", "overlay", 0, "lowerdir=/lower,upperdir=/upper/data,workdir=/upper/work", false},
}

// lateMounts are those that every Linux machine has.
var lateMounts = []mountPoint{
	{"devpts", "/dev/pts", "devpts", 0, "ptmxmode=0666", false},
	{"tmpfs", "/dev/shm", "tmpfs", 0, "", false},
	{"mqueue", "/dev/mqueue", "mqueue", 0, "", false},
	{"tmpfs", "/run", "tmpfs", 0, "mode=755", false},
	{"tmpfs", "/tmp", "tmpfs", 0, "mode=1777", false},
	{"cgroup2", "/sys/fs/cgroup", "cgroup2", 0, "nsdelegate", false},
	{"bpf", "/sys/fs/bpf", "bpf", 0, "", true},
	{"tracefs", "/sys/kernel/tracing", "tracefs", 0, "", true},
}

func mountAll(mounts []mountPoint) error {
	for _, m := range mounts {
		if err := os.MkdirAll(m.target, 0o755); err != nil && !m.optional {
			return err
		}
		if m.target == "/new" {
			if err := mkdirs("/upper/data", "/upper/work"); err != nil {
				return err
			}
		}
		if err := unix.Mount(m.source, m.target, m.kind, m.flags, m.data); err != nil && !m.optional {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	return nil
}

func mkdirs(paths ...string) error {
	for _, path := range paths {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// unmountAll unmounts whatever lies on a real device, last mounted first, as
// often as something gives way. What cannot be unmounted is made read-only.
func unmountAll() {
	for range 5 {
		targets := deviceMounts()
		if len(targets) == 0 {
			return
		}
		progress := false
		for i := len(targets) - 1; i >= 0; i-- {
			if unix.Unmount(targets[i], 0) == nil {
				progress = true
			}
		}
		if !progress {
			break
		}
	}
	for _, target := range deviceMounts() {
		_ = unix.Mount("", target, "", unix.MS_REMOUNT|unix.MS_RDONLY, "")
	}
}

// deviceMounts lists the mount points of block devices other than the root's.
func deviceMounts() []string {
	file, err := os.Open("/proc/self/mounts")
	if err != nil {
		return nil
	}
	defer file.Close()
	var targets []string
	for lines := bufio.NewScanner(file); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) > 2 && strings.HasPrefix(fields[0], "/dev/") && fields[0] != "/dev/vda" {
			targets = append(targets, unescape(fields[1]))
		}
	}
	return targets
}

// unescape undoes the octal escapes of /proc/mounts.
func unescape(path string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(path)
}
