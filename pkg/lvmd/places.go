package lvmd

import (
	"context"
	"sync"

	"golang.org/x/sync/semaphore"

	"github.com/carve-csi/carve/pkg/command"
)

// places bounds how many of something slow run at once in each volume group, or on each set of disks,
// see volumegroup.Disks. One whose disk does not answer keeps its own places, also for a process that
// hangs in the kernel, and no others'.
type places struct {
	// working is how many are at work, and all how many there are with those that wait for a disk.
	working, all int64

	mu sync.Mutex
	of map[string]*samePlaces
}

// samePlaces are those of one group, or of one set of disks.
type samePlaces struct{ working, all *semaphore.Weighted }

func newPlaces(working, all int64) *places {
	return &places{working: working, all: all, of: map[string]*samePlaces{}}
}

// take waits for a place where a group or disks are named, which is given back while what has it waits for its disk. The caller
// calls release once.
func (p *places) take(ctx context.Context, where string) (place *command.Place, release func(), err error) {
	p.mu.Lock()
	g := p.of[where]
	if g == nil {
		g = &samePlaces{semaphore.NewWeighted(p.working), semaphore.NewWeighted(p.all)}
		p.of[where] = g
	}
	p.mu.Unlock()
	if err := g.all.Acquire(ctx, 1); err != nil {
		return nil, nil, err
	}
	if place, err = command.TakePlace(ctx, g.working); err != nil {
		g.all.Release(1)
		return nil, nil, err
	}
	return place, func() {
		place.Release()
		g.all.Release(1)
	}, nil
}
