package reclaim

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvmd/inventory"
	"github.com/carve-csi/carve/pkg/lvmd/journal"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
	"github.com/carve-csi/carve/pkg/lvmd/volumegroup"
	"github.com/carve-csi/carve/pkg/lvmd/wakeup"
)

const (
	// MaxRemoved bounds the volumes that one command removes, and so the wait of others for the
	// slot, and the command's words: a persistent lvm process takes some sixty.
	MaxRemoved = 54
	// MaxThinRemoved is MaxRemoved for thin volumes and snapshots. Each costs a message to the pool
	// between two commits of LVM, all within the command's deadline.
	MaxThinRemoved = 8
	// maxMarked bounds the volumes that one command marks, for the same reasons.
	maxMarked = 50
	// MaxUntagged bounds the volumes that one command untags, for the same reasons.
	MaxUntagged = 50
	// turnRetry is the delay after a failure to get the group's slot.
	turnRetry = 250 * time.Millisecond
)

// Options configure a Reclaimer. All but the last three are required.
type Options struct {
	LVM       lvm.Groups
	Journal   *journal.Journal
	Inventory *inventory.Inventory
	Groups    *volumegroup.Groups
	Log       *slog.Logger
	// Crash is called between any two effects, with the crash point's name, where tests may kill
	// lvmd.
	Crash func(point string)
	// Checkpoint is the number of bytes between two records of progress; zero means 1 GiB.
	Checkpoint int64
	// SlowAfter is the time of a step after which wipes on other disks go ahead; zero means a
	// second.
	SlowAfter time.Duration
	// SkipAfter is the number of failures in a row after which a wipe skips what its disk refuses
	// to write; zero means eight.
	SkipAfter int
}

// Reclaimer marks, wipes and removes deleted volumes. Its methods may run concurrently for
// different groups.
type Reclaimer struct{ Options }

// New returns a Reclaimer.
func New(o Options) *Reclaimer {
	if o.Checkpoint == 0 {
		o.Checkpoint = wipeCheckpoint
	}
	o.SlowAfter = cmp.Or(o.SlowAfter, slowAfter)
	o.SkipAfter = cmp.Or(o.SkipAfter, skipAfter)
	return &Reclaimer{o}
}

func (r *Reclaimer) crash(point string) { r.Crash(point) }

// RemoveLoop marks the group's new tombstones, removes the wiped ones, and untags volumes that were
// handed out and are not provisional, until ctx is done. More of them gather while it waits for the
// slot, so that a busy group needs fewer commands per volume.
func (r *Reclaimer) RemoveLoop(ctx context.Context, g *volumegroup.Group) {
	for ctx.Err() == nil {
		unmarked, retry := g.NextToMark(1)
		wiped, again := g.NextToRemove(1, 1)
		tagged, keeps := inventory.NextToUntag(g.Group)
		if len(unmarked)+len(wiped) == 0 && !tagged {
			if !g.Remove.Wait(ctx, wakeup.Earlier(keeps, wakeup.Earlier(retry, again))) {
				return
			}
			continue
		}
		if err := r.turn(ctx, g); err != nil && ctx.Err() == nil {
			r.Log.Warn("deleted volumes get no turn and will be tried again", "group", g.Name(), "error", err)
			g.Remove.Wait(ctx, time.Now().Add(turnRetry))
		}
	}
}

// turn does some of each kind of work, so that none of them has to wait until the others are done.
func (r *Reclaimer) turn(ctx context.Context, g *volumegroup.Group) error {
	removed, untagged, err := r.change(ctx, g)
	switch {
	case err != nil:
		return err
	case len(removed) > 0:
		r.crash("delete: removed")
	case !untagged:
		return nil
	}
	if err := r.Journal.RemoveVolumes(IDs(removed), r.Groups.Remember(g)); err != nil {
		// The next start forgets tombstones without volumes.
		r.Log.Error("tombstones are left in the journal", "group", g.Name(), "error", err)
	}
	return nil
}

// change fails only if it does not get the slot; it postpones the volumes of a failed command.
func (r *Reclaimer) change(ctx context.Context, g *volumegroup.Group) (removed []*inventory.Volume, untagged bool, err error) {
	done, err := r.Groups.Acquire(ctx, g)
	if err != nil {
		return nil, false, err
	}
	defer done()
	if batch, _ := g.NextToRemove(MaxRemoved, MaxThinRemoved); len(batch) > 0 {
		if err := r.remove(g, batch); err == nil {
			removed = batch
		} else if ctx.Err() == nil {
			r.Log.Warn("removing deleted volumes failed and will be tried again", "group", g.Name(), "volumes", len(batch), "error", err)
			r.Inventory.Postpone(batch...)
		}
	}
	if batch, _ := g.NextToMark(maxMarked); len(batch) > 0 {
		if err := r.mark(g, batch); err != nil && ctx.Err() == nil {
			r.Log.Warn("marking deleted volumes failed and will be tried again; they are not wiped before", "group", g.Name(), "volumes", len(batch), "error", err)
			r.Inventory.Postpone(batch...)
		}
	}
	if due, _ := inventory.NextToUntag(g.Group); due {
		untagged = r.untag(ctx, g)
	}
	return removed, untagged, nil
}

// untag covers volumes that may keep their tags yet, too. The caller has the group's slot.
func (r *Reclaimer) untag(ctx context.Context, g *volumegroup.Group) bool {
	batch, tags := inventory.ToUntag(g.Group, nil, MaxUntagged)
	if len(batch) == 0 {
		return false
	}
	err := r.Groups.ChangeHeld(g, func(ctx context.Context) (inventory.Effect, error) {
		return inventory.Untagged(batch, tags), r.LVM.Untag(volumegroup.ForClassOf(ctx, batch...), g.Name(), IDs(batch), tags...)
	})
	if err == nil {
		r.crash("create: untagged later")
		return true
	}
	if ctx.Err() == nil {
		r.Log.Warn("taking tags off volumes that are complete failed and will be tried again", "group", g.Name(), "volumes", len(batch), "tags", tags, "error", err)
		inventory.PostponeUntag(batch)
	}
	return false
}

// remove requires the group's slot.
func (r *Reclaimer) remove(g *volumegroup.Group, batch []*inventory.Volume) error {
	if err := r.Groups.CheckLegs(g, batch); err != nil {
		return err
	}
	return r.Groups.ChangeHeld(g, func(ctx context.Context) (inventory.Effect, error) {
		return inventory.Removed(batch), r.LVM.Remove(volumegroup.ForClassOf(ctx, batch...), g.Name(), IDs(batch))
	})
}

// mark marks tombstones in LVM before anything else happens to them: a node that loses its journal
// afterwards goes on with the deletion, and never offers a partly wiped volume. The deletion's
// caller does not wait for it, as it needs the group's slot, which the caller of mark has.
func (r *Reclaimer) mark(g *volumegroup.Group, batch []*inventory.Volume) error {
	// A failed command may have marked some.
	defer g.Wipe.Set()
	err := r.tag(g, batch)
	if errors.Is(err, lvm.ErrNoSpace) {
		// LVM's metadata includes the command line, with the names of all volumes. If it has no
		// space for that, it may have for one volume, whose removal makes space for others.
		if batch, _ = g.NextToMark(1); len(batch) == 0 {
			return nil
		}
		err = r.tag(g, batch)
	}
	if err != nil {
		return err
	}
	r.crash("delete: marked")
	return nil
}

func (r *Reclaimer) tag(g *volumegroup.Group, batch []*inventory.Volume) error {
	return r.Groups.ChangeHeld(g, func(ctx context.Context) (inventory.Effect, error) {
		return inventory.MarkedDeleted(batch), r.LVM.Tag(volumegroup.ForClassOf(ctx, batch...), g.Name(), IDs(batch), spec.TagDeleted)
	})
}

// IDs returns the ids of volumes.
func IDs(volumes []*inventory.Volume) []string {
	ids := make([]string, len(volumes))
	for i, v := range volumes {
		ids[i] = v.ID()
	}
	return ids
}
