package command

import (
	"context"
	"sync"

	"golang.org/x/sync/semaphore"
)

// Places bounds how many of something slow run at once in each volume group, or on the node, and how many
// there are on each set of disks. One whose disk does not answer keeps its place there, also for a process
// that hangs in the kernel, and no other's. It is safe for concurrent use.
type Places struct {
	// working is how many are at work, all how many there are with those that wait for a disk, and same how
	// many of these on the same disks.
	working, all, same int64

	mu sync.Mutex
	of map[string]*samePlaces
}

// samePlaces are those of one group or set of disks.
type samePlaces struct{ working, all, same *semaphore.Weighted }

// NewPlaces makes places for so many at work, so many with those that wait for a disk, and so many of
// these on the same disks.
func NewPlaces(working, all, same int64) *Places {
	return &Places{working: working, all: all, same: same, of: map[string]*samePlaces{}}
}

// at are the places where a group or disks are named.
func (p *Places) at(where string) *samePlaces {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of[where] == nil {
		p.of[where] = &samePlaces{semaphore.NewWeighted(p.working), semaphore.NewWeighted(p.all), semaphore.NewWeighted(p.same)}
	}
	return p.of[where]
}

// Take waits for a place on disks, and for one where a group, or the disks again, or nothing for the
// node, are named. What has it gives back its place at work while it waits for its disk. The caller calls
// release once.
func (p *Places) Take(ctx context.Context, where, disks string) (place *Place, release func(), err error) {
	same, at := p.at(disks).same, p.at(where)
	if err := same.Acquire(ctx, 1); err != nil {
		return nil, nil, err
	}
	if err := at.all.Acquire(ctx, 1); err != nil {
		same.Release(1)
		return nil, nil, err
	}
	if place, err = TakePlace(ctx, at.working); err != nil {
		at.all.Release(1)
		same.Release(1)
		return nil, nil, err
	}
	return place, func() {
		place.Release()
		at.all.Release(1)
		same.Release(1)
	}, nil
}
