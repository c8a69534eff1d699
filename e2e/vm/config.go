package vm

import "github.com/carve-csi/carve/e2e/vm/guest"

// Config describes a machine. It can be written as JSON.
type Config struct {
	// Name is the machine's name, visible in ps, and the default host name.
	Name string
	// Dir is a folder of the caller's that takes the machine's console log
	// ("console.log") and its configuration.
	Dir string
	// Kernel, Initramfs and RootDisk are paths, see package rootfs. The root disk
	// is only read.
	Kernel, Initramfs, RootDisk string
	// CPUs and MemoryMiB are what the machine's kernel has for itself. MemoryMiB
	// must be at least 1024 and, with the persistent memory, below 3072.
	CPUs, MemoryMiB int
	// PmemMiB is the size of /dev/pmem0; 0 means that there is none.
	PmemMiB int
	// PmemFile keeps the persistent memory's content over the machine's end. It is
	// made when missing. Empty means that the content is lost.
	PmemFile string
	// Disks become /dev/vdb and so on in their order.
	Disks  []Disk
	Shares []Share
	// Tap is the name of a tap device, in the network namespace of the process that
	// calls Start, that becomes eth0. Empty means no network.
	Tap string
	// MAC is eth0's address.
	MAC string
	// SELinux has the kernel ask SELinux, which allows everything until it has a policy.
	SELinux bool
	// Accelerator is KVM, UML or TCG, see Probe. UML takes the kernel from UserMode in
	// place of Kernel and Initramfs.
	Accelerator Accelerator
	UserMode    UserMode
	// Processor numbers, from 0, the machines that run at the same time. With UML a machine
	// stays on one of the host's processors, and machines of different numbers on different
	// ones as far as they go.
	Processor int
	// Guest is handed to the machine's first process.
	Guest guest.Config
}

// Disk is a raw image on the host, or one that a server keeps.
type Disk struct {
	Path string
	// Socket, given in place of Path, is the unix socket of a server of the NBD
	// protocol that keeps the disk, such as package volatile has.
	Socket string
	// Serial is the disk's serial number, at most 20 characters.
	Serial string
	// Volatile says that what the machine flushed need not survive the host's own
	// power loss. A machine's power cut loses nothing that QEMU was given either
	// way, but only without it the flushes cost what they cost.
	Volatile bool
	ReadOnly bool
}

// Share is a folder of the host.
type Share struct {
	Tag, Path string
	ReadOnly  bool
	// Changes says that the host puts files there while the machine runs.
	Changes bool
}

// pmemStartMiB is where the persistent memory lies in the machine's memory. The
// memory above and below it is the kernel's. The top of the memory will not do:
// the firmware keeps its tables there.
const pmemStartMiB = 1024

// MountSteps mount the share, at a folder that they make, in a machine with that
// accelerator.
func (s Share) MountSteps(accelerator Accelerator, folder string) []guest.Step {
	options := "trans=virtio,version=9p2000.L,ro,msize=512000"
	if !s.Changes {
		options += ",cache=loose" // What is read stays in the machine's memory.
	}
	steps := []guest.Step{
		{Name: "make " + folder, Argv: []string{"mkdir", "-p", folder}},
		{
			Name: "load the driver of shares", Argv: []string{"modprobe", "9pnet_virtio"},
			// modprobe does not find what only the initial RAM file system had.
			Unless: []string{"test", "-d", "/sys/module/9pnet_virtio"},
		},
		{Name: "mount the share " + s.Tag, Argv: []string{"mount", "-t", "9p", "-o", options, s.Tag, folder}},
	}
	if accelerator == UML {
		steps = append(steps[:1], guest.Step{
			Name: "mount the share " + s.Tag, Argv: []string{"mount", "-t", "hostfs", "-o", "ro," + s.Path, "none", folder},
		})
	}
	return steps
}
