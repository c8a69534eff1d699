//go:build !kernel

package lvmd

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/layout"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
	"github.com/carve-csi/carve/pkg/lvmd/fairqueue"
	"github.com/carve-csi/carve/pkg/waittest"
)

func TestARejectedOperationIsToBeTriedAgain(t *testing.T) {
	for _, err := range []error{fairqueue.ErrFull, fairqueue.ErrTimedOut} {
		wantCode(t, apierror.From("creating", err), codes.Aborted, names.ReasonOperationPending)
	}
}

// Nothing of the request may be left.
func TestACallerWithoutADeadlineIsAnsweredWhileTheGroupIsHeldUp(t *testing.T) {
	m := newMachine(t)
	d := m.start(t, func(_ *daemon, o *Options) { o.slotTimeout = time.Millisecond })
	done, err := d.groups.Acquire(t.Context(), d.groups.Named(testGroup))
	if err != nil {
		t.Fatal(err)
	}
	all := d.available()
	_, err = d.client.CreateVolume(t.Context(), request("a", 1))
	wantCode(t, err, codes.Aborted, names.ReasonOperationPending)
	if got := d.available(); got != all || len(d.list()) != 0 {
		t.Errorf("%d of %d extents are available, volumes %v", got, all, d.list())
	}
	done()
	d.delete(d.create(request("a", 1)).GetId())
	d.checkClean()
}

// turnLog records the volumes of creations and growths in the order of their turns, and blocks
// them until released.
type turnLog struct {
	lvm.Groups
	on      atomic.Bool
	release chan struct{}
	mu      sync.Mutex
	ids     []string
}

func (l *turnLog) note(id string) {
	if !l.on.Load() {
		return
	}
	l.mu.Lock()
	l.ids = append(l.ids, id)
	l.mu.Unlock()
	<-l.release
}

func (l *turnLog) Create(ctx context.Context, o lvm.CreateOptions) error {
	l.note(o.Volume)
	return l.Groups.Create(ctx, o)
}

func (l *turnLog) Extend(ctx context.Context, group, volume string, extents int64, on ...layout.Share) error {
	l.note(volume)
	return l.Groups.Extend(ctx, group, volume, extents, on...)
}

func TestANamespaceDoesNotWaitForAllThatAnotherAsksFor(t *testing.T) {
	m := newMachine(t)
	turns := &turnLog{release: make(chan struct{})}
	d := m.start(t, func(_ *daemon, o *Options) {
		turns.Groups = o.LVM
		o.LVM = turns
	})
	grown := d.create(fsRequest("grown", 1, "ext4"))
	owners := map[string]string{grown.GetId(): "ns"}
	turns.on.Store(true)
	waits := func(want int) {
		t.Helper()
		waittest.Until(t, "so many wait", func() bool { return d.groups.Named(testGroup).Queue().Waiting == want })
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	in := func(namespace, name string) {
		r := request(name, 1)
		r.Owner.ClaimNamespace = namespace
		wg.Go(func() {
			created, err := d.client.CreateVolume(t.Context(), r)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			owners[created.GetVolume().GetId()] = namespace
		})
	}
	for i := range 6 {
		in("busy", fmt.Sprintf("busy-%d", i))
	}
	waits(5)
	in("other", "other-0")
	in("other", "other-1")
	waits(7)
	wg.Go(func() {
		if _, err := d.client.ExpandVolume(t.Context(), &lvmdv1.ExpandVolumeRequest{Id: grown.GetId(), RequiredBytes: grown.GetSizeBytes() + testExtent}); err != nil {
			t.Error(err)
		}
	})
	waits(8)
	reported := samples(t, d.Service)
	if waiting := reported["queue_depth{group=carve}"]; waiting != 8 {
		t.Errorf("the metrics show %v operations that wait, want 8", waiting)
	}
	close(turns.release)
	wg.Wait()
	var order []string
	for _, id := range turns.ids {
		order = append(order, owners[id])
	}
	want := []string{"busy", "busy", "other", "ns", "busy", "other", "busy", "busy", "busy"}
	if !slices.Equal(order, want) {
		t.Errorf("the turns went to %v, want %v", order, want)
	}
}
