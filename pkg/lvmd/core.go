package lvmd

import (
	"cmp"
	"context"
	"log/slog"
	"sync"

	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
	"github.com/carve-csi/carve/pkg/lvmd/fairqueue"
	"github.com/carve-csi/carve/pkg/lvmd/inventory"
	"github.com/carve-csi/carve/pkg/lvmd/journal"
	"github.com/carve-csi/carve/pkg/lvmd/reclaim"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
	"github.com/carve-csi/carve/pkg/lvmd/volumegroup"
)

// core is what all operations of a Service share.
type core struct {
	lvm       lvm.Groups
	journal   *journal.Journal
	inventory *inventory.Inventory
	groups    *volumegroup.Groups
	reclaimer *reclaim.Reclaimer
	log       *slog.Logger
	metrics   *Metrics
	lifecycle
	// crashPoint is set by tests only.
	crashPoint func(point string)
}

// crash is called between any two effects of an operation, with a name for
// the place. Tests end lvmd's process run there.
func (c *core) crash(point string) {
	if c.crashPoint != nil {
		c.crashPoint(point)
	}
}

// markDeleted makes a volume that was never handed out a tombstone.
func (c *core) markDeleted(v *inventory.Volume) {
	// First durable, then known: a caller that asks to delete it from then on is answered that it is gone.
	if err := c.putTombstone(v); err != nil {
		// The intent is still there, and the next start makes the same of it, unless the volume is
		// complete and LVM has not put on the mark of what is deleted: then it is ready.
		c.log.Error("tombstone is not in the journal", "volume", v.ID(), "error", err)
	}
	v.MarkDeleted(nil)
	c.groups.Of(v).Reclaim()
}

// putTombstone makes it durable that a volume is deleted.
func (c *core) putTombstone(v *inventory.Volume) error {
	tombstone := v.Record()
	tombstone.Phase = spec.Deleting
	return c.journal.PutVolume(tombstone)
}

// onBehalfOf is a context in which a group's slot is asked for on behalf of a volume's owner.
func onBehalfOf(ctx context.Context, v *inventory.Volume) context.Context {
	return withTenant(ctx, &v.Ident().Owner)
}

func withTenant(ctx context.Context, o *spec.Owner) context.Context {
	return fairqueue.WithTenant(ctx, fairqueue.Tenant{Cluster: o.Cluster, Namespace: cmp.Or(o.Namespace, o.PodNamespace)})
}

// lifecycle is when operations may begin, and what waits for their end.
type lifecycle struct {
	// admission is held for reading while an operation is admitted and begun, and for writing
	// by what no operation may begin beside.
	admission sync.RWMutex
	// stopping is closed when no new operation may begin and streams must end.
	stopping chan struct{}
	stopOnce sync.Once
	// work is the context of everything in the background and of operations;
	// it ends after stopping, when they have had their time.
	work   context.Context
	cancel context.CancelFunc
	// running counts operations and background work.
	running sync.WaitGroup
}

// admit is called before an operation begins, and release once it has. It fails when lvmd is
// stopping.
func (l *lifecycle) admit() (release func(), err error) {
	l.admission.RLock()
	if l.isStopping() {
		l.admission.RUnlock()
		return nil, apierror.ErrStopping
	}
	return l.admission.RUnlock, nil
}

func (l *lifecycle) isStopping() bool {
	select {
	case <-l.stopping:
		return true
	default:
		return false
	}
}

// spawn runs f until it returns; Stop waits for it.
func (l *lifecycle) spawn(f func()) {
	l.running.Add(1)
	go func() {
		defer l.running.Done()
		f()
	}()
}

// spawnUnlessStopping is spawn for what is not worth beginning at the end.
func (l *lifecycle) spawnUnlessStopping(f func()) {
	if release, err := l.admit(); err == nil {
		defer release()
		l.spawn(f)
	}
}
