package lvm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	"golang.org/x/sys/unix"
)

// component matches the names of LVM's devices for parts of RAID volumes and of
// thin pools, such as carve-x_rimage_0 of carve-x and carve-y_tdata of
// carve-y-tpool.
var component = regexp.MustCompile(`^(.+)_(?:rimage_[0-9]+|rmeta_[0-9]+|tdata|tmeta)$`)

// LockDir is where LVM keeps its locks.
const LockDir = "/run/lock/lvm"

// dropComponents removes the devices of parts that nothing lies on: an activation
// that was killed made them and not what they are parts of. LVM activates no
// volume of which a part is active, and removes such a part never. Parts of other volumes
// stay: an administrator activates them to repair what they are parts of.
//
// A command under way makes parts first, too: while there is one, nothing is done.
func dropComponents(group string, volumes []string) error {
	unlock, err := lockGroup(LockDir, group)
	if err != nil {
		return err
	}
	defer unlock()
	// Those without a table, which are in no other list, are in this one.
	devices, err := dmList()
	errs := []error{err}
	names := make([]string, len(devices))
	for i, d := range devices {
		names[i] = d.Name
	}
	for _, name := range componentsAlone(names, group, volumes) {
		d, err := dmStatus(name)
		if err == nil && d.OpenCount == 0 {
			err = dmRemove(name)
		}
		if err != nil && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrBusy) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// componentsAlone are the devices of parts of volumes whose whole has none.
func componentsAlone(names []string, group string, volumes []string) []string {
	there, wanted := map[string]bool{}, map[string]bool{}
	for _, v := range volumes {
		wanted[dmName(group, v)] = true
	}
	for _, name := range names {
		there[name] = true
	}
	var alone []string
	for _, name := range names {
		whole := component.FindStringSubmatch(name)
		if whole != nil && wanted[wholeOf(name)] && !there[whole[1]] && !there[whole[1]+"-tpool"] {
			alone = append(alone, name)
		}
	}
	return alone
}

// wholeOf is the device's name of the volume that a part, or a part of a part, belongs to.
func wholeOf(name string) string {
	for {
		part := component.FindStringSubmatch(name)
		if part == nil {
			return name
		}
		name = part[1]
	}
}

// lockGroup locks a volume group as LVM does. ErrBusy when somebody has it.
func lockGroup(dir, group string) (unlock func(), err error) {
	path := filepath.Join(dir, "V_"+group)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("lock of volume group %q: %w", group, err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock of volume group %q: %w", group, err)
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	var locked, now unix.Stat_t
	if err == nil {
		err = errors.Join(unix.Fstat(int(f.Fd()), &locked), unix.Stat(path, &now))
	}
	// Who unlocks removes the file: what is locked may not be the lock any more.
	if err == nil && (locked.Ino != now.Ino || locked.Dev != now.Dev) {
		err = os.ErrNotExist
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock of volume group %q: %w: %w", group, ErrBusy, err)
	}
	return func() {
		// Closing alone does not: a process that is being started may have it, too.
		_ = unix.Flock(int(f.Fd()), unix.LOCK_UN)
		_ = f.Close()
	}, nil
}
