//go:build !kernel

package lvmd

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/luks"
	"github.com/carve-csi/carve/pkg/lvm/lvmfake"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func provisional(r *lvmdv1.CreateVolumeRequest) *lvmdv1.CreateVolumeRequest {
	r.Provisional = true
	return r
}

func (d *daemon) isProvisional(name string) bool {
	d.t.Helper()
	return must.Get(d.client.GetVolume(d.t.Context(), &lvmdv1.GetVolumeRequest{Name: name}))(d.t).GetVolume().GetProvisional()
}

func TestAVolumeIsProvisionalUntilAPersistentVolumeNamesIt(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	want := func(when string, isProvisional map[string]bool) {
		t.Helper()
		for name, want := range isProvisional {
			if got := d.isProvisional(name); got != want {
				t.Errorf("%s: volume %s is provisional: %v, want %v", when, name, got, want)
			}
		}
	}
	restart := func() { d.stop(); d = m.start(t) }
	kept, left := d.create(provisional(request("kept", 1))), d.create(provisional(request("left", 1)))
	d.create(request("other", 1))
	want("made", map[string]bool{"kept": true, "left": true, "other": false})
	d.create(request("left", 1))
	d.create(provisional(request("other", 1)))
	restart()
	want("after a restart", map[string]bool{"kept": true, "left": true, "other": false})
	for range 2 {
		must.Get(d.client.KeepVolume(t.Context(), &lvmdv1.KeepVolumeRequest{Id: kept.GetId()}))(t)
	}
	want("kept", map[string]bool{"kept": false, "left": true, "other": false})
	restart()
	want("kept, after a restart", map[string]bool{"kept": false, "left": true, "other": false})
	_, err := d.client.DeleteVolume(t.Context(), &lvmdv1.DeleteVolumeRequest{Id: kept.GetId(), OnlyProvisional: true})
	wantCode(t, err, codes.FailedPrecondition, names.ReasonVolumeKept)
	for range 2 {
		must.Get(d.client.DeleteVolume(t.Context(), &lvmdv1.DeleteVolumeRequest{Id: left.GetId(), OnlyProvisional: true}))(t)
	}
	_, err = d.client.KeepVolume(t.Context(), &lvmdv1.KeepVolumeRequest{Id: left.GetId()})
	wantCode(t, err, codes.NotFound, names.ReasonVolumeNotFound)
	again := d.create(provisional(request("again", 1)))
	m.untagged(t, again.GetId())
	d.stop()
	m.loseJournal(t)
	d = m.start(t)
	want("without a journal", map[string]bool{"kept": false, "again": false, "other": false})
	m.unmarked(t, again.GetId())
}

func (m *machine) unmarked(t *testing.T, ids ...string) {
	t.Helper()
	m.untagged(t, ids...)
	waittest.Until(t, "volumes are not provisional by their tags", func() bool {
		return !slices.ContainsFunc(ids, func(id string) bool { return slices.Contains(m.tagsOf(t, id), spec.TagProvisional) })
	})
}

func (d *daemon) keep(id string) {
	d.t.Helper()
	must.Get(d.client.KeepVolume(d.t.Context(), &lvmdv1.KeepVolumeRequest{Id: id}))(d.t)
}

func (d *daemon) deleteProvisional(id string) error {
	_, err := d.client.DeleteVolume(d.t.Context(), &lvmdv1.DeleteVolumeRequest{Id: id, OnlyProvisional: true})
	return err
}

// The journal's record is from before LVM created the volume, or from after the
// acknowledgement.
func TestAVolumeIsProvisionalOnlyIfItsTagSaysSo(t *testing.T) {
	thin := func(t *testing.T) *machine { return thinMachine(t, "size: 80Mi, overprovisioning: 9") }
	plain := func(r *lvmdv1.CreateVolumeRequest) func(*daemon) *lvmdv1.Volume {
		return func(d *daemon) *lvmdv1.Volume { return d.create(r) }
	}
	cloned := func(d *daemon) *lvmdv1.Volume {
		return d.create(provisional(from(request("v", 4), d.create(request("source", 4)).GetId())))
	}
	for name, test := range map[string]struct {
		machine func(*testing.T) *machine
		create  func(*daemon) *lvmdv1.Volume
	}{
		"a raw volume":            {newMachine, plain(provisional(request("v", 4)))},
		"a file system":           {newMachine, plain(provisional(fsRequest("v", 4, "ext4")))},
		"an encrypted raw volume": {newMachine, plain(provisional(sealed(request("v", 4))))},
		"one with a kept key":     {newMachine, plain(provisional(kept(request("v", 4))))},
		"a copy":                  {newMachine, cloned},
		"a thin volume":           {thin, plain(provisional(request("v", 4)))},
		"a thin clone":            {thin, cloned},
	} {
		for _, at := range [][]string{{"create: intent written"}, {"create: ready"}} {
			for _, isKept := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, %s, it was kept: %t", name, at[0], isKept), func(t *testing.T) {
					t.Parallel()
					m := test.machine(t)
					k := &keptJournal{m: m}
					d := m.start(t, k.keepAt(t, at...))
					id := test.create(d).GetId()
					if tags := m.tagsOf(t, id); !d.isProvisional("v") || !slices.Contains(tags, spec.TagProvisional) {
						t.Errorf("it is provisional: %t, with the tags %v", d.isProvisional("v"), tags)
					}
					must.Succeed(t, m.fake.Fill(testGroup, id, 0x5a))
					if isKept {
						d.keep(id)
						m.unmarked(t, id)
					}
					d.kill()
					k.rollBack(t)
					if !k.record(t, id).Provisional {
						t.Fatal("the journal does not have it as provisional")
					}
					for range 2 {
						d = m.start(t, inspects(luks.Blank, nil))
						if got := d.found("v"); got.GetId() != id || got.GetProvisional() == isKept {
							t.Errorf("it is %v", got)
						}
						waittest.Until(t, "nothing is under way", d.isIdle)
						if isKept {
							wantCode(t, d.deleteProvisional(id), codes.FailedPrecondition, names.ReasonVolumeKept)
							if blocks, pattern, err := m.fake.Traces(testGroup, id); err != nil || blocks < int(4*testExtent/4096) || pattern != 0x5a {
								t.Errorf("it holds %d blocks of %#x, error %v", blocks, pattern, err)
							}
						}
						d.checkModel()
						d.stop()
					}
					d = m.start(t, inspects(luks.Blank, nil))
					waittest.Until(t, "nothing is under way", d.isIdle)
					if isKept {
						d.delete(id)
					} else {
						must.Succeed(t, d.deleteProvisional(id))
					}
					waittest.Until(t, "it is removed", func() bool { return m.tagsOf(t, id) == nil })
				})
			}
		}
	}
}

// lvmd ends before it removes the tag. Only if the journal is rolled back, too, is the volume
// provisional again, until it is kept once more.
func TestAKeptVolumeWhoseTagIsStillOnIsNotProvisional(t *testing.T) {
	for _, rolledBack := range []bool{false, true} {
		t.Run(fmt.Sprintf("the journal is rolled back: %t", rolledBack), func(t *testing.T) {
			m := newMachine(t)
			m.tagsStay()
			k := &keptJournal{m: m}
			d := m.start(t, k.keepAt(t, "create: ready"))
			id := d.create(provisional(fsRequest("v", 4, "ext4"))).GetId()
			d.keep(id)
			d.kill()
			if rolledBack {
				k.rollBack(t)
			}
			m.fake.Before = nil
			d = m.start(t)
			if d.isProvisional("v") != rolledBack {
				t.Errorf("it is provisional: %t", !rolledBack)
			}
			d.keep(id)
			m.unmarked(t, id)
			wantCode(t, d.deleteProvisional(id), codes.FailedPrecondition, names.ReasonVolumeKept)
			d.delete(id)
			d.checkClean()
		})
	}
}

func TestAVolumeWhoseGroupWasNotSeenIsNotDeletedAsProvisional(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	id := d.create(provisional(request("v", 4))).GetId()
	d.stop()
	m.fake.PlugGroup(testGroup, false)
	d = m.start(t, probeNow)
	wantCode(t, d.deleteProvisional(id), codes.FailedPrecondition, names.ReasonVolumeKept)
	m.fake.PlugGroup(testGroup, true)
	waittest.Until(t, "it is provisional again", func() bool { return d.isProvisional("v") })
	must.Succeed(t, d.deleteProvisional(id))
	d.checkClean()
}

// The tags of file systems are then removed by one command.
func TestThatAVolumeIsKeptCostsNoCommandBeforeAnAnswer(t *testing.T) {
	const volumes = 5
	for name, test := range map[string]struct {
		request func(name string) *lvmdv1.CreateVolumeRequest
		// untags is the number of commands that remove tags before creations are answered.
		untags int
	}{
		"file systems": {func(name string) *lvmdv1.CreateVolumeRequest { return fsRequest(name, 4, "ext4") }, 0},
		"raw volumes":  {func(name string) *lvmdv1.CreateVolumeRequest { return request(name, 4) }, volumes},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			allCreated, allKept := make(chan struct{}), make(chan struct{})
			m.fake.Before = func(ctx context.Context, op lvmfake.Op, _ string) error {
				select {
				case <-allCreated:
				default:
					return nil
				}
				if op == lvmfake.OpUntag {
					select {
					case <-allKept:
					case <-ctx.Done():
					}
				}
				return nil
			}
			d := m.start(t)
			commands := func() (n [4]int) {
				for i, op := range []lvmfake.Op{lvmfake.OpCreate, lvmfake.OpUntag, lvmfake.OpTag, lvmfake.OpScan} {
					n[i] = m.fake.Commands(op)
				}
				return n
			}
			before := commands()
			var ids []string
			for i := range volumes {
				ids = append(ids, d.create(provisional(test.request(fmt.Sprintf("v%d", i)))).GetId())
			}
			if got, want := commands(), [4]int{before[0] + volumes, before[1] + test.untags, before[2], before[3]}; got != want {
				t.Errorf("after %d creations there were %v commands, want %v", volumes, got, want)
			}
			close(allCreated)
			ctx, cancel := context.WithTimeout(t.Context(), waittest.Limit)
			defer cancel()
			for _, id := range ids {
				must.Get(d.client.KeepVolume(ctx, &lvmdv1.KeepVolumeRequest{Id: id}))(t)
			}
			close(allKept)
			m.unmarked(t, ids...)
			if n := commands()[1] - before[1] - test.untags; n > 2 {
				t.Errorf("%d commands took the tags off %d volumes", n, volumes)
			}
			for _, id := range ids {
				d.delete(id)
			}
			d.checkClean()
		})
	}
}
