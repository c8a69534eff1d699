package lvm

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/carve-csi/carve/pkg/lvm/ondisk"
)

type volumes struct {
	commands *commands
	disks    *disks
	messages *messages
}

// Scan implements Groups. One command reads the known devices; unless that finds every group
// whole, a second one reads all devices. Initially those with the labels of pinned disks are
// known: with all devices, LVM waits for the locks of all groups of the host.
func (v *volumes) Scan(ctx context.Context, groups []string) ([]Group, error) {
	known := v.disks.known(groups...)
	if slices.ContainsFunc(groups, v.disks.isPartial) {
		known = nil // They lack the missing disk.
	}
	isRead := len(known) == 0 // So LVM does not wait for the disks.
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

// areTheirDisks reports whether the devices answer and are all disks of the groups by their
// labels. If so, a scan that timed out waited for something else, such as the lock of a hanging
// command, and a scan of all devices would wait for that, too.
func (v *volumes) areTheirDisks(groups, devices []string) bool {
	labelled := v.disks.pinned(groups...)
	slices.Sort(labelled)
	return slices.Equal(slices.Compact(labelled), devices)
}

func whole(found []Group, want []string) bool {
	return len(found) >= len(want) && !slices.ContainsFunc(found, func(g Group) bool { return g.MissingDevices > 0 })
}

// scan also flushes the disks and sends unsent messages: callers act on the report, and a
// killed command may have written it a moment ago. Empty devices means all.
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
		// Report a group even if a disk cannot flush: the next change will fail.
		err := v.commands.durable(ctx, v.disks.known(g.Name))
		if errors.Is(err, ErrTimedOut) {
			return nil, err
		}
		if !v.disks.view(g.Name).messages {
			continue
		}
		if err == nil {
			// The next command on the pool does what fails here.
			g.Unmade.Names, err = v.messages.sendUnsent(g.Name)
		}
		g.Unmade.Unknown = err != nil
	}
	return found, nil
}

// nameMerging records which snapshots merge into volumes: LVM only reports that some do.
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

// maxActivated respects the limit of a lasting lvm process, about sixty words.
const maxActivated = 50

const poolNodeFailure = 5

// Activate implements Groups. It recreates device nodes even of active volumes: they may be
// missing or stale, for example where /dev is not the host's. First it removes what a killed
// activation left.
func (v *volumes) Activate(ctx context.Context, group string, names []string) error {
	return v.activate(ctx, "", group, names)
}

func (v *volumes) activate(ctx context.Context, config, group string, names []string) error {
	// If this fails, LVM reports the obstacle.
	_ = dropComponents(v.disks, group, names)
	for _, target := range []string{thinPoolTarget, raidTarget} {
		// LVM reports a missing target.
		_ = provideTarget(target)
	}
	var errs []error
	for some := range slices.Chunk(names, maxActivated) {
		errs = append(errs, v.commands.changeWith(ctx, config, group, "lvchange", append([]string{"--activate", "y"}, volumeArgs(group, some)...)...))
	}
	if err := errors.Join(errs...); err != nil {
		// Leftovers would keep an administrator from activating them.
		dropAllComponents(ctx, v.disks, group, names)
		return err
	}
	err := v.commands.change(ctx, group, "vgmknodes", group)
	if failed := (*CommandError)(nil); errors.As(err, &failed) && failed.Err == nil && failed.ExitCode == poolNodeFailure {
		// vgmknodes creates all nodes but fails silently for thin pools, which have none under
		// /dev/GROUP. Users of a node check it themselves.
		return nil
	}
	return err
}

// ActivatePool implements Thin. Activation does not send unsent messages, and LVM cannot
// activate volumes that the pool has not created.
func (v *volumes) ActivatePool(ctx context.Context, group, pool string, checked bool) error {
	if err := v.activatePool(ctx, group, pool, checked); err != nil || !v.disks.view(group).messages {
		return err
	}
	_, _ = v.messages.sendUnsent(group) // The next scan does what fails here.
	return nil
}

func (v *volumes) activatePool(ctx context.Context, group, pool string, checked bool) error {
	if checked {
		return v.activate(ctx, uncheckedConfig, group, []string{pool})
	}
	defer v.disks.setBusy(group)()
	return v.Activate(context.WithValue(ctx, checksPool{}, true), group, []string{pool})
}

// Remove implements Groups. With --yes, lvremove would remove dependents along with a volume;
// without it, nothing active. So the command selects volumes without dependents and silently
// skips the others.
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

func (v *volumes) Tag(ctx context.Context, group string, names []string, tag string) error {
	if !ondisk.ValidTag(tag) {
		return fmt.Errorf("tag %q is malformed", tag)
	}
	return v.commands.change(ctx, group, "lvchange", append([]string{"--addtag", tag}, volumeArgs(group, names)...)...)
}
