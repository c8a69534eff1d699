package driver

import "sync"

// locks hands out one lock per key, without waiting. Its zero value is ready.
type locks struct {
	mu   sync.Mutex
	held map[string]struct{}
}

// acquire takes the key's lock. False: someone has it. The caller calls
// release once.
func (l *locks) acquire(key string) (release func(), ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, taken := l.held[key]; taken {
		return nil, false
	}
	if l.held == nil {
		l.held = map[string]struct{}{}
	}
	l.held[key] = struct{}{}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.held, key)
	}, true
}
