package lvmd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
)

const (
	// graceful bounds how long a stop waits for calls; with the time to end them, it stays below
	// five seconds.
	graceful = 3 * time.Second
)

// LockStateDir creates dir if necessary and locks it against other lvmd processes. The lock
// ends with release or the process.
func LockStateDir(dir string) (release func(), err error) {
	return lock(dir, "lock", "the state directory")
}

// LockNode locks the node against other lvmd processes, whatever their state directory. dir is
// LVM's own lock directory, see lvm.LockDir, which all programs that change volume groups
// share, even in containers.
func LockNode(dir string) (release func(), err error) {
	return lock(dir, "carve-lvmd", "LVM's lock directory")
}

func lock(dir, name, what string) (release func(), err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		f.Close()
		return nil, fmt.Errorf("another lvmd is running with %s %s", what, dir)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("locking %s %s: %w", what, dir, err)
	}
	return func() { f.Close() }, nil
}

// Listen listens on a unix socket that only its owner can use. It replaces a socket that a
// previous lvmd left, but not one in use. The caller's locks exclude a race with another lvmd.
func Listen(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	if err := CheckSocket(path); err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("socket: %w", err)
	}
	// Set the mode before anyone can connect.
	old := unix.Umask(0o177)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	unix.Umask(old)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	// An lvmd that ends must not remove its successor's socket.
	l.SetUnlinkOnClose(false)
	return l, nil
}

// CheckSocket returns an error if the path is not a socket or a program answers on it.
func CheckSocket(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("socket: %w", err)
	case info.Mode()&os.ModeSocket == 0:
		return fmt.Errorf("socket %s: the path exists and is no socket", path)
	}
	conn, err := (&net.Dialer{Timeout: graceful}).Dial("unix", path)
	switch {
	case err == nil:
		conn.Close()
		return fmt.Errorf("socket %s: another lvmd, or another program, answers on it", path)
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, os.ErrNotExist):
		return nil
	default:
		return fmt.Errorf("socket %s: whether a program answers on it is not known: %w", path, err)
	}
}

// StopServers stops gRPC servers that serve s, then s itself. Calls in flight get a few
// seconds. It returns within five seconds unless the kernel holds a command.
func StopServers(s *Service, servers ...*grpc.Server) error {
	ctx, cancel := context.WithTimeout(context.Background(), graceful)
	defer cancel()
	s.Quiesce()
	var stopping sync.WaitGroup
	for _, server := range servers {
		defer context.AfterFunc(ctx, server.Stop)()
		stopping.Go(server.GracefulStop)
	}
	stopping.Wait()
	return s.Stop(ctx)
}
