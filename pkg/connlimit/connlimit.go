// Package connlimit bounds how many connections a server has at once, in all and from
// one address, so that one machine does not take what all others need.
//
// Callers: package uplink, for handshakes, and package https, for connections.
package connlimit

import (
	"net"
	"net/netip"
	"sync"
)

// Limiter counts connections. Begin and End may be called concurrently. Its fields must
// be set before use.
type Limiter struct {
	// Total and PerAddress are the most that there may be in all, and of one address.
	Total, PerAddress int

	mu        sync.Mutex
	total     int
	byAddress map[netip.Prefix]int
}

// Begin counts a connection of that address, and reports false when there are too many.
func (l *Limiter) Begin(address netip.Prefix) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.total >= l.Total || l.byAddress[address] >= l.PerAddress {
		return false
	}
	if l.byAddress == nil {
		l.byAddress = map[netip.Prefix]int{}
	}
	l.total++
	l.byAddress[address]++
	return true
}

// End counts it no more. It is called once for each Begin that reported true.
func (l *Limiter) End(address netip.Prefix) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total--
	if l.byAddress[address]--; l.byAddress[address] == 0 {
		delete(l.byAddress, address)
	}
}

// Address is what a peer is counted by: its IPv4 address, or the first 64 bits of its
// IPv6 address, of which one machine may use all the rest. Peers without an address, as
// those of a Unix socket, are counted together.
func Address(peer net.Addr) netip.Prefix {
	tcp, ok := peer.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	address := tcp.AddrPort().Addr().Unmap().WithZone("")
	bits := address.BitLen()
	if address.Is6() {
		bits = 64
	}
	prefix, err := address.Prefix(bits)
	if err != nil {
		return netip.Prefix{}
	}
	return prefix
}

// Listener returns a listener that closes the connections at once that are beyond the
// limit. The others count until they are closed.
func (l *Limiter) Listener(inner net.Listener) net.Listener { return &listener{inner, l} }

type listener struct {
	net.Listener
	limit *Limiter
}

func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		address := Address(c.RemoteAddr())
		if l.limit.Begin(address) {
			return &conn{Conn: c, end: sync.OnceFunc(func() { l.limit.End(address) })}, nil
		}
		_ = c.Close()
	}
}

// conn is a connection that is counted.
type conn struct {
	net.Conn
	end func()
}

func (c *conn) Close() error {
	defer c.end()
	return c.Conn.Close()
}
