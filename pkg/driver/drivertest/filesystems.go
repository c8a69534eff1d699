package drivertest

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/carve-csi/carve/pkg/driver"
	"github.com/carve-csi/carve/pkg/filesystem"
)

// FileSystems fakes superblocks and tools, by device path. Methods may be
// called concurrently.
type FileSystems struct {
	// Checking, if set, runs within Check and Format and provides their errors.
	Checking func(ctx context.Context, device string) error
	// CheckingWithin, if set, runs within Check when memory suffices.
	CheckingWithin func(ctx context.Context, device string, o filesystem.CheckOptions)
	// Probing, if set, runs at the start of Probe.
	Probing func(device string)
	// CheckNeeds is the memory that checks need, in bytes; SetCheckNeeds
	// overrides it.
	CheckNeeds int64

	mu     sync.Mutex
	on     map[string]filesystem.Info
	checks map[string]int
	needs  map[string]int64
	memory map[string][]int64
	made   map[string][]filesystem.FormatOptions
	grown  map[string][]string
	roots  []string
}

var _ driver.FileSystems = (*FileSystems)(nil)

// Set puts a file system on a device, or removes it with the zero Info.
func (f *FileSystems) Set(device string, info filesystem.Info) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.on == nil {
		f.on, f.checks, f.grown = map[string]filesystem.Info{}, map[string]int{}, map[string][]string{}
		f.needs, f.memory = map[string]int64{}, map[string][]int64{}
		f.made = map[string][]filesystem.FormatOptions{}
	}
	f.on[device] = info
}

// Checks returns the number of checks of a device.
func (f *FileSystems) Checks(device string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.checks[device]
}

// SetCheckNeeds sets the memory that a device's check needs, in bytes.
func (f *FileSystems) SetCheckNeeds(device string, memory int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.needs[device] = memory
}

// CheckMemory returns the memory limit of each check of a device.
func (f *FileSystems) CheckMemory(device string) []int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.memory[device]
}

// Made returns the options of each format of a device.
func (f *FileSystems) Made(device string) []filesystem.FormatOptions {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.made[device]
}

// Grown returns the mount paths by which a device's file system grew.
func (f *FileSystems) Grown(device string) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.grown[device]
}

// Roots returns the calls of SetRoot, as PATH OWNER MODE.
func (f *FileSystems) Roots() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.roots)
}

// Probe implements driver.FileSystems.
func (f *FileSystems) Probe(device string) (filesystem.Info, error) {
	if f.Probing != nil {
		f.Probing(device)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	info := f.on[device]
	if info.Type == "" {
		return info, fmt.Errorf("probe %s: %w", device, filesystem.ErrUnformatted)
	}
	return info, nil
}

// Format implements driver.FileSystems.
func (f *FileSystems) Format(ctx context.Context, device string, o filesystem.FormatOptions) error {
	if f.Checking != nil {
		if err := f.Checking(ctx, device); err != nil {
			return err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.made[device] = append(f.made[device], o)
	f.on[device] = filesystem.Info{Type: o.Type, UUID: o.UUID, SizeBytes: f.on[device].SizeBytes, Journal: o.Type == filesystem.Ext4}
	return nil
}

// Check implements driver.FileSystems.
func (f *FileSystems) Check(ctx context.Context, device string, _ filesystem.Type, o filesystem.CheckOptions) error {
	f.mu.Lock()
	f.memory[device] = append(f.memory[device], o.Memory)
	needs, known := f.needs[device]
	f.mu.Unlock()
	if !known {
		needs = f.CheckNeeds
	}
	if o.Memory < needs {
		return fmt.Errorf("check %s within %d bytes: %w", device, o.Memory, filesystem.ErrMemory)
	}
	if f.CheckingWithin != nil {
		f.CheckingWithin(ctx, device, o)
	}
	if f.Checking != nil {
		if err := f.Checking(ctx, device); err != nil {
			return err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.checks[device]++
	info := f.on[device]
	info.NeedsCheck = false
	f.on[device] = info
	return nil
}

// Grow implements driver.FileSystems.
func (f *FileSystems) Grow(_ context.Context, device, mountPath string, _ filesystem.Type) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.grown[device] = append(f.grown[device], mountPath)
	return nil
}

// SetRoot implements driver.FileSystems.
func (f *FileSystems) SetRoot(path, owner, mode string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.roots = append(f.roots, fmt.Sprintf("%s %s %s", path, owner, mode))
	return nil
}
