//go:build !kernel

package lvmd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvm/lvmfake"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

type crashScenario struct {
	name string
	run  func(d *acknowledgements)
	// disks are the sizes of the group's disks in extents, testTotal in sum, with the classes of
	// layouts_test.go; none means one disk.
	disks []int64
}

func (s crashScenario) machine(t *testing.T) *machine {
	t.Helper()
	if s.disks == nil {
		return newMachine(t)
	}
	return newDisks(t, s.disks...)
}

type acknowledgements struct {
	*daemon
	ctx    context.Context
	kept   map[string]keptVolume
	last   *lvmdv1.CreateVolumeRequest
	unsure map[string]bool
}

type keptVolume struct {
	id      string
	request *lvmdv1.CreateVolumeRequest
	bytes   int64
	// noted means that lvmd acknowledged the encryption.
	noted bool
	// named means that lvmd acknowledged a PersistentVolume.
	named bool
	// limits holds all that the volume may have: the last acknowledged and those requested since.
	limits []*lvmdv1.IOLimits
}

func (d *acknowledgements) make(r *lvmdv1.CreateVolumeRequest) string {
	if d.ctx.Err() != nil {
		return "" // the scenario ended with its daemon
	}
	d.last = r
	resp, err := d.client.CreateVolume(d.ctx, r)
	if err != nil {
		return ""
	}
	v := resp.GetVolume()
	d.kept[r.GetName()] = keptVolume{id: v.GetId(), request: r, bytes: v.GetSizeBytes(), limits: []*lvmdv1.IOLimits{r.GetIoLimits()}}
	if err := d.machine.fake.Fill(testGroup, v.GetId(), 0x5a); err != nil {
		d.t.Error(err)
	}
	return v.GetId()
}

func (d *acknowledgements) unmake(name string) {
	k, ok := d.kept[name]
	if !ok {
		return
	}
	delete(d.kept, name)
	d.unsure[name] = true
	if _, err := d.client.DeleteVolume(d.ctx, &lvmdv1.DeleteVolumeRequest{Id: k.id}); err == nil {
		delete(d.unsure, name)
	}
}

func (d *acknowledgements) grow(name string, extents int64) {
	k, ok := d.kept[name]
	if !ok {
		return
	}
	resp, err := d.client.ExpandVolume(d.ctx, &lvmdv1.ExpandVolumeRequest{Id: k.id, RequiredBytes: extents * testExtent})
	if err == nil {
		k.bytes = resp.GetVolume().GetSizeBytes()
		d.kept[name] = k
	}
}

func (d *acknowledgements) note(name string) {
	k, ok := d.kept[name]
	if !ok {
		return
	}
	if _, err := d.client.NoteEncrypted(d.ctx, &lvmdv1.NoteEncryptedRequest{Id: k.id}); err == nil {
		k.noted = true
		d.kept[name] = k
	}
}

func (d *acknowledgements) keep(name string) {
	k, ok := d.kept[name]
	if !ok {
		return
	}
	if _, err := d.client.KeepVolume(d.ctx, &lvmdv1.KeepVolumeRequest{Id: k.id}); err == nil {
		k.named = true
		d.kept[name] = k
	}
}

func (d *acknowledgements) limit(name string, limits *lvmdv1.IOLimits) {
	k, ok := d.kept[name]
	if !ok {
		return
	}
	k.limits = append(k.limits, limits)
	if _, err := d.controller.ModifyVolume(d.ctx, &lvmdv1.ModifyVolumeRequest{Id: k.id, IoLimits: limits}); err == nil {
		k.limits = []*lvmdv1.IOLimits{limits}
	}
	d.kept[name] = k
}

var crashScenarios = []crashScenario{
	{name: "a file system is created", run: func(d *acknowledgements) { d.make(fsRequest("a", 4, "ext4")) }},
	{name: "a raw volume is created", run: func(d *acknowledgements) { d.make(request("a", 4)) }},
	{name: "a volume is created, grown and deleted", run: func(d *acknowledgements) {
		d.make(fsRequest("a", 20, "ext4"))
		d.grow("a", 40)
		d.unmake("a")
	}},
	{name: "a volume takes the place of a deleted one", run: func(d *acknowledgements) {
		d.make(request("a", 3))
		d.unmake("a")
		d.make(request("a", 5))
	}},
	{name: "some of several are deleted", run: func(d *acknowledgements) {
		for _, n := range []string{"a", "b", "c", "d"} {
			d.make(request(n, 2))
		}
		d.unmake("b")
		d.unmake("c")
		d.grow("d", 4)
	}},
	{name: "the limits of a volume are changed and taken away", run: func(d *acknowledgements) {
		d.make(request("a", 2))
		d.limit("a", &lvmdv1.IOLimits{ReadBps: 1 << 20})
		d.limit("a", nil)
		d.limit("a", &lvmdv1.IOLimits{WriteIops: 500})
	}},
	{name: "provisional volumes are created, kept and deleted", run: func(d *acknowledgements) {
		d.make(provisional(request("a", 2)))
		d.keep("a")
		d.make(provisional(fsRequest("b", 4, "ext4")))
		d.keep("b")
		d.make(provisional(request("c", 2)))
		d.unmake("c")
	}},
	{name: "encrypted volumes are created, grown and deleted", run: func(d *acknowledgements) {
		d.make(sealed(fsRequest("e", 4, "ext4")))
		d.make(sealed(request("f", 4)))
		d.grow("e", 8)
		d.unmake("f")
	}},
	{name: "volumes that their users encrypt are created, grown and deleted", run: func(d *acknowledgements) {
		d.make(kept(fsRequest("e", 4, "ext4")))
		d.note("e")
		d.make(kept(request("f", 2)))
		d.grow("e", 8)
		d.unmake("f")
	}},
	{name: "striped volumes share disks of different size", disks: []int64{20, 24, 20}, run: func(d *acknowledgements) {
		d.make(inClass(request("a", 8), "striped"))
		d.make(request("b", 22))
		d.grow("a", 12)
		d.unmake("b")
	}},
}

// The gate numbers the points by passing before and after every effect; a scenario repeats with
// the next number until it survives. A new operation needs only a scenario; crashPoints reports
// a missing one.
func TestKilledBetweenAnyTwoEffectsNothingIsLostOrLeaked(t *testing.T) {
	for _, s := range crashScenarios {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			places := 0
			for at := 1; ; at++ {
				survived, point := runScenario(t, s, at, 0)
				if survived {
					break
				}
				places++
				// A second crash interrupts the recovery.
				for _, again := range []int{1, 3, 6} {
					runScenario(t, s, at, again)
				}
				if t.Failed() {
					t.Fatalf("crashed at place %d, %q", at, point)
				}
			}
			if places < 5 {
				t.Errorf("only %d crash points", places)
			}
		})
	}
}

// runScenario crashes a daemon at a point, another one at again if that is not zero, and checks
// the next. survived means that the scenario ended before the point.
func runScenario(t *testing.T, s crashScenario, at, again int) (survived bool, point string) {
	m := s.machine(t)
	var g *gate
	d, err := m.tryStart(t, func(d *daemon, _ *Options) { g, d.gate.crashAt, d.gate.done = d.gate, at, make(chan struct{}) })
	if errors.Is(err, errCrashed) {
		checkScenario(t, m, &acknowledgements{}) // The very first start crashed.
		return false, g.point
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), waittest.Limit)
	defer cancel()
	acknowledged := &acknowledgements{daemon: d, ctx: ctx, kept: map[string]keptVolume{}, unsure: map[string]bool{}}
	go func() {
		select {
		case <-d.gate.done:
			cancel()
		case <-ctx.Done():
		}
	}()
	s.run(acknowledged)
	idle := make(chan struct{})
	go func() {
		defer close(idle)
		for !d.gate.crashed.Load() && !d.isIdle() {
			time.Sleep(time.Millisecond)
		}
	}()
	<-idle
	if !d.gate.crashed.Load() {
		survived = true
	}
	d.kill()
	if again > 0 {
		if between, err := m.tryStart(t, func(d *daemon, _ *Options) { d.gate.crashAt, d.gate.done = again, make(chan struct{}) }); err == nil {
			for i := 0; i < 1000 && !between.gate.crashed.Load() && !between.isIdle(); i++ {
				time.Sleep(time.Millisecond)
			}
			between.kill()
		}
	}
	checkScenario(t, m, acknowledged)
	return survived, d.gate.point
}

func (d *daemon) isIdle() bool {
	for _, v := range d.inventory.Inspect() {
		if v.Record.Phase != spec.Ready || v.Busy {
			return false
		}
	}
	return true
}

func checkScenario(t *testing.T, m *machine, acknowledged *acknowledgements) {
	t.Helper()
	d := m.start(t)
	defer d.stop()
	for name, k := range acknowledged.kept {
		resp, err := d.client.GetVolume(t.Context(), &lvmdv1.GetVolumeRequest{Name: name})
		if err != nil {
			t.Errorf("acknowledged volume %s is lost: %v", name, err)
			continue
		}
		v := resp.GetVolume()
		if v.GetId() != k.id || v.GetState() != lvmdv1.VolumeState_VOLUME_STATE_READY || v.GetSizeBytes() < k.bytes {
			t.Errorf("acknowledged volume %s of %d bytes is now %v", name, k.bytes, v)
		}
		if k.noted && !v.GetEncrypted() {
			t.Errorf("volume %s was acknowledged as encrypted, which is lost", name)
		}
		if k.named && v.GetProvisional() {
			t.Errorf("volume %s was acknowledged as kept, which is lost", name)
		}
		if !slices.ContainsFunc(k.limits, func(l *lvmdv1.IOLimits) bool { return proto.Equal(l, v.GetIoLimits()) }) {
			t.Errorf("volume %s has the limits %v, want one of %v", name, v.GetIoLimits(), k.limits)
		}
		if blocks, pattern, err := m.fake.Traces(testGroup, k.id); err != nil || blocks < int(k.request.GetRequiredBytes()/4096) || pattern != 0x5a {
			t.Errorf("acknowledged volume %s lost data: %d blocks of %#x, error %v", name, blocks, pattern, err)
		}
		if again := d.create(k.request); again.GetId() != k.id {
			t.Errorf("a retry of %s made %v", name, again)
		}
	}
	for name := range acknowledged.unsure {
		d.deleteWithRetries(&lvmdv1.DeleteVolumeRequest{Name: name})
	}
	if acknowledged.last != nil && acknowledged.kept[acknowledged.last.GetName()].id == "" {
		waittest.Succeeds(t, "the last request succeeds", func() error {
			_, err := d.client.CreateVolume(t.Context(), acknowledged.last)
			return err
		})
	}
	for _, v := range d.list() {
		if blocks, pattern, _ := m.fake.Traces(testGroup, v.GetId()); v.GetName() == "a" && acknowledged.kept["a"].id == "" && blocks > 0 {
			t.Errorf("new volume %s shows %d blocks of %#x", v.GetId(), blocks, pattern)
		}
		d.deleteWithRetries(&lvmdv1.DeleteVolumeRequest{Id: v.GetId()})
	}
	d.checkClean()
	if t.Failed() {
		t.Logf("kept %v, unsure %v", fmt.Sprint(acknowledged.kept), acknowledged.unsure)
	}
}

// deleteWithRetries retries while the daemon is busy with the volume.
func (d *daemon) deleteWithRetries(r *lvmdv1.DeleteVolumeRequest) {
	d.t.Helper()
	waittest.Until(d.t, "the volume can be deleted", func() bool {
		_, err := d.client.DeleteVolume(d.t.Context(), r)
		if err != nil && status.Code(err) != codes.Aborted {
			d.t.Fatalf("deleting %v: %v", r, err)
		}
		return err == nil
	})
}

func TestAPoolWhoseMakerCrashedIsAdopted(t *testing.T) {
	m := thinMachine(t, "size: 40Mi")
	if _, err := m.tryStart(t, func(d *daemon, _ *Options) { d.gate.crashNext("pool: made") }); !errors.Is(err, errCrashed) {
		t.Fatalf("error %v", err)
	}
	d := m.start(t)
	d.delete(d.create(request("pvc-1", 1)).GetId())
	if n := m.fake.Commands(lvmfake.OpCreatePool); n != 1 {
		t.Errorf("%d pools were made", n)
	}
}

func TestAPoolThatGrewAsItsLvmdCrashedIsAsLargeAsItIs(t *testing.T) {
	m := thinMachine(t, "size: 40Mi, overprovisioning: 3, dataThreshold: 50%, autoExtend: {step: 8Mi, limit: 64Mi}")
	d := m.start(t)
	v := d.create(request("pvc-1", 6))
	crashed := d.gate.crashNext("pool: extended")
	h := must.Get(m.fake.Open(testGroup, v.GetId()))(t)
	for off := int64(0); off < 6*testExtent; off += 4096 {
		must.Get(h.WriteAt([]byte{1}, off))(t)
	}
	<-crashed
	d.kill()
	d = m.start(t)
	if c := d.class(); c.GetTotalBytes() < 36*testExtent || d.hasCondition("PoolCannotGrow") {
		t.Errorf("class %v", c)
	}
	d.checkModel()
}
