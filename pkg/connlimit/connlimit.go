// Package connlimit limits a server's concurrent connections, in total and per address, so that one
// machine cannot starve the others.
//
// Callers: package uplink, for handshakes, and package ops, for connections.
package connlimit

import (
	"net"
	"net/netip"
	"sync"
)

// Reason is the limit that a connection would have exceeded.
type Reason string

// The reasons for rejecting a connection.
const (
	ReasonAddress Reason = "address"
	ReasonNetwork Reason = "network"
	ReasonTotal   Reason = "total"
)

// Limiter counts connections. Set its fields before use. Its methods may be called concurrently.
type Limiter struct {
	// Total, PerAddress and PerNetwork limit the connections in total, of one address, and of one
	// /64 of IPv6: one machine may have all addresses of a /64, or all nodes may be in it.
	Total, PerAddress, PerNetwork int
	// Kept of Total are reserved for addresses for which Known returns true. These do not count
	// towards PerNetwork. A nil Known knows none.
	Kept  int
	Known func(netip.Addr) bool

	mu             sync.Mutex
	total, unknown int
	// by counts the connections of each address, and the unknown ones of each /64 of IPv6.
	by map[netip.Prefix]int
}

// Begin counts a connection of peer until end is called; later calls of end do nothing. It returns
// a nil end and a reason if a limit is reached.
func (l *Limiter) Begin(peer net.Addr) (end func(), reason Reason) {
	address := addressOf(peer)
	unknown := l.Known == nil || !l.Known(address)
	counted := []netip.Prefix{netip.PrefixFrom(address, address.BitLen())}
	if unknown && address.Is6() {
		counted = append(counted, netip.PrefixFrom(address, 64).Masked())
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.by[counted[0]] >= l.PerAddress:
		return nil, ReasonAddress
	case len(counted) > 1 && l.by[counted[1]] >= l.PerNetwork:
		return nil, ReasonNetwork
	case l.total >= l.Total, unknown && l.unknown >= l.Total-l.Kept:
		return nil, ReasonTotal
	}
	l.count(counted, unknown, 1)
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.count(counted, unknown, -1)
	}), ""
}

// count must be called with mu held.
func (l *Limiter) count(counted []netip.Prefix, unknown bool, n int) {
	l.total += n
	if unknown {
		l.unknown += n
	}
	if l.by == nil {
		l.by = map[netip.Prefix]int{}
	}
	for _, p := range counted {
		if l.by[p] += n; l.by[p] == 0 {
			delete(l.by, p)
		}
	}
}

// addressOf returns the zero Addr for peers without an address, such as those of a Unix socket:
// they are counted together.
func addressOf(peer net.Addr) netip.Addr {
	if tcp, ok := peer.(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr().Unmap().WithZone("")
	}
	return netip.Addr{}
}

// Listener returns a listener that closes connections beyond the limit at once, and calls rejected
// with them. The others count until they are closed.
func (l *Limiter) Listener(inner net.Listener, rejected func(net.Addr, Reason)) net.Listener {
	return &listener{inner, l, rejected}
}

type listener struct {
	net.Listener
	limit    *Limiter
	rejected func(net.Addr, Reason)
}

func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		end, reason := l.limit.Begin(c.RemoteAddr())
		if end != nil {
			return &conn{c, end}, nil
		}
		l.rejected(c.RemoteAddr(), reason) // before the peer notices
		_ = c.Close()
	}
}

type conn struct {
	net.Conn
	end func()
}

func (c *conn) Close() error {
	defer c.end()
	return c.Conn.Close()
}
