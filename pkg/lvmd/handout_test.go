//go:build !kernel

package lvmd

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/lvmfake"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func (m *machine) hasMakingTag(t *testing.T, id string) bool {
	t.Helper()
	return spec.MakingTag(m.tagsOf(t, id)) != ""
}

func (m *machine) untagged(t *testing.T, ids ...string) {
	t.Helper()
	waittest.Until(t, "the tags are taken off", func() bool {
		return !slices.ContainsFunc(ids, func(id string) bool { return m.hasMakingTag(t, id) })
	})
}

func (m *machine) tagsStay() {
	m.fake.Before = func(_ context.Context, op lvmfake.Op, _ string) error {
		if op == lvmfake.OpUntag {
			return &lvm.CommandError{Command: "lvchange", ExitCode: 5, Message: "no"}
		}
		return nil
	}
}

func TestKilledAfterATagIsTakenOffLater(t *testing.T) {
	for name, r := range map[string]*lvmdv1.CreateVolumeRequest{
		"a file system": fsRequest("v", 4, "ext4"), "one that was provisional": provisional(fsRequest("v", 4, "ext4")),
		"a raw volume that was provisional": provisional(request("v", 4)),
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			d := m.start(t)
			crashed := d.gate.crashNext("create: untagged later")
			id := d.create(r).GetId()
			if r.GetProvisional() {
				d.keep(id)
			}
			<-crashed
			d.kill()
			if tags := m.tagsOf(t, id); m.hasMakingTag(t, id) || slices.Contains(tags, spec.TagProvisional) {
				t.Errorf("it has the tags %v", tags)
			}
			d = m.start(t)
			if got := d.found("v"); got.GetId() != id || got.GetProvisional() {
				t.Errorf("it is %v", got)
			}
			d.delete(id)
			d.checkClean()
		})
	}
}

// One command untags them all.
func TestAStartTakesTheTagsOffWhatIsReady(t *testing.T) {
	m := newMachine(t)
	m.tagsStay()
	d := m.start(t)
	var ids []string
	for i := range 5 {
		ids = append(ids, d.create(fsRequest(fmt.Sprintf("v%d", i), 4, "ext4")).GetId())
	}
	d.kill()
	m.fake.Before = nil
	before := m.fake.Commands(lvmfake.OpUntag)
	d = m.start(t)
	m.untagged(t, ids...)
	if n := m.fake.Commands(lvmfake.OpUntag) - before; n != 1 {
		t.Errorf("%d commands took off the tags of %d volumes", n, len(ids))
	}
	for _, id := range ids {
		d.delete(id)
	}
	d.checkClean()
}

func TestVolumesThatAreCompleteAreHandedOutTogether(t *testing.T) {
	const volumes = 5
	m := newMachine(t)
	allFormatted, allComplete := make(chan struct{}), make(chan struct{})
	var commands, formatted atomic.Int32
	m.fake.Before = func(_ context.Context, op lvmfake.Op, _ string) error {
		if op == lvmfake.OpUntag {
			commands.Add(1)
			<-allComplete
		}
		return nil
	}
	d := m.start(t, func(d *daemon, o *Options) {
		o.crashPoint = func(point string) {
			if point == "create: formatted" {
				if formatted.Add(1) == volumes {
					close(allFormatted)
				}
				<-allFormatted
			}
			d.gate.pass(point)
		}
	})
	results := make(chan error, volumes)
	for i := range volumes {
		go func() {
			_, err := d.client.CreateVolume(t.Context(), request(fmt.Sprintf("v%d", i), 2))
			results <- err
		}()
	}
	waittest.Until(t, "all are complete", func() bool {
		complete := 0
		for _, v := range d.inventory.Inspect() {
			if v.Complete {
				complete++
			}
		}
		return complete == volumes
	})
	close(allComplete)
	for range volumes {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	if n := commands.Load(); n > 2 {
		t.Errorf("%d commands handed out %d volumes", n, volumes)
	}
	if n := m.fake.Commands(lvmfake.OpScan); n != 1 {
		t.Errorf("%d scans", n)
	}
	for _, v := range d.list() {
		d.delete(v.GetId())
	}
	d.checkClean()
}

// An administrator added the tag, or restored older metadata.
func TestATagThatComesBackIsTakenOffAgain(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	v := d.create(request("a", 1))
	must.Succeed(t, m.fake.Tag(t.Context(), testGroup, []string{v.GetId()}, spec.TagMaking))
	m.untagged(t, v.GetId())
	d.delete(v.GetId())
	d.checkClean()
}
