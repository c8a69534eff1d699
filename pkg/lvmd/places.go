package lvmd

import (
	"context"
	"sync"

	"golang.org/x/sync/semaphore"
)

// places bounds how many of something slow run at once in each volume group. One whose disk does
// not answer keeps its own places, also for a process that hangs in the kernel, and no others'.
type places struct {
	each int64

	mu sync.Mutex
	of map[string]*semaphore.Weighted
}

func newPlaces(each int64) *places {
	return &places{each: each, of: map[string]*semaphore.Weighted{}}
}

// take waits for a place in a group. The caller calls release once.
func (p *places) take(ctx context.Context, group string) (release func(), err error) {
	p.mu.Lock()
	s := p.of[group]
	if s == nil {
		s = semaphore.NewWeighted(p.each)
		p.of[group] = s
	}
	p.mu.Unlock()
	if err := s.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	return func() { s.Release(1) }, nil
}
