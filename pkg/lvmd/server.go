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
	// graceful is how long calls under way have when lvmd is to stop;
	// with what ending them takes, a stop stays below five seconds.
	graceful = 3 * time.Second
)

// LockStateDir makes sure that no other lvmd works with the directory, which
// it makes if needed. The lock ends with release, or with the process.
func LockStateDir(dir string) (release func(), err error) {
	return lock(dir, "lock", "the state directory")
}

// LockNode makes sure that no other lvmd works on this node, whatever its state
// directory. dir is that of LVM's own locks, see lvm.LockDir: the lock holds as far
// as those do, which every program that changes volume groups shares, also from within a
// container.
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

// Listen listens on a unix socket that only its owner can use. A socket that
// an lvmd left behind is replaced; one that a program answers on is not. Between
// the look and the replacement the caller's locks keep another lvmd away.
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
	// The mode must be right before anyone can connect.
	old := unix.Umask(0o177)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	unix.Umask(old)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	// An lvmd that ends must not take away its successor's socket.
	l.SetUnlinkOnClose(false)
	return l, nil
}

// CheckSocket says why Listen would not listen at a path: what is there is no
// socket, or a program answers on it.
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

// StopServers stops gRPC servers that serve s, and then s itself: streams
// end, calls under way have a few seconds, the rest is cut off. It returns
// within five seconds unless the kernel holds a command.
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
