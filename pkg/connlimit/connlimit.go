// Package connlimit bounds how many connections a server has at once, in all and from
// one address, so that one machine does not take what all others need.
//
// Callers: package uplink, for handshakes, and package https, for connections.
package connlimit

import (
	"net"
	"net/netip"
	"slices"
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
	bySource  map[netip.Prefix][]*Place // the unknown ones, by sourceOf, the oldest first
	// remembered has when each address was last remembered.
	remembered map[netip.Addr]time.Time
}

// Place is what a connection has until its End.
type Place struct {
	limiter *Limiter
	address netip.Addr
	unknown bool
	evict   func()
	// Guarded by the limiter's lock:
	ended, evicted bool
}

// Begin counts a connection of that peer, or returns no place and why there is none. Unless evict is
// nil, the connection may lose its place: where all places of unknown addresses are taken, a peer takes
// one of the address, or /64 of IPv6, that has the most, if that has more than its own would have, and
// else one of the address in its own /64 that has the most, by the same rule. So no peer is kept away by
// those who have many. Begin calls evict of the peer that loses its place, without a lock.
func (l *Limiter) Begin(peer net.Addr, evict func()) (*Place, Reason) {
	address := addressOf(peer)
	p := &Place{limiter: l, address: address, evict: evict}
	victim, reason := l.admit(p, l.Known != nil && l.Known(address))
	if reason != "" {
		return nil, reason
	}
	if victim != nil {
		victim.evict()
	}
	return p, ""
}

// admit counts a connection, or returns why it has no place. It returns the connection that lost its
// place to it, if any, which the caller has to evict.
func (l *Limiter) admit(p *Place, expected bool) (victim *Place, reason Reason) {
	l.mu.Lock()
	defer l.mu.Unlock()
	last, remembered := l.remembered[p.address]
	p.unknown = !expected && (!remembered || time.Since(last) > rememberFor)
	switch {
	case l.byAddress[p.address] >= l.PerAddress:
		return nil, ReasonAddress
	case p.unknown && p.address.Is6() && len(l.bySource[sourceOf(p.address)]) >= l.PerNetwork:
		if victim = l.neighborOf(p.address); victim == nil {
			return nil, ReasonNetwork
		}
	case p.unknown && l.unknown >= l.Total-l.Kept:
		if victim = l.oldestOfMost(sourceOf(p.address)); victim == nil {
			victim = l.neighborOf(p.address)
		}
		if victim == nil {
			return nil, ReasonTotal
		}
	case l.total >= l.Total:
		return nil, ReasonTotal
	}
	if victim != nil {
		victim.ended, victim.evicted = true, true
		l.count(victim, -1)
	}
	l.count(p, 1)
	return victim, ""
}

// oldestOfMost returns the oldest of the source that has the most, if it may lose its place to one of
// this source. It is called with the lock held.
func (l *Limiter) oldestOfMost(source netip.Prefix) *Place {
	var most []*Place
	for _, places := range l.bySource {
		if len(places) > len(most) {
			most = places
		}
	}
	if len(most) > len(l.bySource[source])+1 && most[0].evict != nil {
		return most[0]
	}
	return nil
}

// neighborOf returns the oldest of the address that has the most in the /64 of this one, if it may lose
// its place to one of this address. It is called with the lock held.
func (l *Limiter) neighborOf(address netip.Addr) *Place {
	var most *Place
	for _, p := range l.bySource[sourceOf(address)] {
		if most == nil || l.byAddress[p.address] > l.byAddress[most.address] {
			most = p
		}
	}
	if most != nil && l.byAddress[most.address] > l.byAddress[address]+1 && most.evict != nil {
		return most
	}
	return nil
}

// End counts the connection no more, however often it is called.
func (p *Place) End() {
	p.limiter.mu.Lock()
	defer p.limiter.mu.Unlock()
	if !p.ended {
		p.ended = true
		p.limiter.count(p, -1)
	}
}

// Evicted reports whether the connection lost its place to another one.
func (p *Place) Evicted() bool {
	p.limiter.mu.Lock()
	defer p.limiter.mu.Unlock()
	return p.evicted
}

// count is called with the lock held.
func (l *Limiter) count(p *Place, n int) {
	l.total += n
	if l.byAddress == nil {
		l.byAddress, l.bySource = map[netip.Addr]int{}, map[netip.Prefix][]*Place{}
	}
	if l.byAddress[p.address] += n; l.byAddress[p.address] == 0 {
		delete(l.byAddress, p.address)
	}
	if !p.unknown {
		return
	}
	l.unknown += n
	source := sourceOf(p.address)
	if n > 0 {
		l.bySource[source] = append(l.bySource[source], p)
		return
	}
	l.bySource[source] = slices.DeleteFunc(l.bySource[source], func(other *Place) bool { return other == p })
	if len(l.bySource[source]) == 0 {
		delete(l.bySource, source)
	}
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

// sourceOf is the /64 of an address of IPv6, else the address.
func sourceOf(address netip.Addr) netip.Prefix {
	return netip.PrefixFrom(address, min(address.BitLen(), 64)).Masked()
}

// Listener returns a listener that closes the connections at once that are beyond the
// limit, and calls rejected with them. The others count until they are closed; one that another peer takes
// the place of is closed, see Begin.
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
		place, reason := l.limit.Begin(c.RemoteAddr(), func() { _ = c.Close() })
		if place != nil {
			return &conn{c, place}, nil
		}
		l.rejected(c.RemoteAddr(), reason) // before the peer learns of it
		_ = c.Close()
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
