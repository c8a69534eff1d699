package lvm

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Create implements Groups. Neither wiping of signatures nor zeroing of the
// first block is asked of LVM: it would open the new device and look into it.
func (h *Host) Create(ctx context.Context, o CreateOptions) error {
	if o.Layout.IsRAID() {
		if err := provideTarget(raidTarget); err != nil {
			return err
		}
	}
	args := append([]string{"--yes"}, o.Layout.createArgs()...)
	args = append(args,
		"--extents", strconv.FormatInt(o.Extents, 10),
		"--name", o.Volume, "--wipesignatures", "n", "--zero", "n")
	args = append(args, h.allocation(o.Group, o.Options)...)
	args = append(args, o.Options...)
	for _, t := range o.Tags {
		if !ValidTag(t) {
			return fmt.Errorf("tag %q is malformed", t)
		}
		args = append(args, "--addtag", t)
	}
	return h.change(ctx, []string{o.Group}, "lvcreate", append(append(args, o.Group), deviceArgs(o.On)...)...)
}

// Extend implements Groups.
func (h *Host) Extend(ctx context.Context, group, volume string, extents int64, on ...Share) error {
	args := append(h.allocation(group, nil), "--extents", strconv.FormatInt(extents, 10), group+"/"+volume)
	return h.change(ctx, []string{group}, "lvextend", append(args, deviceArgs(on)...)...)
}

// allocation has LVM use all that is free in a group of which the policy would have it use
// only some: capacity is reported for the usual policy, normal. Options that say how to
// allocate stay as they are.
func (h *Host) allocation(group string, options []string) []string {
	h.mu.Lock()
	policy := h.policies[group]
	h.mu.Unlock()
	isAlloc := func(o string) bool { return o == "--alloc" || strings.HasPrefix(o, "--alloc=") }
	if policy == "" || policy == "normal" || policy == "anywhere" || slices.ContainsFunc(options, isAlloc) {
		return nil
	}
	return []string{"--alloc", "normal"}
}

// deviceArgs names devices, and ranges of extents, as LVM's commands take
// them: /dev/sda or /dev/sda:0-9:20-29.
func deviceArgs(on []Share) []string {
	args := make([]string, len(on))
	for i, s := range on {
		// In names, LVM takes what else would begin a range or a tag after a
		// backslash.
		args[i] = strings.NewReplacer(":", `\:`, "@", `\@`).Replace(s.Device)
		for _, r := range s.Runs {
			args[i] += fmt.Sprintf(":%d-%d", r.Start, r.Start+r.Length-1)
		}
	}
	return args
}
