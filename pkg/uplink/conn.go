package uplink

import (
	"net"
	"sync"
)

// notifyConn closes the channel closed with the connection, also when the gRPC server closes it.
type notifyConn struct {
	net.Conn
	once   sync.Once
	closed chan struct{}
}

func newNotifyConn(c net.Conn) *notifyConn {
	return &notifyConn{Conn: c, closed: make(chan struct{})}
}

func (c *notifyConn) Close() error {
	var err error
	c.once.Do(func() {
		err = c.Conn.Close()
		close(c.closed)
	})
	return err
}

// connListener passes dialled connections to a gRPC server, as if it had accepted them.
type connListener struct {
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func newConnListener() *connListener {
	return &connListener{conns: make(chan net.Conn), closed: make(chan struct{})}
}

// put blocks until Accept takes c. It returns false if the listener was closed.
func (l *connListener) put(c net.Conn) bool {
	select {
	case l.conns <- c:
		return true
	case <-l.closed:
		return false
	}
}

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

func (l *connListener) Addr() net.Addr { return uplinkAddr{} }

type uplinkAddr struct{}

func (uplinkAddr) Network() string { return "uplink" }
func (uplinkAddr) String() string  { return "uplink" }
