package command

import (
	"context"
	"sync"

	"golang.org/x/sync/semaphore"
)

// Places limits slow work: how much runs at once in each volume group, or on the node, and how
// much exists on each set of disks. Work whose disk does not answer keeps its place among that
// disk's, even for a process that hangs in the kernel, and takes no other's. Places is safe for
// concurrent use.
type Places struct {
	// working limits the working, all those plus the ones waiting for a disk, and same those of
	// all on the same disks.
	working, all, same int64

	mu sync.Mutex
	of map[string]*samePlaces
}

type samePlaces struct{ working, all, same *semaphore.Weighted }

// NewPlaces returns places with the three limits: at work, including those waiting for a disk,
// and of these on the same disks.
func NewPlaces(working, all, same int64) *Places {
	return &Places{working: working, all: all, same: same, of: map[string]*samePlaces{}}
}

func (p *Places) at(where string) *samePlaces {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of[where] == nil {
		p.of[where] = &samePlaces{semaphore.NewWeighted(p.working), semaphore.NewWeighted(p.all), semaphore.NewWeighted(p.same)}
	}
	return p.of[where]
}

// Take waits for a place on disks, and for one in where: a group, the disks again, or "" for
// the node. The holder gives up its place at work while it waits for its disk. The caller calls
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
