// Package nofollow works on paths without ever following a symbolic link below
// a trusted directory: the kernel resolves each path in one step and refuses
// links (openat2 with RESOLVE_BENEATH and RESOLVE_NO_SYMLINKS), and what is
// done then is done relative to the directory that was found. Mounts are crossed
// (no RESOLVE_NO_XDEV): single directories below the trusted one are mounts where
// the program runs in a container, and each volume is one. A process that
// swaps a directory for a link in between changes nothing.
//
// The trusted directory itself may be a link: who runs the program names it.
// Paths that do not lie below it are resolved from the root directory, by the
// same rule. It needs Linux 5.6.
//
// Package driver and package mount are the callers.
package nofollow

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Parent opens the directory that holds the path's last component, and returns
// that component. The caller closes the directory, which can be used for
// nothing but to start from (O_PATH). ELOOP: a link is on the way. EINVAL: the
// path is not absolute and clean.
func Parent(trusted, path string) (dir *os.File, name string, err error) {
	if filepath.Clean(path) != path {
		return nil, "", &os.PathError{Op: "openat2", Path: path, Err: unix.EINVAL}
	}
	dir, err = Directory(trusted, filepath.Dir(path))
	return dir, filepath.Base(path), err
}

// Directory opens the directory at the path as Parent does.
func Directory(trusted, path string) (*os.File, error) {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		return nil, &os.PathError{Op: "openat2", Path: path, Err: unix.EINVAL}
	}
	base, relative := split(trusted, path)
	start, err := os.OpenFile(base, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer start.Close()
	fd, err := unix.Openat2(int(start.Fd()), relative, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC | unix.O_DIRECTORY,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return nil, &os.PathError{Op: "openat2", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// split returns where to start and how to go on from there.
func split(trusted, path string) (base, relative string) {
	if trusted != "" {
		if path == trusted {
			return trusted, "."
		}
		if rest, below := strings.CutPrefix(path, strings.TrimSuffix(trusted, "/")+"/"); below {
			return trusted, rest
		}
	}
	if rest := strings.TrimPrefix(path, "/"); rest != "" {
		return "/", rest
	}
	return "/", "."
}

// Below reports whether the path lies below the directory.
func Below(trusted, path string) bool {
	return trusted != "" && strings.HasPrefix(path, strings.TrimSuffix(trusted, "/")+"/")
}

// Mkdir makes a directory. Errors are those of os.Mkdir, and ELOOP.
func Mkdir(trusted, path string, mode fs.FileMode) error {
	return within(trusted, path, "mkdir", func(dir int, name string) error {
		return unix.Mkdirat(dir, name, uint32(mode.Perm()))
	})
}

// Touch makes an empty file that must not exist yet.
func Touch(trusted, path string, mode fs.FileMode) error {
	return within(trusted, path, "open", func(dir int, name string) error {
		fd, err := unix.Openat(dir, name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, uint32(mode.Perm()))
		if err != nil {
			return err
		}
		return unix.Close(fd)
	})
}

// Remove removes a file, a link or an empty directory.
func Remove(trusted, path string) error {
	return within(trusted, path, "remove", func(dir int, name string) error {
		fileErr := unix.Unlinkat(dir, name, 0)
		if fileErr == nil {
			return nil
		}
		dirErr := unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
		if errors.Is(dirErr, unix.ENOTDIR) {
			return fileErr
		}
		return dirErr
	})
}

func within(trusted, path, op string, do func(dir int, name string) error) error {
	dir, name, err := Parent(trusted, path)
	if err != nil {
		return err
	}
	defer dir.Close()
	for {
		err := do(int(dir.Fd()), name)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EINTR):
		default:
			return &os.PathError{Op: op, Path: path, Err: err}
		}
	}
}
