package main

import (
	"fmt"
	"net"
	"os"
	"strings"
)

// notifySocket is the environment variable with which a service manager says where
// it wants to hear of a service, see sd_notify(3).
const notifySocket = "NOTIFY_SOCKET"

// manager is the service manager that started lvmd, if it wants to hear of it.
type manager struct {
	socket string
}

// findManager takes the service manager's address out of the environment: what lvmd
// starts has nothing to report to it.
func findManager() (manager, error) {
	m := manager{os.Getenv(notifySocket)}
	if err := os.Unsetenv(notifySocket); err != nil {
		return manager{}, fmt.Errorf("service manager: %w", err)
	}
	return m, nil
}

// notify sends assignments, such as READY=1, in one message. It does nothing without a
// service manager.
func (m manager) notify(assignments ...string) error {
	if m.socket == "" {
		return nil
	}
	// A name that begins with @ is one in the kernel's abstract namespace, here as there.
	conn, err := net.Dial("unixgram", m.socket)
	if err != nil {
		return fmt.Errorf("service manager: %w", err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(strings.Join(assignments, "\n"))); err != nil {
		return fmt.Errorf("service manager: %w", err)
	}
	return nil
}
