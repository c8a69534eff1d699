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

// rootSet is an extended attribute of a root directory that SetRoot has
// finished. Users of the file system can neither see nor remove it.
const rootSet = "trusted.carve.root"

// maxID is the largest uid and gid: the next number means none.
const maxID = 1<<32 - 2

// maxRootMode excludes setuid, which has no effect on directories.
const maxRootMode = 0o3777

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

// SetRoot sets owner and mode of the root directory of the file system mounted
// at path, in the form of SettingRootOwner and SettingRootMode; empty values
// leave those of mkfs. It does so once per file system, so later changes by
// users stay. A killed run leaves no mark, and the next one repeats everything.
// SetRoot ignores a file system that has files or is mounted read-only.
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
	// Changing the mode of another user's directory would need one more
	// capability, and a killed run may have set the owner.
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

// isFresh reports whether the root directory is as mkfs, or a killed run of
// SetRoot, left it.
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
