package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// folder is where names of network namespaces are kept by convention (ip-netns(8)).
const folder = "/run/netns"

// BridgeName is the name of the bridge in every namespace.
const BridgeName = "br0"

// DefaultGateway is the address, with the length of its subnet's prefix, that the
// bridge has unless the caller of Create says otherwise.
var DefaultGateway = netip.MustParsePrefix("10.80.0.1/24")

// validName is the rule for names: they become file names and are shown in logs.
var validName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// Namespace is a network namespace that has a name. It holds no resources: a value
// may be copied, and needs no closing.
type Namespace struct{ name string }

// Create makes the namespace called name with the loopback interface up and a bridge
// that has the address gateway, or completes what an interrupted Create left. Where
// all is there already it changes nothing, so it may be called again and again.
func Create(name string, gateway netip.Prefix) (Namespace, error) {
	if !validName.MatchString(name) {
		return Namespace{}, fmt.Errorf("name of a network namespace: got %q, want a DNS label", name)
	}
	if !gateway.IsValid() || !gateway.Addr().Is4() {
		return Namespace{}, fmt.Errorf("gateway of network namespace %s: got %s, want an IPv4 address and a prefix length", name, gateway)
	}
	n := Namespace{name: name}
	exists, err := n.exists()
	if err != nil {
		return Namespace{}, err
	}
	if !exists {
		if err := n.make(); err != nil {
			return Namespace{}, err
		}
	}
	if err := n.Do(func() error { return configure(gateway) }); err != nil {
		return Namespace{}, fmt.Errorf("configure network namespace %s: %w", name, err)
	}
	return n, nil
}

// Open returns the existing namespace called name. The error is fs.ErrNotExist where
// there is none.
func Open(name string) (Namespace, error) {
	if !validName.MatchString(name) {
		return Namespace{}, fmt.Errorf("name of a network namespace: got %q, want a DNS label", name)
	}
	n := Namespace{name: name}
	exists, err := n.exists()
	if err != nil {
		return Namespace{}, err
	}
	if !exists {
		return Namespace{}, fmt.Errorf("network namespace %s: %w", name, fs.ErrNotExist)
	}
	return n, nil
}

// Name returns the name, as `ip netns exec` takes it.
func (n Namespace) Name() string { return n.name }

// Path returns the file that stands for the namespace, as setns(2) takes it.
func (n Namespace) Path() string { return filepath.Join(folder, n.name) }

// exists distinguishes a namespace from the empty file that an interrupted creation, or a
// removal after the file was unmounted, leaves under its name.
func (n Namespace) exists() (bool, error) {
	var stat unix.Statfs_t
	err := unix.Statfs(n.Path(), &stat)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look at %s: %w", n.Path(), err)
	}
	return stat.Type == unix.NSFS_MAGIC, nil
}

func (n Namespace) make() error {
	if err := os.Remove(n.Path()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the remains of network namespace %s: %w", n.name, err)
	}
	err := onThread(func() error {
		handle, err := netns.NewNamed(n.name) // Leaves the thread in the new namespace.
		if err != nil {
			return err
		}
		return handle.Close()
	})
	if err != nil {
		return fmt.Errorf("make network namespace %s: %w", n.name, err)
	}
	return nil
}

// configure runs inside the namespace.
func configure(gateway netip.Prefix) error {
	// What machines send to each other's networks goes through here.
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
		return fmt.Errorf("have the namespace forward packets: %w", err)
	}
	// A bridge that looks into packets would turn down those that come back to the machine
	// that sent them, by way of a Service's address. The file is there where the kernel can.
	err := os.WriteFile("/proc/sys/net/bridge/bridge-nf-call-iptables", []byte("0"), 0)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("have the bridge pass on packets: %w", err)
	}
	loopback, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find the loopback interface: %w", err)
	}
	if err := netlink.LinkSetUp(loopback); err != nil {
		return fmt.Errorf("set the loopback interface up: %w", err)
	}
	attributes := netlink.NewLinkAttrs()
	attributes.Name = BridgeName
	if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attributes}); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add the bridge: %w", err)
	}
	bridge, err := netlink.LinkByName(BridgeName)
	if err != nil {
		return fmt.Errorf("find the bridge: %w", err)
	}
	address := &netlink.Addr{IPNet: ipNet(gateway)}
	if err := netlink.AddrReplace(bridge, address); err != nil {
		return fmt.Errorf("give the bridge the address %s: %w", gateway, err)
	}
	if err := netlink.LinkSetUp(bridge); err != nil {
		return fmt.Errorf("set the bridge up: %w", err)
	}
	return nil
}

func ipNet(prefix netip.Prefix) *net.IPNet {
	return &net.IPNet{
		IP:   prefix.Addr().AsSlice(),
		Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen()),
	}
}
