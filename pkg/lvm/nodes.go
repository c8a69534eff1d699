package lvm

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/lvm/layout"
)

// dropStaleNodes removes links /dev/GROUP/VOLUME and nodes /dev/mapper/GROUP-VOLUME of volumes
// without a device. A command that is killed between removing a device and its nodes leaves
// them, and without udev, no other program removes them. Such a node would lead to the next
// device with its number, and vgcreate refuses a name that exists under /dev.
//
// It may run beside LVM commands: they create nodes after the device, and tolerate that a node
// is gone.
func dropStaleNodes(groups ...string) error {
	var errs []error
	for _, group := range groups {
		errs = append(errs, dropStaleLinks(group), dropStaleMappings(group))
	}
	return errors.Join(errs...)
}

type links struct {
	group string
	names []string
}

func linksOf(group string) links {
	l := links{group: group}
	entries, _ := os.ReadDir(filepath.Join("/dev", group)) // A missing directory has no links.
	for _, e := range entries {
		if e.Type()&os.ModeSymlink != 0 {
			l.names = append(l.names, e.Name())
		}
	}
	return l
}

// restore recreates links that a killed LVM command removed: to replace the link of a volume,
// LVM removes it first. It skips volumes without a device.
func (l links) restore() error {
	var errs []error
	for _, volume := range l.names {
		link, name := filepath.Join("/dev", l.group, volume), layout.DeviceName(l.group, volume)
		if _, err := os.Lstat(link); !errors.Is(err, os.ErrNotExist) {
			continue
		}
		if _, err := dmStatus(name); err != nil {
			continue
		}
		if err := os.Symlink(linkTarget(name), link); err != nil && !errors.Is(err, os.ErrExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func linkTarget(name string) string { return "/dev/mapper/" + name }

func dropStaleLinks(group string) error {
	dir := filepath.Join("/dev", group)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	var errs []error
	left := 0
	for _, e := range entries {
		link, name := filepath.Join(dir, e.Name()), layout.DeviceName(group, e.Name())
		// Touch only LVM's own links: a group may share its name with another program's
		// directory.
		if target, _ := os.Readlink(link); target != linkTarget(name) || !unmapped(name) {
			left++
			continue
		}
		errs = append(errs, blockdev.RemoveNode(link))
	}
	if err == nil && left == 0 {
		errs = append(errs, blockdev.RemoveNode(dir))
	}
	return errors.Join(append(errs, err)...)
}

func dropStaleMappings(group string) error {
	entries, err := os.ReadDir("/dev/mapper")
	if err != nil {
		return err
	}
	var errs []error
	prefix := layout.DeviceName(group, "")
	for _, e := range entries {
		volume, ours := strings.CutPrefix(e.Name(), prefix)
		// Two hyphens stand for one within another group's name.
		if ours && !strings.HasPrefix(volume, "-") && unmapped(e.Name()) {
			errs = append(errs, blockdev.RemoveNode(filepath.Join("/dev/mapper", e.Name())))
		}
	}
	return errors.Join(errs...)
}

func unmapped(name string) bool {
	_, err := dmStatus(name)
	return errors.Is(err, ErrNotFound)
}
