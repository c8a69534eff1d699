// Package connlimit bounds how many connections a server has at once, in all and from
// one address, so that one machine does not take what all others need.
//
// Callers: package uplink, for handshakes, and package https, for connections.
package connlimit

import (
	"net"
	"net/netip"
	"sync"
	"time"
)

const (
	// rememberFor is how long an address is known after Remember: it may be another's by then.
	rememberFor = 24 * time.Hour
	// maxRemembered bounds how many addresses are remembered.
	maxRemembered = 16384
)

// Reason says which limit a connection would have exceeded.
type Reason string

// The reasons for which connections are rejected.
const (
	ReasonAddress Reason = "address"
	ReasonNetwork Reason = "network"
	ReasonTotal   Reason = "total"
)

// ReasonNames are all of them.
func ReasonNames() []string {
	return []string{string(ReasonAddress), string(ReasonNetwork), string(ReasonTotal)}
}

// Limiter counts connections. Its methods may be called concurrently. Its fields must be
// set before use.
type Limiter struct {
	// Total, PerAddress and PerNetwork are the most that there may be in all, of one address, and
	// of one /64 of IPv6. One machine may have all addresses of a /64, or all nodes may be in it.
	Total, PerAddress, PerNetwork int
	// Kept is how many of Total are kept for known addresses, which do not count in PerNetwork: those
	// that Remember was called with, and those that Known returns true for, unless it is nil.
	Kept  int
	Known func(netip.Addr) bool

	mu        sync.Mutex
	total     int
	unknown   int // of total, those of addresses that are not known
	byAddress map[netip.Addr]int
	byNetwork map[netip.Prefix]int // of unknown
	// remembered has when each address was last remembered.
	remembered map[netip.Addr]time.Time
}

// Place is what a connection has until its End.
type Place struct {
	limiter *Limiter
	address netip.Addr
	unknown bool
	once    sync.Once
}

// Begin counts a connection of that peer, or returns no place and why there is none.
func (l *Limiter) Begin(peer net.Addr) (*Place, Reason) {
	address := addressOf(peer)
	expected := l.Known != nil && l.Known(address)
	l.mu.Lock()
	defer l.mu.Unlock()
	last, remembered := l.remembered[address]
	p := &Place{limiter: l, address: address, unknown: !expected && (!remembered || time.Since(last) > rememberFor)}
	switch {
	case l.byAddress[address] >= l.PerAddress:
		return nil, ReasonAddress
	case p.unknown && address.Is6() && l.byNetwork[networkOf(address)] >= l.PerNetwork:
		return nil, ReasonNetwork
	case l.total >= l.Total || p.unknown && l.unknown >= l.Total-l.Kept:
		return nil, ReasonTotal
	}
	l.count(p, 1)
	return p, ""
}

// End counts the connection no more, however often it is called.
func (p *Place) End() {
	p.once.Do(func() {
		p.limiter.mu.Lock()
		defer p.limiter.mu.Unlock()
		p.limiter.count(p, -1)
	})
}

// count is called with the lock held.
func (l *Limiter) count(p *Place, n int) {
	l.total += n
	l.byAddress = added(l.byAddress, p.address, n)
	if !p.unknown {
		return
	}
	l.unknown += n
	if p.address.Is6() {
		l.byNetwork = added(l.byNetwork, networkOf(p.address), n)
	}
}

func added[K comparable](m map[K]int, key K, n int) map[K]int {
	if m == nil {
		m = map[K]int{}
	}
	if m[key] += n; m[key] == 0 {
		delete(m, key)
	}
	return m
}

// Remember makes the address of a peer known for a day.
func (l *Limiter) Remember(peer net.Addr) {
	address := addressOf(peer)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.remembered == nil {
		l.remembered = map[netip.Addr]time.Time{}
	}
	if _, again := l.remembered[address]; !again && len(l.remembered) >= maxRemembered {
		oldest := address
		for a, last := range l.remembered {
			if oldest == address || last.Before(l.remembered[oldest]) {
				oldest = a
			}
		}
		delete(l.remembered, oldest)
	}
	l.remembered[address] = time.Now()
}

// addressOf is what a peer is counted by. Peers without an address, as those of a Unix socket, are
// counted together.
func addressOf(peer net.Addr) netip.Addr {
	if tcp, ok := peer.(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr().Unmap().WithZone("")
	}
	return netip.Addr{}
}

func networkOf(address netip.Addr) netip.Prefix {
	return netip.PrefixFrom(address, 64).Masked()
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
		place, reason := l.limit.Begin(c.RemoteAddr())
		if place != nil {
			return &conn{c, place}, nil
		}
		_ = c.Close()
		l.rejected(c.RemoteAddr(), reason)
	}
}

// conn is a connection that is counted.
type conn struct {
	net.Conn
	place *Place
}

func (c *conn) Close() error {
	defer c.place.End()
	return c.Conn.Close()
}
