package lvm

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/carve-csi/carve/pkg/lvm/layout"
)

// Create implements Groups. LVM must neither wipe signatures nor zero the
// first block: it would open the new device and read it.
func (v *volumes) Create(ctx context.Context, o CreateOptions) error {
	if o.Layout.IsRAID() {
		if err := provideTarget(raidTarget); err != nil {
			return err
		}
	}
	args := append([]string{"--yes"}, createArgs(o.Layout)...)
	args = append(args,
		"--extents", strconv.FormatInt(o.Extents, 10),
		"--name", o.Volume, "--wipesignatures", "n", "--zero", "n")
	args = append(args, v.allocation(o.Group, o.Options)...)
	args, err := withTags(append(args, o.Options...), o.Tags)
	if err != nil {
		return err
	}
	return v.commands.change(ctx, o.Group, "lvcreate", append(append(args, o.Group), deviceArgs(o.On)...)...)
}

func (v *volumes) Extend(ctx context.Context, group, volume string, extents int64, on ...layout.Share) error {
	return v.commands.change(ctx, group, "lvextend", v.extendArgs(group, volume, extents, on)...)
}

func (v *volumes) ExtendAt(ctx context.Context, seqno uint64, group, volume string, extents int64, on ...layout.Share) error {
	return v.commands.changeAt(ctx, seqno, group, "lvextend", v.extendArgs(group, volume, extents, on)...)
}

func (v *volumes) extendArgs(group, volume string, extents int64, on []layout.Share) []string {
	args := append(v.allocation(group, nil), "--extents", strconv.FormatInt(extents, 10), group+"/"+volume)
	return append(args, deviceArgs(on)...)
}

// allocation returns options that let LVM use all free space of a group whose
// policy would restrict it: Carve reports capacity for the policy normal. An
// --alloc among options takes precedence.
func (v *volumes) allocation(group string, options []string) []string {
	policy := v.disks.view(group).policy
	isAlloc := func(o string) bool { return o == "--alloc" || strings.HasPrefix(o, "--alloc=") }
	if policy == "" || policy == "normal" || policy == "anywhere" || slices.ContainsFunc(options, isAlloc) {
		return nil
	}
	return []string{"--alloc", "normal"}
}

// deviceArgs writes /dev/sda or /dev/sda:0-9:20-29.
func deviceArgs(on []layout.Share) []string {
	args := make([]string, len(on))
	for i, s := range on {
		// A backslash keeps LVM from reading ':' as a range and '@' as a tag.
		args[i] = strings.NewReplacer(":", `\:`, "@", `\@`).Replace(s.Device)
		for _, r := range s.Runs {
			args[i] += fmt.Sprintf(":%d-%d", r.Start, r.Start+r.Length-1)
		}
	}
	return args
}

// createArgs returns lvcreate's options for a layout. Mirrors and raid10 skip
// the initial synchronisation: every write goes to all copies, and no reader
// needs unwritten blocks. raid5 and raid6 must synchronise, as parity must be
// right before a disk is lost.
func createArgs(l layout.Layout) []string {
	if l.IsLinear() {
		return []string{"--type", string(layout.Linear)}
	}
	args := []string{"--type", string(l.Type)}
	if l.Type != layout.RAID1 {
		args = append(args, "--stripes", strconv.Itoa(l.Stripes))
		if l.StripeSize > 0 {
			args = append(args, "--stripesize", strconv.FormatInt(l.StripeSize, 10)+"b")
		}
	}
	if l.Mirrors > 0 {
		args = append(args, "--mirrors", strconv.Itoa(l.Mirrors), "--nosync")
	}
	return args
}
