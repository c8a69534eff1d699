package reclaim

import (
	"context"
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
	// maxMarked bounds how many volumes one command marks, for the same reasons.
	maxMarked = 50
)

// Options configure a Reclaimer. All are required.
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
}

// Reclaimer marks, wipes and removes deleted volumes. Its methods may be called at the same time
// for different groups.
type Reclaimer struct{ Options }

// New makes a Reclaimer.
func New(o Options) *Reclaimer {
	if o.Checkpoint == 0 {
		o.Checkpoint = wipeCheckpoint
	}
	return &Reclaimer{o}
}

func (r *Reclaimer) crash(point string) { r.Crash(point) }

// RemoveLoop marks the group's new tombstones and frees the wiped ones until ctx is done.
// While one command runs, more of them gather for the next: the busier it is, the fewer
// commands there are for each volume.
func (r *Reclaimer) RemoveLoop(ctx context.Context, g *volumegroup.Group) {
	for ctx.Err() == nil {
		do := r.mark
		batch, unmarked, retry := g.NextToMark(maxMarked)
		if unmarked {
			g.Wipe.Set()
		}
		if len(batch) == 0 {
			var again time.Time
			do = r.remove
			batch, again = g.NextToRemove(MaxRemoved)
			retry = wakeup.Earlier(retry, again)
		}
		if len(batch) == 0 {
			if !g.Remove.Wait(ctx, retry) {
				return
			}
			continue
		}
		if err := do(ctx, g, batch); err != nil && ctx.Err() == nil {
			r.Log.Warn("marking or removing deleted volumes failed and will be tried again", "group", g.Name(), "volumes", len(batch), "error", err)
			r.Inventory.Postpone(batch...)
		}
	}
}

// mark marks tombstones as deleted, and has them wiped. Before anything else is done to a deleted
// volume it is marked in LVM, too. So a node that loses its
// journal afterwards goes on with the deletion, and never offers a volume that is partly
// wiped. The caller of the deletion does not wait for the mark: that would have every deletion wait
// for the group's exclusive slot.
func (r *Reclaimer) mark(ctx context.Context, g *volumegroup.Group, batch []*inventory.Volume) error {
	err := r.Groups.Change(ctx, g, func(ctx context.Context) (inventory.Effect, error) {
		return inventory.MarkedDeleted(batch), r.LVM.Tag(volumegroup.ForClassOf(ctx, batch...), g.Name(), idsOf(batch), spec.TagDeleted)
	})
	if err != nil {
		return err
	}
	r.crash("delete: marked")
	g.Wipe.Set()
	return nil
}

// remove frees tombstones.
func (r *Reclaimer) remove(ctx context.Context, g *volumegroup.Group, batch []*inventory.Volume) error {
	ids := idsOf(batch)
	err := r.Groups.Change(ctx, g, func(ctx context.Context) (inventory.Effect, error) {
		return inventory.Removed(batch), r.LVM.Remove(volumegroup.ForClassOf(ctx, batch...), g.Name(), ids)
	})
	if err != nil {
		return err
	}
	r.crash("delete: removed")
	if err := r.Journal.RemoveVolumes(ids, r.Groups.Remember(g)); err != nil {
		// The next start finds tombstones without volumes, and forgets them.
		r.Log.Error("tombstones are left in the journal", "group", g.Name(), "error", err)
	}
	return nil
}

func idsOf(volumes []*inventory.Volume) []string {
	ids := make([]string, len(volumes))
	for i, v := range volumes {
		ids[i] = v.ID()
	}
	return ids
}
