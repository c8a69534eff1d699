package uplink

import (
	"context"
	"math/rand/v2"
	"time"
)

// pace holds the pauses between lookups of the controller's host. The pause is first after a
// change: a link was lost or could not be made, or the answer differs from the links. It then
// doubles up to the limit.
type pace struct {
	first time.Duration
	// cut, degraded and rest are the limits with no link up, with some, and with all.
	cut, degraded, rest time.Duration
}

// usualPace makes 5,000 nodes at rest cause 17 lookups per second, of six queries each.
func usualPace() pace {
	return pace{first: 2 * time.Second, cut: 5 * time.Second, degraded: 30 * time.Second, rest: 5 * time.Minute}
}

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

// await waits for about pause, or less if a link is lost, and returns the pause after that.
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
			// Never delay the lookup, however often links are lost.
			if soon := time.Now().Add(spread(pause)); soon.Before(due) {
				due = soon
			}
		}
	}
}

// lookSoon resets the pause between lookups.
func (c *client) lookSoon() {
	select {
	case c.lost <- struct{}{}:
	default: // already requested
	}
}

// spread returns between half of d and one and a half, so that a fleet that lost a controller at
// one instant does not query DNS at one instant.
func spread(d time.Duration) time.Duration {
	return d/2 + time.Duration(rand.Float64()*float64(d))
}
