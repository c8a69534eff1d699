package uplink

import (
	"context"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"
)

// Named are addresses of the controller's replicas that one of them named to the node.
type Named struct {
	// From is the peer of the connection over which they were named.
	From net.Addr
	// Addresses have the port of ClientOptions.Addresses.
	Addresses []netip.Addr
}

// pace is how often the controller's host is looked up. The first pause after a change is short: a link
// was lost or could not be made, or an answer was not as the links are. Each further pause is twice as
// long as the one before it, up to the limit for the links as they are.
type pace struct {
	// fast is the first pause after a change while no replica that is connected has named addresses.
	fast time.Duration
	// slow is the limit while no replica that is connected has named addresses.
	slow time.Duration
	// degraded is the limit while one has, and a link is down, and the first pause after a change. A new replica is
	// named by those that are connected, so that DNS only says which address is gone, which is not urgent: with one
	// replica of two lost, 5,000 nodes would ask 30,000 queries in two seconds.
	degraded time.Duration
	// rare is the limit while one has, and all links are up.
	rare time.Duration
	// grace is for how long a named address is kept that is not in the answers: these may be as old.
	grace time.Duration
}

// usualPace has 5,000 nodes in rest make 5.6 look-ups per second, which are 33 queries: the third name that the
// search list of a Pod makes is the right one, and each is asked for IPv4 and IPv6.
func usualPace() pace {
	return pace{fast: 2 * time.Second, slow: 5 * time.Second, degraded: 30 * time.Second, rare: 15 * time.Minute, grace: 30 * time.Second}
}

// pauses returns the first pause after a change and the longest one while as many links of all are up, of which
// one is to a replica that has named addresses, or none.
func (p pace) pauses(up, all int, names bool) (first, longest time.Duration) {
	switch {
	case !names:
		return p.fast, p.slow
	case up < all:
		return p.degraded, p.degraded
	}
	return p.degraded, p.rare
}

// await takes in what replicas name until the next look-up is due, and returns the pause after that. The look-up is due
// after about the pause, or earlier when a link is lost.
func (c *client) await(ctx context.Context, pause time.Duration, links *sync.WaitGroup) (next time.Duration) {
	due := time.Now().Add(spread(pause))
	timer := time.NewTimer(time.Until(due))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return pause
		case <-timer.C:
			return 2 * pause
		case named := <-c.o.Named:
			c.addNamed(ctx, named, links)
		case <-c.lost:
			pause, _ = c.pauses()
			// Not later, however often links are lost.
			if soon := time.Now().Add(spread(pause)); soon.Before(due) {
				due = soon
				timer.Reset(time.Until(due))
			}
		}
	}
}

// lookSoon has the host looked up as after a change.
func (c *client) lookSoon() {
	select {
	case c.lost <- struct{}{}:
	default: // it will be
	}
}

// addNamed starts links to addresses that a replica named. It abandons none, because a replica's view may be
// old: look-ups do that.
func (c *client) addNamed(ctx context.Context, n Named, running *sync.WaitGroup) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if host, _, err := net.SplitHostPort(n.From.String()); err == nil {
		if by := c.links[net.JoinHostPort(host, c.port)]; by != nil {
			by.names.Store(true)
		}
	}
	for _, address := range n.Addresses {
		if c.addLink(ctx, address.String(), time.Now().Add(c.pace.grace), running) {
			c.log.Info("a replica of the controller named an address", "by", n.From.String(), "address", address)
		}
	}
}

// addLink starts the link to a host unless there is one, and reports whether it did. The caller holds c.mu.
func (c *client) addLink(ctx context.Context, host string, keptUntil time.Time, running *sync.WaitGroup) bool {
	addr := net.JoinHostPort(host, c.port)
	if c.links[addr] != nil {
		return false
	}
	l := newLink(c, addr)
	l.keptUntil = keptUntil
	c.links[addr] = l
	running.Go(func() { l.run(ctx) })
	return true
}

// pauses returns the first pause after a change and the longest one with the links as they are.
func (c *client) pauses() (first, longest time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	up, names := 0, false
	for _, l := range c.links {
		if l.up.Load() {
			up++
			names = names || l.names.Load()
		}
	}
	return c.pace.pauses(up, len(c.links), names)
}

// spread returns half of d to one and a half, so that a fleet that lost a controller at one instant does
// not ask DNS at one.
func spread(d time.Duration) time.Duration {
	return d/2 + time.Duration(rand.Float64()*float64(d))
}
