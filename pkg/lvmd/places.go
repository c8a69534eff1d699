package lvmd

import (
	"context"
	"sync"

	"golang.org/x/sync/semaphore"

	"github.com/carve-csi/carve/pkg/command"
)

// places bounds how many of something slow run at once in each volume group, and how many there are on
// each set of disks, see volumegroup.Disks. One whose disk does not answer keeps its place there, also for
// a process that hangs in the kernel, and no other's.
type places struct {
	// working is how many are at work, all how many there are with those that wait for a disk, and same how
	// many of these on the same disks.
	working, all, same int64

	mu sync.Mutex
	of map[string]*samePlaces
}

// samePlaces are those of one group or set of disks.
type samePlaces struct{ working, all, same *semaphore.Weighted }

func newPlaces(working, all, same int64) *places {
	return &places{working: working, all: all, same: same, of: map[string]*samePlaces{}}
}

// at are the places where a group or disks are named.
func (p *places) at(where string) *samePlaces {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of[where] == nil {
		p.of[where] = &samePlaces{semaphore.NewWeighted(p.working), semaphore.NewWeighted(p.all), semaphore.NewWeighted(p.same)}
	}
	return p.of[where]
}

// take waits for a place on disks, and for one where a group, or the disks again, are named. What has it
// gives back its place at work while it waits for its disk. The caller calls release once.
func (p *places) take(ctx context.Context, where, disks string) (place *command.Place, release func(), err error) {
	same, at := p.at(disks).same, p.at(where)
	if err := same.Acquire(ctx, 1); err != nil {
		return nil, nil, err
	}
	if err := at.all.Acquire(ctx, 1); err != nil {
		same.Release(1)
		return nil, nil, err
	}
	if place, err = command.TakePlace(ctx, at.working); err != nil {
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
