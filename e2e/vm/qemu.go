package vm

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/carve-csi/carve/e2e/vm/guest"
)

// Binary is the emulator, of the package qemu-system-x86.
const Binary = "qemu-system-x86_64"

// agentDescriptor is the file descriptor that Start passes to QEMU.
const agentDescriptor = 3

// kernelArguments are the same for all machines. Much of what hardens or watches a
// kernel costs an emulated one dearly, and says nothing about the code under test:
// mitigations of speculation, security modules, auditing, zeroing of pages at
// allocation, the watchdogs. Grace periods of RCU are hurried, because making and
// removing namespaces, cgroups and mounts waits for them. cgroup v1 must be off for
// the kubelet to have v2.
const kernelArguments = "console=ttyS0 quiet panic=-1 oops=panic net.ifnames=0 cgroup_no_v1=all " +
	"mitigations=off nokaslr lsm=capability audit=0 init_on_alloc=0 hardened_usercopy=off randomize_kstack_offset=off " +
	"nowatchdog rcupdate.rcu_expedited=1 cryptomgr.notests random.trust_cpu=on tsc=reliable no_timer_check"

// arguments returns QEMU's command line for the machine.
func (c Config) arguments() ([]string, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	args := []string{
		"-name", c.Name, "-M", "pc", "-smp", fmt.Sprint(c.CPUs),
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
		"-serial", "file:" + filepath.Join(c.Dir, consoleLog),
		"-kernel", c.Kernel, "-initrd", c.Initramfs, "-append", c.commandLine(),
		"-fw_cfg", "name=" + guest.FirmwareItem + ",file=" + filepath.Join(c.Dir, configFile),
		"-device", "virtio-rng-pci",
		"-chardev", fmt.Sprintf("socket,id=agent,fd=%d", agentDescriptor),
		"-device", "virtio-serial-pci",
		"-device", "virtserialport,chardev=agent,name=" + guest.AgentPort,
	}
	args = append(args, c.Accelerator.arguments()...)
	args = append(args, c.memoryArguments()...)
	for i, disk := range c.allDisks() {
		args = append(args, disk.arguments(i)...)
	}
	for _, share := range c.Shares {
		args = append(args, "-virtfs", share.argument())
	}
	if c.Tap != "" {
		args = append(args,
			"-netdev", "tap,id=net,ifname="+c.Tap+",script=no,downscript=no",
			"-device", "virtio-net-pci,netdev=net,romfile=,mac="+c.MAC)
	}
	return args, nil
}

// allDisks are the root's disk, /dev/vda, and the others.
func (c Config) allDisks() []Disk {
	return append([]Disk{{Path: c.RootDisk, Serial: "root", ReadOnly: true, Volatile: true}}, c.Disks...)
}

// check finds what QEMU would misread or only reject late. QEMU separates
// options by commas.
func (c Config) check() error {
	if c.MemoryMiB < pmemStartMiB || c.MemoryMiB+c.PmemMiB >= 3072 {
		return fmt.Errorf("memory: got %d MiB and %d MiB of persistent memory, allowed are at least %d and less than 3072 in sum",
			c.MemoryMiB, c.PmemMiB, pmemStartMiB)
	}
	if c.CPUs < 1 {
		return fmt.Errorf("processors: got %d, want at least 1", c.CPUs)
	}
	paths := []string{c.Name, c.Dir, c.Kernel, c.Initramfs, c.RootDisk, c.PmemFile, c.Tap, c.MAC}
	for _, disk := range c.Disks {
		paths = append(paths, disk.Path, disk.Socket, disk.Serial)
	}
	for _, share := range c.Shares {
		paths = append(paths, share.Path, share.Tag)
	}
	for _, path := range paths {
		if strings.ContainsAny(path, ",\n") {
			return fmt.Errorf("%q: a name or path must not have a comma", path)
		}
	}
	if c.Dir == "" {
		return errors.New("the machine has no folder")
	}
	return nil
}

func (c Config) commandLine() string {
	line := kernelArguments
	if c.SELinux {
		line += " lsm=capability,selinux" // the last one counts
	}
	if c.PmemMiB > 0 {
		line += fmt.Sprintf(" numa=off memmap=%dM!%dM", c.PmemMiB, pmemStartMiB)
	}
	return line
}

// memoryArguments builds the machine's memory of up to three parts, of which the
// middle one is the persistent memory. QEMU puts the parts of NUMA nodes one after
// the other; the kernel is started without NUMA.
func (c Config) memoryArguments() []string {
	args := []string{"-m", fmt.Sprintf("%dM", c.MemoryMiB+c.PmemMiB)}
	if c.PmemMiB == 0 {
		return args
	}
	args = append(args,
		"-object", fmt.Sprintf("memory-backend-ram,id=low,size=%dM", pmemStartMiB),
		"-numa", fmt.Sprintf("node,nodeid=0,memdev=low,cpus=0-%d", c.CPUs-1))
	pmem := fmt.Sprintf("memory-backend-ram,id=pmem,size=%dM", c.PmemMiB)
	if c.PmemFile != "" {
		pmem = fmt.Sprintf("memory-backend-file,id=pmem,size=%dM,mem-path=%s,share=on", c.PmemMiB, c.PmemFile)
	}
	args = append(args, "-object", pmem, "-numa", "node,nodeid=1,memdev=pmem")
	if rest := c.MemoryMiB - pmemStartMiB; rest > 0 {
		args = append(args,
			"-object", fmt.Sprintf("memory-backend-ram,id=high,size=%dM", rest),
			"-numa", "node,nodeid=2,memdev=high")
	}
	return args
}

func (d Disk) arguments(index int) []string {
	options := "cache=writeback"
	if d.Volatile {
		options = "cache=unsafe"
	}
	if d.ReadOnly {
		options += ",readonly=on"
	} else {
		options += ",discard=unmap,detect-zeroes=off"
	}
	file := d.Path
	if d.Socket != "" {
		file = "nbd+unix:///?socket=" + d.Socket
	}
	return []string{
		"-drive", fmt.Sprintf("file=%s,format=raw,if=none,id=disk%d,%s", file, index, options),
		"-device", fmt.Sprintf("virtio-blk-pci,drive=disk%d,serial=%s", index, d.Serial),
	}
}

func (s Share) argument() string {
	argument := fmt.Sprintf("local,path=%s,mount_tag=%s,security_model=none,multidevs=remap", s.Path, s.Tag)
	if s.ReadOnly {
		argument += ",readonly=on"
	}
	return argument
}
