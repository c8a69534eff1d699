package uplink

import (
	"context"
	"math/rand/v2"
	"time"
)

// pace is how often the controller's host is looked up. After a change the pause is first: a link was
// lost or could not be made, or an answer differs from the links. Each further pause is twice as
// long, up to the limit for the links as they are.
type pace struct {
	first time.Duration
	// cut, degraded and rest are the limits with no link up, with some, and with all.
	cut, degraded, rest time.Duration
}

// usualPace has 5,000 nodes at rest make 17 look-ups per second, each of which is six queries.
func usualPace() pace {
	return pace{first: 2 * time.Second, cut: 5 * time.Second, degraded: 30 * time.Second, rest: 5 * time.Minute}
}

// longestPause returns the limit for the links as they are.
func (c *client) longestPause() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	up := 0
	for _, l := range c.links {
		if l.up.Load() {
			up++
		}
	}
	switch up {
	case 0:
		return c.pace.cut
	case len(c.links):
		return c.pace.rest
	}
	return c.pace.degraded
}

// await waits for about the pause, or less when a link is lost, and returns the pause after that.
func (c *client) await(ctx context.Context, pause time.Duration) (next time.Duration) {
	due := time.Now().Add(spread(pause))
	for {
		select {
		case <-ctx.Done():
			return pause
		case <-time.After(time.Until(due)):
			return 2 * pause
		case <-c.lost:
			pause = c.pace.first
			// Never later, however often links are lost.
			if soon := time.Now().Add(spread(pause)); soon.Before(due) {
				due = soon
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

// spread returns half of d to one and a half, so that a fleet that lost a controller at one instant does
// not ask DNS at one.
func spread(d time.Duration) time.Duration {
	return d/2 + time.Duration(rand.Float64()*float64(d))
}
