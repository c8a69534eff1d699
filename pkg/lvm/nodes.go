package lvm

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/lvm/layout"
)

// dropStaleNodes removes what an LVM command that was killed, between removing
// a device and its nodes, left of the groups under /dev: the links
// /dev/GROUP/VOLUME and the nodes /dev/mapper/GROUP-VOLUME of volumes that the
// kernel has no device for. Such a node would lead to whatever device gets the
// number next, and vgcreate refuses a name that exists under /dev. Without udev,
// no other program removes them.
//
// Commands that run at the same time do no harm: LVM makes nodes after the
// device, and takes it as it comes that a node is gone already.
func dropStaleNodes(groups ...string) error {
	var errs []error
	for _, group := range groups {
		errs = append(errs, dropStaleLinks(group), dropStaleMappings(group))
	}
	return errors.Join(errs...)
}

// links are the names of LVM's links to the volumes of a group.
type links struct {
	group string
	names []string
}

// linksOf reads which links there are before an LVM command is run.
func linksOf(group string) links {
	l := links{group: group}
	entries, _ := os.ReadDir(filepath.Join("/dev", group)) // None is an answer, too.
	for _, e := range entries {
		if e.Type()&os.ModeSymlink != 0 {
			l.names = append(l.names, e.Name())
		}
	}
	return l
}

// restore makes the links again that a killed LVM command took away: it replaces
// the link of a volume that it changes by removing it first. Links of volumes that
// the kernel has no device for are left alone.
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
		// Only LVM's own links: a group may be called as a folder of others is.
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
		// Two hyphens are one within the name of another group.
		if ours && !strings.HasPrefix(volume, "-") && unmapped(e.Name()) {
			errs = append(errs, blockdev.RemoveNode(filepath.Join("/dev/mapper", e.Name())))
		}
	}
	return errors.Join(errs...)
}

// unmapped reports whether the kernel says that it has no such device.
func unmapped(name string) bool {
	_, err := dmStatus(name)
	return errors.Is(err, ErrNotFound)
}
