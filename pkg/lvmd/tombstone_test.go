//go:build !kernel

package lvmd

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/lvm/lvmfake"
	"github.com/carve-csi/carve/pkg/lvmd/journal"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

type pause struct {
	// left counts down to the point; zero means never.
	left    atomic.Int32
	reached chan string
	goOn    chan struct{}
	// marks is true once LVM accepts marks.
	marks atomic.Bool
}

// startPaused makes LVM refuse marks, so that only the journal records deletions.
func startPaused(t *testing.T, m *machine, adjust ...func(*daemon, *Options)) (*daemon, *pause) {
	t.Helper()
	p := &pause{reached: make(chan string, 1), goOn: make(chan struct{})}
	m.fake.Before = func(_ context.Context, op lvmfake.Op, _ string) error {
		if op == lvmfake.OpTag && !p.marks.Load() {
			return errors.New("no")
		}
		return nil
	}
	return m.start(t, append(adjust, func(d *daemon, o *Options) {
		o.crashPoint = func(place string) {
			if p.left.Load() > 0 && p.left.Add(-1) == 0 {
				p.reached <- place
				<-p.goOn
			}
			d.gate.pass(place)
		}
	})...), p
}

// hold returns the point at which it blocks the operation, counted by number, or "" if the
// operation ended before. The result arrives after goOn is closed.
func (p *pause) hold(number int, operation func() error) (place string, result <-chan error) {
	p.left.Store(int32(number))
	ended := make(chan error, 1)
	done := make(chan struct{})
	go func() {
		ended <- operation()
		close(done)
	}()
	select {
	case place = <-p.reached:
	case <-done:
		p.left.Store(0)
	}
	return place, ended
}

// wantTombstone kills lvmd. The next lvmd, which it returns, must lack the volume.
func (p *pause) wantTombstone(d *daemon, what, id string) *daemon {
	d.t.Helper()
	d.kill()
	j, _, _, err := journal.Open(filepath.Join(d.machine.state, "journal.db"))
	must.Succeed(d.t, err)
	record, there := must.Get(j.Volumes())(d.t)[id]
	must.Succeed(d.t, j.Close())
	if there && record.Phase != spec.Deleting {
		d.t.Errorf("%s: the journal has a deleted volume in the phase %v", what, record.Phase)
	}
	p.marks.Store(true)
	next := d.machine.start(d.t)
	for _, v := range next.list() {
		if v.GetId() == id {
			d.t.Errorf("%s: a deleted volume is back: %v", what, v)
		}
	}
	return next
}

func TestACreationBesideADeletionOverwritesNoTombstone(t *testing.T) {
	r := fsRequest("a", 4, "ext4")
	for name, c := range map[string]struct {
		machine func(*testing.T) *machine
		adjust  func(*machine, *Options)
		// ready means that a creation may get the volume before its tombstone is written.
		ready bool
	}{
		"a volume": {func(t *testing.T) *machine {
			m := newMachine(t)
			d := m.start(t)
			m.untagged(t, d.create(r).GetId())
			d.stop()
			return m
		}, nil, true},
		"one without its file system": {func(t *testing.T) *machine {
			m, _ := withoutFileSystem(t, r)
			return m
		}, nil, false},
		"one that cannot be looked at": {func(t *testing.T) *machine {
			return killedAt(t, r, "create: formatted")
		}, func(_ *machine, o *Options) {
			o.Probe = func(string) (filesystem.Info, error) { return filesystem.Info{}, os.ErrDeadlineExceeded }
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for number := 1; ; number++ {
				m := c.machine(t)
				d, p := startPaused(t, m, func(_ *daemon, o *Options) {
					if c.adjust != nil {
						c.adjust(m, o)
					}
				})
				id := must.Get(d.client.GetVolume(t.Context(), &lvmdv1.GetVolumeRequest{Name: "a"}))(t).GetVolume().GetId()
				place, result := p.hold(number, func() error {
					_, err := d.client.DeleteVolume(context.Background(), &lvmdv1.DeleteVolumeRequest{Id: id})
					return err
				})
				resp, err := d.client.CreateVolume(t.Context(), r)
				made := resp.GetVolume().GetId()
				if code := status.Code(err); err != nil && code != codes.Aborted && code != codes.FailedPrecondition {
					t.Errorf("%s: the creation: %v", place, err)
				}
				if made == id && !c.ready {
					t.Errorf("%s: the creation took the volume that was to be deleted", place)
				}
				close(p.goOn)
				if err := <-result; err != nil {
					t.Errorf("%s: the deletion: %v", place, err)
				}
				d = p.wantTombstone(d, place, id)
				if made != "" && made != id && d.found("a").GetId() != made {
					t.Errorf("%s: the new volume is %v, want %s", place, d.found("a"), made)
				}
				d.deleteWithRetries(&lvmdv1.DeleteVolumeRequest{Name: "a"})
				d.checkClean()
				d.stop()
				if place == "" {
					if least := 4; number < least {
						t.Errorf("the deletion came past %d places, want at least %d", number-1, least-1)
					}
					return
				}
			}
		})
	}
}

func TestADeletionBesideACreationIsNotOverwritten(t *testing.T) {
	plain := func(r *lvmdv1.CreateVolumeRequest) func(*daemon) *lvmdv1.CreateVolumeRequest {
		return func(*daemon) *lvmdv1.CreateVolumeRequest { return r }
	}
	for name, ask := range map[string]func(*daemon) *lvmdv1.CreateVolumeRequest{
		"a raw volume": plain(request("a", 4)), "a file system": plain(fsRequest("a", 4, "ext4")), "an encrypted volume": plain(sealed(fsRequest("a", 4, "ext4"))),
		"a copy": func(d *daemon) *lvmdv1.CreateVolumeRequest { return from(request("a", 4), d.found("source").GetId()) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for number := 1; ; number++ {
				m := newMachine(t)
				d := m.start(t)
				m.untagged(t, d.create(request("source", 4)).GetId())
				d.stop()
				d, p := startPaused(t, m)
				r := ask(d)
				ctx, leave := context.WithCancel(t.Context())
				place, result := p.hold(number, func() error {
					_, err := d.client.CreateVolume(ctx, r)
					return err
				})
				id := must.Get(d.client.GetVolume(t.Context(), &lvmdv1.GetVolumeRequest{Name: "a"}))(t).GetVolume().GetId()
				leave()
				deletion := &lvmdv1.DeleteVolumeRequest{Id: id}
				waittest.Until(t, "the deletion cancels the creation, or is done", func() bool {
					_, err := d.client.DeleteVolume(t.Context(), deletion)
					return err == nil || strings.Contains(err.Error(), "cancelled")
				})
				close(p.goOn)
				<-result
				d.deleteWithRetries(deletion)
				d = p.wantTombstone(d, place, id)
				d.delete(d.found("source").GetId())
				d.checkClean()
				d.stop()
				if place == "" {
					if least := 4; number < least {
						t.Errorf("the creation came past %d places, want at least %d", number-1, least-1)
					}
					return
				}
			}
		})
	}
}
