package command

import (
	"context"

	"golang.org/x/sync/semaphore"
)

// Place is a slot among a limited number of working programs. A program gives it up while it
// waits, such as in the kernel for a device. Place is not safe for concurrent use.
type Place struct {
	among *semaphore.Weighted
	taken bool
}

// TakePlace waits for a place. The caller calls Release once, after the program has ended.
func TakePlace(ctx context.Context, among *semaphore.Weighted) (*Place, error) {
	if err := among.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	return &Place{among, true}, nil
}

// Waiting releases the place while the program waits; use it as Command.Waiting.
func (p *Place) Waiting(waiting bool) {
	switch {
	case waiting:
		p.Release()
	case !p.taken:
		// The program is already running. If others have its place, one more than usual runs.
		p.taken = p.among.TryAcquire(1)
	}
}

// Release releases the place, if the program has it.
func (p *Place) Release() {
	if p.taken {
		p.among.Release(1)
		p.taken = false
	}
}
