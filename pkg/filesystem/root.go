package filesystem

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// rootSet is the extended attribute of a root directory whose owner and mode SetRoot has set. Users
// of the file system can neither see nor remove it.
const rootSet = "trusted.carve.root"

// maxID is the largest number of a user or a group: the next one means none.
const maxID = 1<<32 - 2

// maxRootMode has all bits but setuid, which does nothing to a directory.
const maxRootMode = 0o3777

// owner is a user and a group by their numbers.
type owner struct{}

func (owner) canonical(given string) (string, bool) {
	uid, gid, err := parseOwner(given)
	return fmt.Sprintf("%d:%d", uid, gid), err == nil
}

func (owner) String() string { return fmt.Sprintf("UID:GID, each 0 to %d", maxID) }

func parseOwner(s string) (uid, gid int, err error) {
	user, group, _ := strings.Cut(s, ":")
	u, errUser := strconv.ParseUint(user, 10, 32)
	g, errGroup := strconv.ParseUint(group, 10, 32)
	if err := errors.Join(errUser, errGroup); err != nil || max(u, g) > maxID {
		return 0, 0, fmt.Errorf("%q is not %s", s, owner{})
	}
	return int(u), int(g), nil
}

// mode is the permissions of a directory, in octal.
type mode struct{}

func (mode) canonical(given string) (string, bool) {
	bits, err := parseMode(given)
	return fmt.Sprintf("%04o", bits), err == nil
}

func (mode) String() string { return fmt.Sprintf("0 to %o in octal", maxRootMode) }

func parseMode(s string) (uint32, error) {
	bits, err := strconv.ParseUint(s, 8, 32)
	if err != nil || bits > maxRootMode {
		return 0, fmt.Errorf("%q is not %s", s, mode{})
	}
	return uint32(bits), nil
}

// SetRoot sets the owner and the mode of the root directory of a file system that is mounted at a
// path, as SettingRootOwner and SettingRootMode say; an empty one leaves what mkfs made. It does so
// once for a file system: what its users change stays. A run that was killed has not
// marked the root yet, and the next one repeats it all. A file system that has files, or
// is mounted read-only, is left alone.
func SetRoot(path, rootOwner, rootMode string) error {
	root, err := os.OpenFile(path, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer root.Close()
	fresh, err := isFresh(root)
	if err != nil || !fresh {
		return err
	}
	uid, gid, fd := 0, 0, int(root.Fd())
	if rootOwner != "" {
		if uid, gid, err = parseOwner(rootOwner); err != nil {
			return err
		}
	}
	// The mode of another user's directory could be set with one more capability only, and a
	// killed run may have set the owner.
	err = unix.Fchown(fd, 0, 0)
	if errors.Is(err, unix.EROFS) {
		return nil
	}
	if err == nil && rootMode != "" {
		var bits uint32
		if bits, err = parseMode(rootMode); err == nil {
			err = unix.Fchmod(fd, bits)
		}
	}
	if err == nil {
		err = unix.Fchown(fd, uid, gid)
	}
	if err == nil {
		err = unix.Fsetxattr(fd, rootSet, []byte("1"), 0)
	}
	if err != nil {
		return fmt.Errorf("set owner and mode of %s: %w", path, err)
	}
	return nil
}

// isFresh reports whether a file system's root directory is as mkfs made it, or as a run of SetRoot
// left it that was killed.
func isFresh(root *os.File) (bool, error) {
	_, err := unix.Fgetxattr(int(root.Fd()), rootSet, nil)
	switch {
	case err == nil:
		return false, nil
	case !errors.Is(err, unix.ENODATA):
		return false, &os.PathError{Op: "getxattr", Path: root.Name(), Err: err}
	}
	names, err := root.Readdirnames(2)
	if err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	return len(names) == 0 || len(names) == 1 && names[0] == "lost+found", nil
}
