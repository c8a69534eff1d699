package vm

import (
	"bytes"
	"net"
	"sync"

	"github.com/carve-csi/carve/e2e/vm/guest"
)

// greeted is a connection through a terminal of the machine's. Until the agent has set the
// terminal up, it would change and echo what is sent, so nothing is sent before the
// agent's greeting has come.
type greeted struct {
	net.Conn
	ready   chan struct{} // closed when the greeting has come, or will not come
	once    sync.Once
	pending []byte // what came after the greeting; of the one reader
	found   bool   // of the one reader
}

func newGreeted(connection net.Conn) *greeted {
	return &greeted{Conn: connection, ready: make(chan struct{})}
}

func (g *greeted) Read(buffer []byte) (int, error) {
	for !g.found {
		chunk := make([]byte, 512)
		n, err := g.Conn.Read(chunk)
		g.pending = append(g.pending, chunk[:n]...)
		if _, rest, ok := bytes.Cut(g.pending, []byte(guest.Greeting)); ok {
			g.pending, g.found = rest, true
			g.once.Do(func() { close(g.ready) })
		} else if err != nil {
			return 0, err
		}
	}
	if len(g.pending) > 0 {
		n := copy(buffer, g.pending)
		g.pending = g.pending[n:]
		return n, nil
	}
	return g.Conn.Read(buffer)
}

func (g *greeted) Write(content []byte) (int, error) {
	<-g.ready
	return g.Conn.Write(content)
}

// Close lets writers go on to their error.
func (g *greeted) Close() error {
	err := g.Conn.Close()
	g.once.Do(func() { close(g.ready) })
	return err
}
