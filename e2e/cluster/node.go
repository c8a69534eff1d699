package cluster

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/carve-csi/carve/e2e/controlplane"
	"github.com/carve-csi/carve/e2e/vm"
	"github.com/carve-csi/carve/e2e/vm/guest"
)

// MaxNodes is how many nodes a cluster can have. Each has a route to all others,
// whether they are there or not.
const MaxNodes = 8

// Sizes of a node.
const (
	nodeMemoryMiB = 2048
	nodePmemMiB   = 768
	// diskSize is the size in bytes of each disk for volumes; it takes space as it
	// fills.
	diskSize = 8 << 30
)

// Files in a node's folder.
const (
	stateDisk   = "state.img"
	pmemFile    = "pmem.img"
	machineFile = "machine.json"
	hostLog     = "vmhost.log"
	hostProgram = "vmhost"
)

// node is one node by its number, from 1.
type node struct {
	number int
	dir    string
	// pmem says that it has persistent memory.
	pmem bool
	// kubeletDir is where its kubelet has its files.
	kubeletDir string
}

func (n node) name() string { return nodeName(n.number) }

func nodeName(number int) string { return fmt.Sprintf("node-%d", number) }

// address is the node's address on the bridge: 10.80.0.11 and so on.
func (n node) address() netip.Addr {
	bytes := controlplane.Address().As4()
	bytes[3] = byte(10 + n.number)
	return netip.AddrFrom4(bytes)
}

// podSubnet is where the node's Pods have their addresses: 10.244.1.0/24 and so on.
func (n node) podSubnet() netip.Prefix {
	bytes := netip.MustParsePrefix(controlplane.PodSubnet).Addr().As4()
	bytes[2] = byte(n.number)
	return netip.PrefixFrom(netip.AddrFrom4(bytes), controlplane.NodePodBits)
}

// images is the folder that all nodes of the cluster share.
func (n node) images() string { return filepath.Clean(filepath.Join(n.dir, "..", "..", imagesTag)) }

// tap is the name of the node's tap device in the cluster's namespace.
func (n node) tap() string { return fmt.Sprintf("tap%d", n.number) }

// disks are, in the machine: vdb and vdc for volumes, vdd the state, vde the tools.
func (n node) disks(a assets) []vm.Disk {
	return []vm.Disk{
		{Path: filepath.Join(n.dir, "vdb.img"), Serial: "carve-1"},
		{Path: filepath.Join(n.dir, "vdc.img"), Serial: "carve-2"},
		{Path: filepath.Join(n.dir, stateDisk), Serial: "state"},
		{Path: a.tools, Serial: "tools", ReadOnly: true, Volatile: true},
	}
}

// machine describes the node's machine.
func (n node) machine(a assets) vm.Config {
	config := vm.Config{
		Name: n.name(), Dir: n.dir, MemoryMiB: nodeMemoryMiB, Processor: n.number,
		Disks:  n.disks(a),
		Shares: []vm.Share{n.share()},
		Tap:    n.tap(),
		MAC:    fmt.Sprintf("52:54:00:80:00:%02x", 10+n.number),
		Guest: guest.Config{
			Hostname: n.name(),
			Modules:  modules,
			Network:  n.network(),
			Files:    n.files(),
			Steps:    append(n.steps(), n.share().MountSteps(a.platform.Accelerator, imagesFolder)...),
			Services: n.services(),
		},
	}
	if a.platform.Accelerator == vm.UML {
		config.Guest.Steps = append(userModeSteps(), config.Guest.Steps...)
	}
	if n.pmem {
		config.PmemMiB, config.PmemFile = nodePmemMiB, filepath.Join(n.dir, pmemFile)
		config.Guest.Modules = append(slices.Clone(modules), "nd_pmem", "nd_e820")
	}
	a.platform.Apply(&config)
	return config
}

// share is the folder through which images come to the node.
func (n node) share() vm.Share {
	return vm.Share{Tag: imagesTag, Path: n.images(), ReadOnly: true, Changes: true}
}

func (n node) network() *guest.Network {
	network := &guest.Network{
		Address: netip.PrefixFrom(n.address(), 24).String(),
		Gateway: controlplane.Address().String(),
	}
	for number := 1; number <= MaxNodes; number++ {
		if other := (node{number: number}); number != n.number {
			network.Routes = append(network.Routes, guest.Route{
				Destination: other.podSubnet().String(), Via: other.address().String(),
			})
		}
	}
	return network
}
