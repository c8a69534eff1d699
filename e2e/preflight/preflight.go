// Package preflight checks that this machine can run the harness, before anything is
// downloaded or built, and names everything that is missing at once.
//
// It needs nothing but the standard library, so that it is built in a moment, and it
// can be built for every system.
package preflight

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// The only system and processor that the virtual machines and images are made for.
const (
	system    = "linux"
	processor = "amd64"
)

// Free space that is needed in the folder of the cache (which also has the disks of
// clusters), and more while the cache is empty; and for temporary files.
const (
	warmDiskMiB = 4 << 10
	coldDiskMiB = 14 << 10
	tempDiskMiB = 1 << 10
)

// baseMemoryMiB is for what runs beside virtual machines: builds, a control plane,
// tests.
const baseMemoryMiB = 1536

// Needs is what a command needs beside the right system, root, space on the disk and
// the programs of a Debian machine.
type Needs struct {
	// MemoryMiB must be available; 0 when what needs it runs already.
	MemoryMiB int
	// Network means network namespaces and TAP devices.
	Network bool
	// DisksMiB is what is written to the disks of virtual machines at a time. They are
	// in the folder of the cache and among the temporary files.
	DisksMiB int
	// SharedMiB must be free in /dev/shm where machines run as programs, without KVM: they have
	// their memory there, and are emulated where it is too small.
	SharedMiB int
	// Prove is asked for proof of KVM where /dev/kvm can be opened and SharedMiB is not free: it says
	// why KVM does not work, nothing if it does. Without it, a device that can be opened is enough.
	Prove func() (string, error)
}

// Cluster is what a cluster of so many nodes needs.
func Cluster(nodes int) Needs { return Machines(nodes, 2048).withNetwork() }

// Machines is what virtual machines need that have so much memory each.
func Machines(count, memoryMiB int) Needs { return Needs{MemoryMiB: baseMemoryMiB + count*memoryMiB} }

// ControlPlane is what a Kubernetes control plane without nodes needs.
func ControlPlane() Needs { return Needs{MemoryMiB: baseMemoryMiB}.withNetwork() }

func (n Needs) withNetwork() Needs {
	n.Network = true
	return n
}

// host is what was found on this machine.
type host struct {
	system, processor string
	root              bool
	// memoryMiB is what processes may still take.
	memoryMiB int
	cache     space
	temp      space
	// shared is /dev/shm.
	shared space
	// cold means that the cache has no Kubernetes.
	cold bool
	// kvm says why there is none, and namespaces and tun say why there are none; empty when there are.
	kvm, namespaces, tun string
	// absent are the programs that are not in the PATH.
	absent []string
}

// space is what is free in a folder.
type space struct {
	folder  string
	freeMiB int
}

// programs must be in the PATH, and say what each does.
var programs = map[string]string{
	"git":        "names the version of what is built",
	"apt-get":    "installs Debian packages",
	"dpkg-query": "knows which Debian packages are installed",
}

// Check returns an error that says, a line each, what this machine lacks.
func Check(needs Needs) error {
	h, err := look(needs)
	if err != nil {
		return fmt.Errorf("look at this machine: %w", err)
	}
	lines, err := missingAndProved(needs, h)
	if err != nil {
		return fmt.Errorf("look at this machine: %w", err)
	}
	if len(lines) > 0 {
		return errors.New("this machine cannot run it:\n  " + strings.Join(lines, "\n  "))
	}
	return nil
}

// missingAndProved is missing, where KVM is proved if it matters. The proof needs what the host
// may lack, and so comes last.
func missingAndProved(needs Needs, h host) (lines []string, err error) {
	lines = missing(needs, h)
	if len(lines) > 0 || needs.Prove == nil || h.kvm != "" || h.shared.freeMiB >= needs.SharedMiB {
		return lines, nil
	}
	if h.kvm, err = needs.Prove(); err != nil {
		return nil, fmt.Errorf("find out whether KVM works: %w", err)
	}
	return missing(needs, h), nil
}

// missing says, a line each, what a host lacks.
func missing(needs Needs, h host) []string {
	var lines []string
	lack := func(format string, arguments ...any) { lines = append(lines, fmt.Sprintf(format, arguments...)) }
	if h.system != system {
		// Nothing else can be asked there.
		return []string{fmt.Sprintf("system: this is %s, Linux is needed", h.system)}
	}
	if h.processor != processor {
		lack("processor: this is %s, amd64 (x86-64) is needed: virtual machines and images are made for it only", h.processor)
	}
	if !h.root {
		lack("rights: run it as root, for network namespaces, mounts and the installation of packages")
	}
	if needs.Network && h.namespaces != "" {
		lack("network namespaces: %s", h.namespaces)
	}
	if needs.Network && h.tun != "" {
		lack("TUN/TAP devices: %s", h.tun)
	}
	if h.memoryMiB < needs.MemoryMiB {
		lack("memory: %s available, %s needed", gib(h.memoryMiB), gib(needs.MemoryMiB))
	}
	disk := warmDiskMiB
	if h.cold {
		disk = coldDiskMiB
	}
	for _, s := range []struct {
		space
		needed int
	}{{h.cache, disk + needs.DisksMiB}, {h.temp, tempDiskMiB + needs.DisksMiB}} {
		if s.freeMiB < s.needed {
			lack("disk: %s free in %s, %s needed", gib(s.freeMiB), s.folder, gib(s.needed))
		}
	}
	if h.kvm != "" && h.shared.freeMiB < needs.SharedMiB {
		lack("memory of machines: %s free in %s, %s needed without KVM (%s)", gib(h.shared.freeMiB), h.shared.folder, gib(needs.SharedMiB), h.kvm)
	}
	for _, program := range h.absent {
		lack("%s, which %s, is not in the PATH", program, programs[program])
	}
	return lines
}

func gib(mib int) string { return fmt.Sprintf("%.1f GiB", float64(mib)/1024) }

// nearest returns the nearest folder at or above path that is there.
func nearest(path string) string {
	for path != filepath.Dir(path) {
		if _, err := os.Stat(path); err == nil {
			return path
		}
		path = filepath.Dir(path)
	}
	return path
}
