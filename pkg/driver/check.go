package driver

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sync/semaphore"

	"github.com/carve-csi/carve/pkg/filesystem"
)

const (
	// smallCheckMemory is what a check gets at first, in bytes. It is enough for most, and
	// smallChecks of them run at once.
	smallCheckMemory = 32 << 20
	smallChecks      = 4
	// groupChecks of them are of file systems in one volume group: a disk that does not answer
	// leaves places for the others.
	groupChecks = 2
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
	small, large *semaphore.Weighted

	mu     sync.Mutex
	groups map[string]*semaphore.Weighted
}

// newChecker makes a checker that gives a check so many bytes at most; zero means
// DefaultCheckMemory.
func newChecker(fs FileSystems, memory int64) *checker {
	if memory == 0 {
		memory = DefaultCheckMemory
	}
	return &checker{fileSystems: fs, memory: memory, small: semaphore.NewWeighted(smallChecks), large: semaphore.NewWeighted(1),
		groups: map[string]*semaphore.Weighted{}}
}

// ofGroup returns the places of a volume group.
func (c *checker) ofGroup(name string) *semaphore.Weighted {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.groups[name] == nil {
		c.groups[name] = semaphore.NewWeighted(groupChecks)
	}
	return c.groups[name]
}

// check repairs a file system that lies in a volume group. Its error matches filesystem.ErrMemory when that takes more
// memory than there is for it.
func (c *checker) check(ctx context.Context, group, device string, t filesystem.Type) error {
	err := c.first(ctx, group, device, t)
	if errors.Is(err, filesystem.ErrMemory) && c.memory > smallCheckMemory {
		err = c.within(ctx, c.large, c.memory, device, t)
	}
	if errors.Is(err, filesystem.ErrMemory) {
		return fmt.Errorf("%w; allowed are %d bytes: raise --check-memory of carve-node and the memory limit of its container by as much, or check the file system by hand on the node", err, c.memory)
	}
	return err
}

// first gives a check what is enough for most.
func (c *checker) first(ctx context.Context, group, device string, t filesystem.Type) error {
	places := c.ofGroup(group)
	if err := places.Acquire(ctx, 1); err != nil {
		return fmt.Errorf("wait for the checks of other file systems of volume group %s: %w", group, err)
	}
	defer places.Release(1)
	return c.within(ctx, c.small, min(smallCheckMemory, c.memory), device, t)
}

func (c *checker) within(ctx context.Context, slots *semaphore.Weighted, memory int64, device string, t filesystem.Type) error {
	if err := slots.Acquire(ctx, 1); err != nil {
		return fmt.Errorf("wait for the checks of other file systems: %w", err)
	}
	defer slots.Release(1)
	return c.fileSystems.Check(ctx, device, t, memory)
}
