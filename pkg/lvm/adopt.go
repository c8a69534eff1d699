package lvm

import (
	"context"
	"fmt"
	"slices"

	"github.com/carve-csi/carve/pkg/lvm/ondisk"
)

// Adoption is what a daemon needs to take over volumes that others made. It is part of
// Groups, and the same rules hold. By how much its methods raise the group's sequence number
// depends on LVM: the caller scans after them.
type Adoption interface {
	// Rename gives a volume, active or not, another name, and its device another node. A
	// volume that is mounted stays so. ErrNotFound when there is none of the name, ErrExists
	// when there is one of the other.
	Rename(ctx context.Context, group, volume, name string) error

	// Retag takes tags off a volume and puts others on it, by one command. Tags that it does
	// not have may be taken off, and those that it has be put on. A tag that is among both is
	// on it afterwards. ErrNotFound when there is no such volume.
	Retag(ctx context.Context, group, volume string, remove, add []string) error
}

// Rename implements Adoption.
func (v *volumes) Rename(ctx context.Context, group, volume, name string) error {
	if !ondisk.ValidName(name) {
		return fmt.Errorf("volume name %q is malformed", name)
	}
	return v.commands.change(ctx, group, "lvrename", group, volume, name)
}

// Retag implements Adoption.
func (v *volumes) Retag(ctx context.Context, group, volume string, remove, add []string) error {
	var args []string
	for _, tag := range remove {
		if !slices.Contains(add, tag) { // Whatever their order, lvchange takes tags off last.
			args = append(args, "--deltag="+tag)
		}
	}
	for _, tag := range add {
		if !ondisk.ValidTag(tag) {
			return fmt.Errorf("tag %q is malformed", tag)
		}
		args = append(args, "--addtag="+tag)
	}
	if len(args) == 0 {
		return nil
	}
	return v.commands.change(ctx, group, "lvchange", append(args, group+"/"+volume)...)
}
