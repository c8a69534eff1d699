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

type core struct {
	lvm       lvm.Groups
	journal   *journal.Journal
	inventory *inventory.Inventory
	groups    *volumegroup.Groups
	reclaimer *reclaim.Reclaimer
	log       *slog.Logger
	metrics   *Metrics
	lifecycle
	// sectorSize returns a device's logical block size in bytes.
	sectorSize func(path string) (int64, error)
	// crashPoint is nil except in tests.
	crashPoint func(point string)
}

// crash is called between any two effects. Tests end lvmd's process run there.
func (c *core) crash(point string) {
	if c.crashPoint != nil {
		c.crashPoint(point)
	}
}

// markDeleted turns a volume that was never handed out into a tombstone.
func (c *core) markDeleted(v *inventory.Volume) {
	// Write the journal first: once the inventory knows, DeleteVolume reports the volume gone.
	if err := c.putTombstone(v); err != nil {
		// The next start derives the same from the intent, unless the volume is complete and LVM
		// lacks its deletion mark: then it becomes ready.
		c.log.Error("tombstone is not in the journal", "volume", v.ID(), "error", err)
	}
	v.MarkDeleted(nil)
	c.groups.Of(v).Reclaim()
}

func (c *core) putTombstone(v *inventory.Volume) error {
	tombstone := v.Record()
	tombstone.Phase = spec.Deleting
	return c.journal.PutVolume(tombstone)
}

// onBehalfOf returns a context that queues for a group's slot as the tenant of v.
func onBehalfOf(ctx context.Context, v *inventory.Volume) context.Context {
	return withTenant(ctx, &v.Ident().Owner)
}

func withTenant(ctx context.Context, o *spec.Owner) context.Context {
	return fairqueue.WithTenant(ctx, fairqueue.Tenant{Cluster: o.Cluster, Namespace: cmp.Or(o.Namespace, o.PodNamespace)})
}

type lifecycle struct {
	// admission is read-locked while an operation is admitted and begun; Reload and Quiesce
	// write-lock it.
	admission sync.RWMutex
	// stopping is closed when new operations must fail and streams must end.
	stopping chan struct{}
	stopOnce sync.Once
	// work ends after stopping, once operations have had their time.
	work    context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
}

// admit must be called before an operation begins, release once it has. It fails while lvmd
// stops.
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

// Stop waits for f.
func (l *lifecycle) spawn(f func()) {
	l.running.Add(1)
	go func() {
		defer l.running.Done()
		f()
	}()
}

func (l *lifecycle) spawnUnlessStopping(f func()) {
	if release, err := l.admit(); err == nil {
		defer release()
		l.spawn(f)
	}
}
