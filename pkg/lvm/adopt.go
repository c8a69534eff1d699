package lvm

import (
	"context"
	"fmt"
	"slices"

	"github.com/carve-csi/carve/pkg/lvm/ondisk"
)

// Adoption changes volumes that other programs created. It is part of Groups,
// and the same rules hold. LVM decides by how much its methods raise the
// group's sequence number: scan after them.
type Adoption interface {
	// Rename renames a volume, active or not, and its device node. A mounted
	// volume stays mounted. It returns ErrNotFound if the volume does not
	// exist and ErrExists if the new name is taken.
	Rename(ctx context.Context, group, volume, name string) error

	// Retag removes tags from a volume and adds others, in one command.
	// Removing an absent tag or adding a present one is no error; a tag in
	// both lists is present afterwards. It returns ErrNotFound if the volume
	// does not exist.
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
		if !slices.Contains(add, tag) { // lvchange removes tags last, whatever the order of its options.
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
