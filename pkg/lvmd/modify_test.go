//go:build !kernel

package lvmd

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/lvmfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func (d *daemon) modify(id string, limits *lvmdv1.IOLimits) error {
	_, err := d.controller.ModifyVolume(d.t.Context(), &lvmdv1.ModifyVolumeRequest{Id: id, IoLimits: limits})
	return err
}

func (d *daemon) wantLimits(id string, want *lvmdv1.IOLimits) {
	d.t.Helper()
	one := must.Get(d.client.GetVolume(d.t.Context(), &lvmdv1.GetVolumeRequest{Id: id}))(d.t).GetVolume()
	reported := append(d.list(), one)
	for _, v := range append(reported, d.state().GetVolumes()...) {
		if v.GetId() == id && !proto.Equal(v.GetIoLimits(), want) {
			d.t.Errorf("limits are %v, want %v", v.GetIoLimits(), want)
		}
	}
}

func TestTheSameLimitsAskedForTwiceAtOnceAreSetOnce(t *testing.T) {
	m := newMachine(t)
	held, release := make(chan struct{}, 2), make(chan struct{})
	m.fake.Before = func(_ context.Context, op lvmfake.Op, _ string) error {
		if op == lvmfake.OpRetag {
			held <- struct{}{}
			<-release
		}
		return nil
	}
	d := m.start(t)
	v := d.create(request("pvc-1", 4))
	limits, errs := &lvmdv1.IOLimits{ReadBps: 1 << 20}, make(chan error, 2)
	ask := func() { errs <- d.modify(v.GetId(), limits) }
	go ask()
	<-held
	go ask()
	waittest.Until(t, "the second waits", func() bool { return d.groups.Named(testGroup).Queue().Waiting > 0 })
	close(release)
	must.Succeed(t, <-errs)
	must.Succeed(t, <-errs)
	d.wantLimits(v.GetId(), limits)
	if n := m.fake.Commands(lvmfake.OpRetag); n != 1 {
		t.Errorf("%d commands, want 1", n)
	}
}

func TestLimitsAreKeptWithTheVolume(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	slow, fast := &lvmdv1.IOLimits{ReadBps: 1 << 20, WriteIops: 100}, &lvmdv1.IOLimits{ReadBps: 1 << 30}
	r := request("pvc-1", 4)
	r.IoLimits = slow
	v, other := d.create(r), d.create(request("pvc-2", 4))
	d.wantLimits(v.GetId(), slow)
	d.wantLimits(other.GetId(), nil)

	t.Log("asked for again with others, it is the volume that there is")
	r.IoLimits = fast
	if again := d.create(r); again.GetId() != v.GetId() || !proto.Equal(again.GetIoLimits(), slow) {
		t.Errorf("the second request got %v", again)
	}
	for range 2 {
		must.Succeed(t, d.modify(v.GetId(), fast))
		d.wantLimits(v.GetId(), fast)
	}
	d.kill()
	d = m.start(t)
	d.wantLimits(v.GetId(), fast)
	d.wantLimits(other.GetId(), nil)
	d.kill()
	m.loseJournal(t)
	d = m.start(t)
	d.wantLimits(v.GetId(), fast)

	must.Succeed(t, d.modify(v.GetId(), nil))
	d.wantLimits(v.GetId(), nil)
	d.kill()
	d = m.start(t)
	d.wantLimits(v.GetId(), nil)
	d.delete(v.GetId())
	d.delete(other.GetId())
	d.checkClean()
}

func TestAChangeOfLimitsThatFailsLeavesThemAsTheyAre(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	before := &lvmdv1.IOLimits{ReadBps: 1 << 20}
	r := request("pvc-1", 4)
	r.IoLimits = before
	v := d.create(r)
	m.fake.Before = func(_ context.Context, op lvmfake.Op, _ string) error {
		if op == lvmfake.OpRetag {
			return lvm.ErrNoSpace
		}
		return nil
	}
	wantCode(t, d.modify(v.GetId(), &lvmdv1.IOLimits{ReadBps: 1 << 30}), codes.ResourceExhausted, names.ReasonNoSpace)
	m.fake.Before = nil
	d.wantLimits(v.GetId(), before)
	wantCode(t, d.modify(v.GetId(), &lvmdv1.IOLimits{ReadBps: 1}), codes.InvalidArgument, names.ReasonInvalidField)
	wantCode(t, d.modify("", before), codes.InvalidArgument, names.ReasonInvalidField)
	wantCode(t, d.modify("cvunknown", before), codes.NotFound, names.ReasonVolumeNotFound)
	d.wantLimits(v.GetId(), before)
	r = request("pvc-2", 4)
	r.IoLimits = &lvmdv1.IOLimits{WriteBps: 1}
	_, err := d.client.CreateVolume(t.Context(), r)
	wantCode(t, err, codes.InvalidArgument, names.ReasonInvalidField)
	d.delete(v.GetId())
	wantCode(t, d.modify(v.GetId(), before), codes.NotFound, names.ReasonVolumeNotFound)
	d.checkClean()
}

func TestLimitsThatWereChangedByHandAreReported(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	v := d.create(request("pvc-1", 4))
	ctx, cancel := context.WithTimeout(t.Context(), waittest.Limit)
	defer cancel()
	watch := must.Get(d.client.Watch(ctx, &lvmdv1.WatchRequest{}))(t)
	must.Get(watch.Recv())(t)
	must.Succeed(t, m.fake.Tag(t.Context(), testGroup, []string{v.GetId()}, "carve.io=0:0:10:0"))
	must.Succeed(t, m.fake.Tag(t.Context(), testGroup, []string{v.GetId()}, "carve.io=0:0:20:0"))
	for reported := uint64(0); reported != 20; {
		for _, changed := range must.Get(watch.Recv())(t).GetVolumes() {
			reported = changed.GetIoLimits().GetReadIops()
		}
	}
	d.wantLimits(v.GetId(), &lvmdv1.IOLimits{ReadIops: 20})
	must.Succeed(t, d.modify(v.GetId(), nil))
	d.wantLimits(v.GetId(), nil)
	d.delete(v.GetId())
	d.checkClean()
}
