package uplink

import (
	"net"
	"sync"
)

// notifyConn is a connection whose channel closed is closed with it, also when the gRPC server
// closes it.
type notifyConn struct {
	net.Conn
	once   sync.Once
	closed chan struct{}
}

func newNotifyConn(c net.Conn) *notifyConn {
	return &notifyConn{Conn: c, closed: make(chan struct{})}
}

// Close closes the connection; calls after the first do nothing.
func (c *notifyConn) Close() error {
	var err error
	c.once.Do(func() {
		err = c.Conn.Close()
		close(c.closed)
	})
	return err
}

// connListener is a net.Listener whose connections were dialled, not accepted:
// it hands those that are put into it to a gRPC server.
type connListener struct {
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func newConnListener() *connListener {
	return &connListener{conns: make(chan net.Conn), closed: make(chan struct{})}
}

// put hands c to the call of Accept; false when the listener was closed.
func (l *connListener) put(c net.Conn) bool {
	select {
	case l.conns <- c:
		return true
	case <-l.closed:
		return false
	}
}

// Accept waits for the next connection that is put.
func (l *connListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close makes Accept and put fail. Connections handed over stay open.
func (l *connListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr names the listener in logs; there is no address to dial.
func (l *connListener) Addr() net.Addr { return uplinkAddr{} }

type uplinkAddr struct{}

func (uplinkAddr) Network() string { return "uplink" }
func (uplinkAddr) String() string  { return "uplink" }
