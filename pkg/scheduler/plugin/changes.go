package plugin

import "sync"

// changes wakes calls that wait for claims, named namespace/name. Its methods may be called
// concurrently; the zero value is ready.
type changes struct {
	mu    sync.Mutex
	byKey map[string]map[chan struct{}]struct{}
}

// subscribe returns a channel that receives after changes of any of the claims, once for several
// changes. The caller must call stop.
func (c *changes) subscribe(claims []string) (wake <-chan struct{}, stop func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byKey == nil {
		c.byKey = map[string]map[chan struct{}]struct{}{}
	}
	own := make(chan struct{}, 1)
	for _, key := range claims {
		if c.byKey[key] == nil {
			c.byKey[key] = map[chan struct{}]struct{}{}
		}
		c.byKey[key][own] = struct{}{}
	}
	return own, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, key := range claims {
			if delete(c.byKey[key], own); len(c.byKey[key]) == 0 {
				delete(c.byKey, key)
			}
		}
	}
}

func (c *changes) notify(claims ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, key := range claims {
		wake(c.byKey[key])
	}
}

func (c *changes) notifyAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, waiting := range c.byKey {
		wake(waiting)
	}
}

func wake(waiting map[chan struct{}]struct{}) {
	for own := range waiting {
		select {
		case own <- struct{}{}:
		default: // already awake
		}
	}
}
