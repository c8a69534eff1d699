// Package platform brings together what machines boot from and how they run.
package platform

import (
	"context"
	"fmt"
	"io"

	"github.com/carve-csi/carve/e2e/debian"
	"github.com/carve-csi/carve/e2e/vm"
	"github.com/carve-csi/carve/e2e/vm/rootfs"
)

// Platform is what all machines of a kind share.
type Platform struct {
	Base        rootfs.Base
	Initramfs   string
	UserMode    vm.UserMode
	Accelerator vm.Accelerator
}

// Make makes what the cache does not have, and chooses the fastest accelerator. hardware
// says that the machines are to have persistent memory, SELinux or disks that are not
// files. It needs root.
func Make(ctx context.Context, progress io.Writer, hardware bool) (p Platform, err error) {
	if err := debian.Ensure(ctx, progress, vm.Packages...); err != nil {
		return p, err
	}
	if p.Base, err = rootfs.Make(ctx, progress); err != nil {
		return p, err
	}
	if !hardware {
		p.UserMode, err = rootfs.MakeUserMode(ctx, progress)
		if ctx.Err() != nil {
			return p, ctx.Err()
		}
		if err != nil {
			// Machines are slow without it, and run all the same.
			fmt.Fprintf(progress, "User Mode Linux cannot be had: %v\n", err)
			p.UserMode = vm.UserMode{}
		}
	}
	err = p.choose(ctx, progress, hardware)
	return p, err
}

// MakeWithKernel is Make for virtual machines with the kernel of another release of Debian
// and these modules of it, see [rootfs.Base.WithKernel].
func MakeWithKernel(ctx context.Context, progress io.Writer, suite string, modules []string) (p Platform, err error) {
	if err := debian.Ensure(ctx, progress, vm.Packages...); err != nil {
		return p, err
	}
	base, err := rootfs.Make(ctx, progress)
	if err != nil {
		return p, err
	}
	if p.Base, err = base.WithKernel(ctx, progress, suite, modules); err != nil {
		return p, err
	}
	err = p.choose(ctx, progress, true)
	return p, err
}

// choose makes the initial RAM file system, and chooses the accelerator by booting with it.
func (p *Platform) choose(ctx context.Context, progress io.Writer, hardware bool) (err error) {
	if p.Initramfs, err = p.Base.Initramfs(ctx); err != nil {
		return err
	}
	p.Accelerator, err = vm.Probe(ctx, progress, p.Base.Kernel, p.Initramfs, p.UserMode, hardware)
	return err
}

// WithoutKVM says why machines do not run with KVM; nothing if they do. It boots one, for which it
// makes what the cache does not have, and so finds what Make finds.
func WithoutKVM(ctx context.Context, progress io.Writer) (reason string, err error) {
	if err := debian.Ensure(ctx, progress, vm.Packages...); err != nil {
		return "", err
	}
	base, err := rootfs.Make(ctx, progress)
	if err != nil {
		return "", err
	}
	initramfs, err := base.Initramfs(ctx)
	if err != nil {
		return "", err
	}
	return vm.WithoutKVM(ctx, base.Kernel, initramfs)
}

// Apply has a machine boot from the platform.
func (p Platform) Apply(config *vm.Config) {
	config.Kernel, config.Initramfs, config.RootDisk = p.Base.Kernel, p.Initramfs, p.Base.RootDisk
	config.UserMode = p.UserMode
	config.Accelerator, config.CPUs = p.Accelerator, p.Accelerator.CPUs()
}
