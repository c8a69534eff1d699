package lvm

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/carve-csi/carve/pkg/lvm/ondisk"
)

// volumes changes the volumes of groups.
type volumes struct {
	commands *commands
	disks    *disks
	messages *messages
}

// Scan implements Groups with one command, or with a second one over all
// devices when the known ones do not make every group whole; stale device
// nodes are dropped before that. At first those are known that have the labels of the groups'
// disks: over all devices, LVM waits for the locks of all groups of the host.
func (v *volumes) Scan(ctx context.Context, groups []string) ([]Group, error) {
	known := v.disks.known(groups...)
	if slices.ContainsFunc(groups, v.disks.isPartial) {
		known = nil // They lack the disk that is looked for.
	}
	isRead := len(known) == 0 // a moment ago, so that LVM does not wait for the disks
	if isRead {
		known = v.disks.pinned(groups...)
	}
	if len(known) > 0 {
		found, err := v.scan(ctx, groups, known)
		if err == nil && whole(found, slices.DeleteFunc(slices.Clone(groups), v.disks.isForeign)) {
			return found, nil
		}
		if ctx.Err() != nil || errors.Is(err, ErrTimedOut) && (isRead || v.areTheirDisks(groups, known)) {
			return nil, err
		}
	}
	return v.scan(ctx, groups, nil)
}

// areTheirDisks reports whether devices answer and are by their labels all disks of the groups. A command that looked
// at them and timed out waited for something else, such as the lock that a command keeps which hangs: one over all
// devices would wait for that, too. Where a disk does not answer, or is elsewhere by now, it would not.
func (v *volumes) areTheirDisks(groups, devices []string) bool {
	labelled := v.disks.pinned(groups...)
	slices.Sort(labelled)
	return slices.Equal(slices.Compact(labelled), devices)
}

// whole reports whether every wanted group was found with all of its devices.
func whole(found []Group, want []string) bool {
	return len(found) >= len(want) && !slices.ContainsFunc(found, func(g Group) bool { return g.MissingDevices > 0 })
}

// scan reads the groups from the devices, or from all devices when there are none, and
// finishes what a command that was killed left: what is reported will be acted on, and
// may have been written a moment ago.
func (v *volumes) scan(ctx context.Context, groups, devices []string) ([]Group, error) {
	found, err := v.commands.scan(ctx, groups, devices)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, v.commands.runner.Timeout)
	defer cancel()
	for i := range found {
		g := &found[i]
		v.nameMerging(g)
		// A disk that cannot flush is no reason not to report what it holds: the next
		// change finds out.
		err := v.commands.durable(ctx, v.disks.known(g.Name))
		if errors.Is(err, ErrTimedOut) {
			return nil, err
		}
		if !v.disks.view(g.Name).messages {
			continue
		}
		if err == nil {
			// What fails of it, the next command on the pool does.
			g.Unmade.Names, err = v.messages.sendUnsent(g.Name)
		}
		g.Unmade.Unknown = err != nil
	}
	return found, nil
}

// nameMerging notes which snapshots are merged into volumes of a group, as far as that can be read: LVM shows
// that there are some, and not which.
func (v *volumes) nameMerging(g *Group) {
	if !slices.ContainsFunc(g.Volumes, func(lv Volume) bool { return lv.Attr.Type == mergingOrigin }) {
		return
	}
	merging, err := committed(v.disks, g.Name, ondisk.MergingSnapshots)
	if err != nil {
		return
	}
	for i := range g.Volumes {
		g.Volumes[i].Merging = merging[g.Volumes[i].Name]
	}
}

// maxActivated bounds how many volumes one command activates: a lasting lvm process takes
// some sixty words.
const maxActivated = 50

// poolNodeFailure is the exit code of vgmknodes in groups with thin pools.
const poolNodeFailure = 5

// Activate implements Groups. Device nodes are made afresh, too: those of
// volumes that are active already may be missing or stale, for example where
// /dev is not the host's. What an activation that was killed left in the way is
// removed before.
func (v *volumes) Activate(ctx context.Context, group string, names []string) error {
	return v.activate(ctx, "", group, names)
}

// activate is Activate with further configuration for LVM.
func (v *volumes) activate(ctx context.Context, config, group string, names []string) error {
	// If it cannot be removed, LVM says what is in the way.
	_ = dropComponents(v.disks, group, names)
	for _, target := range []string{thinPoolTarget, raidTarget} {
		// If there is a volume that needs it, LVM says that it is missing.
		_ = provideTarget(target)
	}
	var errs []error
	for some := range slices.Chunk(names, maxActivated) {
		errs = append(errs, v.commands.changeWith(ctx, config, group, "lvchange", append([]string{"--activate", "y"}, volumeArgs(group, some)...)...))
	}
	if err := errors.Join(errs...); err != nil {
		// If the command was killed, what it left would keep an administrator from activating them.
		dropAllComponents(ctx, v.disks, group, names)
		return err
	}
	err := v.commands.change(ctx, group, "vgmknodes", group)
	if failed := (*CommandError)(nil); errors.As(err, &failed) && failed.Err == nil && failed.ExitCode == poolNodeFailure {
		// It makes all nodes and says nothing, but fails for every thin pool,
		// which has none under /dev/GROUP. A user of a node looks for it.
		return nil
	}
	return err
}

// ActivatePool implements Thin. An activation does not send the messages that the pool was not sent, and
// what the pool has not made cannot be activated.
func (v *volumes) ActivatePool(ctx context.Context, group, pool string, checked bool) error {
	if err := v.activatePool(ctx, group, pool, checked); err != nil || !v.disks.view(group).messages {
		return err
	}
	_, _ = v.messages.sendUnsent(group) // What fails of it, the next scan does.
	return nil
}

func (v *volumes) activatePool(ctx context.Context, group, pool string, checked bool) error {
	if checked {
		return v.activate(ctx, uncheckedConfig, group, []string{pool})
	}
	defer v.disks.setBusy(group)()
	return v.Activate(context.WithValue(ctx, checksPool{}, true), group, []string{pool})
}

// Remove implements Groups. lvremove --yes removes with a volume all that depends on it; without
// --yes it removes nothing that is active. So the command selects, and skips the others without an
// error.
func (v *volumes) Remove(ctx context.Context, group string, names []string) error {
	pools, err := v.messages.finish(group, names...)
	if err != nil {
		return err
	}
	err = v.commands.change(ctx, group, "lvremove", append([]string{"--yes", "--select", withoutDependents}, volumeArgs(group, names)...)...)
	if err == nil {
		err = v.checkRemoved(group, names)
	}
	return errors.Join(err, v.messages.deleteRemoved(group, pools, names))
}

// checkRemoved is an error when a command that removed volumes skipped one of them.
func (v *volumes) checkRemoved(group string, names []string) error {
	left, err := committed(v.disks, group, ondisk.VolumeNames)
	if err != nil {
		return fmt.Errorf("looking whether volumes were removed: %w", err)
	}
	for _, name := range names {
		if left[name] {
			return fmt.Errorf("volume %q of volume group %q was not removed: %w", name, group, ErrHasDependents)
		}
	}
	return nil
}

// Untag implements Thin.
func (v *volumes) Untag(ctx context.Context, group string, names []string, tags ...string) error {
	var args []string
	for _, tag := range tags {
		if !ondisk.ValidTag(tag) {
			return fmt.Errorf("tag %q is malformed", tag)
		}
		args = append(args, "--deltag="+tag)
	}
	return v.commands.change(ctx, group, "lvchange", append(args, volumeArgs(group, names)...)...)
}

// Tag implements Thin.
func (v *volumes) Tag(ctx context.Context, group string, names []string, tag string) error {
	if !ondisk.ValidTag(tag) {
		return fmt.Errorf("tag %q is malformed", tag)
	}
	return v.commands.change(ctx, group, "lvchange", append([]string{"--addtag", tag}, volumeArgs(group, names)...)...)
}
