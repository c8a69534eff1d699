package driver

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sync/semaphore"

	"github.com/carve-csi/carve/pkg/command"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/quantity"
)

const (
	// smallCheckMemory is what a check gets at first, in bytes. It is enough for most, and
	// smallChecks of them run at once, groupChecks of them in one volume group.
	smallCheckMemory = 32 << 20
	smallChecks      = 4
	groupChecks      = 2
	// DefaultCheckMemory is what a check gets that needs more, in bytes. One of them runs
	// at a time.
	DefaultCheckMemory = 128 << 20
)

// checker runs the checks of file systems within a bounded amount of memory: they share
// that of the plugin's container, and the kernel ends all of a container that takes too
// much. It is safe for concurrent use.
type checker struct {
	fileSystems  FileSystems
	memory       int64
	small, large *checkPlaces
}

// newChecker makes a checker that gives a check so many bytes at most; zero means
// DefaultCheckMemory.
func newChecker(fs FileSystems, memory int64) *checker {
	if memory == 0 {
		memory = DefaultCheckMemory
	}
	return &checker{fileSystems: fs, memory: memory, small: newCheckPlaces(smallChecks, groupChecks), large: newCheckPlaces(1, 1)}
}

// check repairs a file system that lies in a volume group. Its error matches filesystem.ErrMemory when that takes more
// memory than there is for it.
func (c *checker) check(ctx context.Context, group, device string, t filesystem.Type) error {
	err := c.within(ctx, c.small, group, min(smallCheckMemory, c.memory), device, t)
	if errors.Is(err, filesystem.ErrMemory) && c.memory > smallCheckMemory {
		err = c.within(ctx, c.large, group, c.memory, device, t)
	}
	if errors.Is(err, filesystem.ErrMemory) {
		return fmt.Errorf("%w; allowed are %s: raise --check-memory of carve-node and the memory limit of its container by as much, or check the file system by hand on the node", err, quantity.Bytes(c.memory))
	}
	return err
}

func (c *checker) within(ctx context.Context, places *checkPlaces, group string, memory int64, device string, t filesystem.Type) error {
	return places.run(ctx, group, func(waiting func(bool)) error {
		return c.fileSystems.Check(ctx, device, t, filesystem.CheckOptions{Memory: memory, Waiting: waiting})
	})
}

// checkPlaces bounds how many checks run at once on the node, and how many of them in one volume
// group. One that waits for its disk counts in its group alone: groups whose disks do not
// answer, however many, hold up no other.
type checkPlaces struct {
	node  *semaphore.Weighted
	share int64

	mu     sync.Mutex
	groups map[string]*semaphore.Weighted
}

func newCheckPlaces(node, share int64) *checkPlaces {
	return &checkPlaces{node: semaphore.NewWeighted(node), share: share, groups: map[string]*semaphore.Weighted{}}
}

// of returns the places of a volume group.
func (p *checkPlaces) of(group string) *semaphore.Weighted {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.groups[group] == nil {
		p.groups[group] = semaphore.NewWeighted(p.share)
	}
	return p.groups[group]
}

// run runs a check, which says when it waits for its disk and when it goes on.
func (p *checkPlaces) run(ctx context.Context, group string, check func(waiting func(bool)) error) error {
	places := p.of(group)
	if err := places.Acquire(ctx, 1); err != nil {
		return fmt.Errorf("wait for the checks of other file systems of volume group %s: %w", group, err)
	}
	defer places.Release(1)
	place, err := command.TakePlace(ctx, p.node)
	if err != nil {
		return fmt.Errorf("wait for the checks of other file systems: %w", err)
	}
	defer place.Release()
	// One that goes on without a place is beside as many as groups have places.
	return check(place.Waiting)
}
