package netns

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// AddTap makes the persistent tap device called device, sets it up and joins it to
// the bridge, for a virtual machine that is then started in the namespace. A device
// of that name that is there already is joined as it is.
func (n Namespace) AddTap(device string) error {
	err := n.Do(func() error {
		bridge, err := netlink.LinkByName(BridgeName)
		if err != nil {
			return fmt.Errorf("find the bridge: %w", err)
		}
		tap, err := netlink.LinkByName(device)
		if errors.As(err, new(netlink.LinkNotFoundError)) {
			tap, err = makeTap(device)
		}
		if err != nil {
			return err
		}
		if err := netlink.LinkSetMaster(tap, bridge); err != nil {
			return fmt.Errorf("join it to the bridge: %w", err)
		}
		return netlink.LinkSetUp(tap)
	})
	if err != nil {
		return fmt.Errorf("add tap %s to network namespace %s: %w", device, n.name, err)
	}
	return nil
}

func makeTap(device string) (netlink.Link, error) {
	attributes := netlink.NewLinkAttrs()
	attributes.Name = device
	tap := &netlink.Tuntap{
		LinkAttrs: attributes,
		Mode:      netlink.TUNTAP_MODE_TAP,
		// Without queues of its own the device is closed at once and is left to
		// what opens it next: the virtual machine.
		Flags: netlink.TUNTAP_DEFAULTS,
	}
	if err := netlink.LinkAdd(tap); err != nil {
		return nil, fmt.Errorf("make the device: %w", err)
	}
	return netlink.LinkByName(device)
}

// UnplugTap takes the device called device from the bridge, as if its cable were
// pulled: the virtual machine keeps it, and reaches nothing. AddTap plugs it in again.
func (n Namespace) UnplugTap(device string) error {
	err := n.Do(func() error {
		tap, err := netlink.LinkByName(device)
		if err != nil {
			return err
		}
		return netlink.LinkSetNoMaster(tap)
	})
	if err != nil {
		return fmt.Errorf("unplug tap %s of network namespace %s: %w", device, n.name, err)
	}
	return nil
}

// DeleteTap removes the device called device. It is no error if there is none.
func (n Namespace) DeleteTap(device string) error {
	err := n.Do(func() error {
		tap, err := netlink.LinkByName(device)
		if errors.As(err, new(netlink.LinkNotFoundError)) {
			return nil
		}
		if err != nil {
			return err
		}
		return netlink.LinkDel(tap)
	})
	if err != nil {
		return fmt.Errorf("delete tap %s of network namespace %s: %w", device, n.name, err)
	}
	return nil
}

// SetRoute sends packets for destination to the neighbour via, which must be in the
// bridge's subnet: how processes in the namespace reach the Pods of a node. A route
// to destination that is there already is replaced.
func (n Namespace) SetRoute(destination netip.Prefix, via netip.Addr) error {
	err := n.Do(func() error {
		return netlink.RouteReplace(&netlink.Route{Dst: ipNet(destination), Gw: via.AsSlice()})
	})
	if err != nil {
		return fmt.Errorf("route %s via %s in network namespace %s: %w", destination, via, n.name, err)
	}
	return nil
}

// DeleteRoute removes the route to destination. It is no error if there is none.
func (n Namespace) DeleteRoute(destination netip.Prefix) error {
	err := n.Do(func() error {
		return netlink.RouteDel(&netlink.Route{Dst: ipNet(destination)})
	})
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("delete the route to %s in network namespace %s: %w", destination, n.name, err)
	}
	return nil
}
