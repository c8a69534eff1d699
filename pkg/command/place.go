package command

import (
	"context"

	"golang.org/x/sync/semaphore"
)

// Place is one of a few places for programs that are at work. A program that waits, as one does in
// the kernel for a device that does not answer, has none. It is not safe for concurrent use.
type Place struct {
	among *semaphore.Weighted
	taken bool
}

// TakePlace waits for a place, which the caller releases once, after the program has ended.
func TakePlace(ctx context.Context, among *semaphore.Weighted) (*Place, error) {
	if err := among.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	return &Place{among, true}, nil
}

// Waiting gives the place back while the program waits, as Command.Waiting.
func (p *Place) Waiting(waiting bool) {
	switch {
	case waiting:
		p.Release()
	case !p.taken:
		// It runs already. When others have its place, there is one more than usual.
		p.taken = p.among.TryAcquire(1)
	}
}

// Release gives the place back, if the program has it.
func (p *Place) Release() {
	if p.taken {
		p.among.Release(1)
		p.taken = false
	}
}
