package netns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"runtime"

	"github.com/vishvananda/netns"
)

// Do runs f on a thread that is in the namespace. Sockets that f opens and processes
// that f starts belong to the namespace for good; goroutines that f starts do not run
// in it. f must not unlock the thread.
func (n Namespace) Do(f func() error) error {
	return onThread(func() error {
		handle, err := netns.GetFromName(n.name)
		if err != nil {
			return fmt.Errorf("open network namespace %s: %w", n.name, err)
		}
		err = netns.Set(handle)
		_ = handle.Close() // Only read.
		if err != nil {
			return fmt.Errorf("enter network namespace %s: %w", n.name, err)
		}
		return f()
	})
}

// onThread runs f on a thread of its own and puts the thread back into the namespace
// that it was in. A thread that cannot be put back is ended with its goroutine.
func onThread(f func() error) error {
	result := make(chan error, 1)
	go func() {
		var err error
		// Sent even when f ends its goroutine, as t.Fatal does.
		defer func() { result <- err }()
		runtime.LockOSThread()
		origin, err := netns.Get()
		if err != nil {
			err = fmt.Errorf("open the thread's network namespace: %w", err)
			return
		}
		err = f()
		back := netns.Set(origin)
		_ = origin.Close() // Only read.
		if back != nil {
			err = errors.Join(err, fmt.Errorf("leave the network namespace: %w", back))
			return
		}
		runtime.UnlockOSThread()
	}()
	return <-result
}

// Start starts command in the namespace; the caller waits for it as usual. Only its
// network is the namespace's: mounts, and with them what /sys/class/net shows, are the
// caller's. SysProcAttr.Pdeathsig must not be set: the signal would come when the
// thread that started the command ends.
func (n Namespace) Start(command *exec.Cmd) error {
	return n.Do(command.Start)
}

// Run starts command in the namespace and waits for its end.
func (n Namespace) Run(command *exec.Cmd) error {
	if err := n.Start(command); err != nil {
		return err
	}
	return command.Wait()
}

// DialContext connects to address in the namespace; it has the signature that
// http.Transport, rest.Config and grpc.WithContextDialer ask for (the last with "tcp"
// bound). The host in address must be an IP address: the namespace has no resolver,
// and dialling several addresses at once would leave its thread.
func (n Namespace) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	if _, err := netip.ParseAddrPort(address); err != nil {
		return nil, fmt.Errorf("dial in network namespace %s: address: got %q, want IP:PORT", n.name, address)
	}
	var connection net.Conn
	err := n.Do(func() (err error) {
		connection, err = new(net.Dialer).DialContext(ctx, network, address)
		return err
	})
	if err != nil {
		return nil, err
	}
	return connection, nil
}

// Listen listens on address in the namespace.
func (n Namespace) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	var listener net.Listener
	err := n.Do(func() (err error) {
		listener, err = new(net.ListenConfig).Listen(ctx, network, address)
		return err
	})
	if err != nil {
		return nil, err
	}
	return listener, nil
}
