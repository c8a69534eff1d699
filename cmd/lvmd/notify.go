package main

import (
	"fmt"
	"net"
	"os"
	"strings"
)

// notifySocket is the variable for the service manager's socket, see sd_notify(3).
const notifySocket = "NOTIFY_SOCKET"

// manager does nothing if socket is empty.
type manager struct {
	socket string
}

// findManager unsets the variable, as lvmd's children must not notify the manager.
func findManager() (manager, error) {
	m := manager{os.Getenv(notifySocket)}
	if err := os.Unsetenv(notifySocket); err != nil {
		return manager{}, fmt.Errorf("service manager: %w", err)
	}
	return m, nil
}

// notify sends assignments such as READY=1 in one message.
func (m manager) notify(assignments ...string) error {
	if m.socket == "" {
		return nil
	}
	// As in sd_notify, net maps a leading @ to the abstract namespace.
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
