package driver

import (
	"context"

	"github.com/carve-csi/carve/pkg/filesystem"
)

// FileSystems is the part of package filesystem that the node service uses.
type FileSystems interface {
	Probe(device string) (filesystem.Info, error)
	Format(ctx context.Context, device string, o filesystem.FormatOptions) error
	Check(ctx context.Context, device string, t filesystem.Type, o filesystem.CheckOptions) error
	Grow(ctx context.Context, device, mountPath string, t filesystem.Type) error
	SetRoot(path, owner, mode string) error
}

// SystemFileSystems calls package filesystem, with real devices and tools.
type SystemFileSystems struct{}

var _ FileSystems = SystemFileSystems{}

// Probe calls filesystem.Probe.
func (SystemFileSystems) Probe(device string) (filesystem.Info, error) {
	return filesystem.Probe(device)
}

// Format calls filesystem.Format.
func (SystemFileSystems) Format(ctx context.Context, device string, o filesystem.FormatOptions) error {
	return filesystem.Format(ctx, device, o)
}

// Check calls filesystem.Check.
func (SystemFileSystems) Check(ctx context.Context, device string, t filesystem.Type, o filesystem.CheckOptions) error {
	return filesystem.Check(ctx, device, t, o)
}

// Grow calls filesystem.Grow.
func (SystemFileSystems) Grow(ctx context.Context, device, mountPath string, t filesystem.Type) error {
	return filesystem.Grow(ctx, device, mountPath, t)
}

// SetRoot calls filesystem.SetRoot.
func (SystemFileSystems) SetRoot(path, owner, mode string) error {
	return filesystem.SetRoot(path, owner, mode)
}
