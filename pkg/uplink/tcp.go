package uplink

import (
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// watchPeer makes the kernel close a connection whose peer does not answer: by keepalives while
// idle, and by a limit on unacknowledged data, without which a connection with data in flight would
// last for a quarter of an hour.
func watchPeer(conn *net.TCPConn) error {
	err := conn.SetKeepAliveConfig(net.KeepAliveConfig{
		Enable: true, Idle: DeadPeerTimeout / 2, Interval: DeadPeerTimeout / 4, Count: 2,
	})
	if err != nil {
		return fmt.Errorf("set TCP keepalive: %w", err)
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return fmt.Errorf("set TCP user timeout: %w", err)
	}
	var setErr error
	err = raw.Control(func(fd uintptr) {
		setErr = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(DeadPeerTimeout/time.Millisecond))
	})
	if err == nil {
		err = setErr
	}
	if err != nil {
		return fmt.Errorf("set TCP user timeout: %w", err)
	}
	return nil
}
