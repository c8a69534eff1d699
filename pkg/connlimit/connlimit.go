// Package connlimit bounds how many connections a server has at once, in all and from
// one address, so that one machine does not take what all others need.
//
// Callers: package uplink, for handshakes, and package ops, for connections.
package connlimit

import (
	"net"
	"net/netip"
	"sync"
)

// Reason says which limit a connection would have exceeded.
type Reason string

// The reasons for which connections are rejected.
const (
	ReasonAddress Reason = "address"
	ReasonNetwork Reason = "network"
	ReasonTotal   Reason = "total"
)

// Limiter counts connections. Its methods may be called concurrently. Its fields must be
// set before use.
type Limiter struct {
	// Total, PerAddress and PerNetwork are the most that there may be in all, of one address, and
	// of one /64 of IPv6. One machine may have all addresses of a /64, or all nodes may be in it.
	Total, PerAddress, PerNetwork int
	// Kept is how many of Total are kept for addresses that Known returns true for. These do not count in
	// PerNetwork. A nil Known knows none.
	Kept  int
	Known func(netip.Addr) bool

	mu             sync.Mutex
	total, unknown int
	// by counts the connections of addresses, and the unknown ones of /64s of IPv6.
	by map[netip.Prefix]int
}

// Begin counts a connection of that peer until end is called, for the first time. It returns a reason and
// no end if there is no place for the connection.
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

// count is called with the lock held.
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

// addressOf is what a peer is counted by. Peers without an address, as those of a Unix socket, are
// counted together.
func addressOf(peer net.Addr) netip.Addr {
	if tcp, ok := peer.(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr().Unmap().WithZone("")
	}
	return netip.Addr{}
}

// Listener returns a listener that closes the connections at once that are beyond the
// limit, and calls rejected with them. The others count until they are closed.
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
		l.rejected(c.RemoteAddr(), reason) // before the peer learns of it
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
