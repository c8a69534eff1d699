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
	// MaxRemoved bounds how many volumes one command removes: it bounds how long
	// others wait for the slot, and the command's words: a lasting lvm process
	// takes some sixty.
	MaxRemoved = 54
	// MaxThinRemoved is MaxRemoved for thin volumes and snapshots, each of which is a message to the
	// pool between two changes of LVM's metadata: all of them must end within a command's deadline.
	MaxThinRemoved = 8
	// maxMarked bounds how many volumes one command marks, for the same reasons.
	maxMarked = 50
	// MaxUntagged bounds how many volumes one command takes tags off, for the same reasons.
	MaxUntagged = 50
	// turnRetry is how long the loop waits when it could not get the group's slot.
	turnRetry = 250 * time.Millisecond
)

// Options configure a Reclaimer. All but the last two are required.
type Options struct {
	LVM       lvm.Groups
	Journal   *journal.Journal
	Inventory *inventory.Inventory
	Groups    *volumegroup.Groups
	Log       *slog.Logger
	// Crash is called between any two effects, with a name for the place: tests end lvmd's
	// process run there.
	Crash func(point string)
	// Checkpoint is how many bytes are wiped between two records of progress; zero is 1 GiB.
	Checkpoint int64
	// SlowAfter is how long a step of a wipe may take before wipes on other disks do not wait for
	// it; zero is a second.
	SlowAfter time.Duration
}

// Reclaimer marks, wipes and removes deleted volumes. Its methods may be called at the same time
// for different groups.
type Reclaimer struct{ Options }

// New makes a Reclaimer.
func New(o Options) *Reclaimer {
	if o.Checkpoint == 0 {
		o.Checkpoint = wipeCheckpoint
	}
	o.SlowAfter = cmp.Or(o.SlowAfter, slowAfter)
	return &Reclaimer{o}
}

func (r *Reclaimer) crash(point string) { r.Crash(point) }

// RemoveLoop marks the group's new tombstones, frees the wiped ones, and takes off those volumes
// that were handed out, and are not provisional, the tags that they were made with, until ctx is done.
// While it waits for its turn at the group's slot, more of them gather: the busier the group is, the
// fewer commands there are for each volume.
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

// turn removes wiped tombstones, marks new ones and takes off tags, in one turn at the group's slot:
// none waits until there is no more of the others.
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
		// The next start finds tombstones without volumes, and forgets them.
		r.Log.Error("tombstones are left in the journal", "group", g.Name(), "error", err)
	}
	return nil
}

// change runs a turn's commands, and returns what was removed, and whether tags were taken off. It
// fails when the slot cannot be had; volumes of which a command fails are postponed.
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

// untag takes off the tags of volumes that were handed out, also of those that may keep them yet. The
// caller has the group's slot.
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

// remove frees tombstones. The caller has the group's slot.
func (r *Reclaimer) remove(g *volumegroup.Group, batch []*inventory.Volume) error {
	if err := r.Groups.CheckLegs(g, batch); err != nil {
		return err
	}
	return r.Groups.ChangeHeld(g, func(ctx context.Context) (inventory.Effect, error) {
		return inventory.Removed(batch), r.LVM.Remove(volumegroup.ForClassOf(ctx, batch...), g.Name(), IDs(batch))
	})
}

// mark marks tombstones as deleted, and has them wiped. Before anything else is done to a deleted
// volume it is marked in LVM, too. So a node that loses its
// journal afterwards goes on with the deletion, and never offers a volume that is partly
// wiped. The caller of the deletion does not wait for the mark: that would have every deletion wait
// for the group's exclusive slot, as the caller of mark has it.
func (r *Reclaimer) mark(g *volumegroup.Group, batch []*inventory.Volume) error {
	// What fails may have marked some of them.
	defer g.Wipe.Set()
	err := r.tag(g, batch)
	if errors.Is(err, lvm.ErrNoSpace) {
		// LVM's metadata have the command that wrote them, with the names of all volumes. Where there is no
		// space for that there is for one of them, and for others once that is removed.
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

// IDs are those of volumes.
func IDs(volumes []*inventory.Volume) []string {
	ids := make([]string, len(volumes))
	for i, v := range volumes {
		ids[i] = v.ID()
	}
	return ids
}
