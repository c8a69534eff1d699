//go:build !kernel

package lvmd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/carve-csi/carve/api/conditions"
	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/lvmfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func TestAnAbsentOrEmptyJournalIsRebuiltWithAWarning(t *testing.T) {
	for name, spoil := range map[string]func(path string) error{
		"absent": os.Remove,
		"empty":  func(path string) error { return os.Truncate(path, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			d := m.start(t)
			id := d.create(request("pvc-1", 1)).GetId()
			d.stop()
			must.Succeed(t, spoil(filepath.Join(m.state, "journal.db")))
			var log bytes.Buffer
			d = m.start(t, func(_ *daemon, o *Options) { o.Log = slog.New(slog.NewTextHandler(&log, nil)) })
			if again := d.create(request("pvc-1", 1)); again.GetId() != id {
				t.Errorf("volume %v, want id %s", again, id)
			}
			d.stop()
			if !strings.Contains(log.String(), "rebuilt from the volumes' tags") {
				t.Errorf("the log says nothing of it: %s", &log)
			}
		})
	}
}

func TestADeletionGoesOnWithoutTheJournalOnceItsVolumeIsMarked(t *testing.T) {
	for name, c := range map[string]struct {
		// at is lvmd's crash point; back means that the volume is unmarked there and returns
		// unchanged.
		at   string
		back bool
	}{
		"before the mark": {"before tag", true},
		"after the mark":  {"after tag", false},
		"while wiping":    {"delete: chunk wiped", false},
		"wiped":           {"delete: wiped", false},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			d := m.start(t)
			v := d.create(fsRequest("pvc-1", 8, ""))
			crashed := d.gate.crashNext(c.at)
			_, err := d.client.DeleteVolume(t.Context(), &lvmdv1.DeleteVolumeRequest{Id: v.GetId()})
			must.Succeed(t, err)
			<-crashed
			d.kill()
			m.loseJournal(t)
			d = m.start(t)
			if got := d.list(); (len(got) == 1) != c.back || c.back && got[0].GetState() != lvmdv1.VolumeState_VOLUME_STATE_READY {
				t.Errorf("there is %v, want it back: %t", got, c.back)
			}
			if c.back {
				d.delete(v.GetId())
			}
			if again := d.create(fsRequest("pvc-1", 8, "")); again.GetId() == v.GetId() {
				t.Error("a volume that was deleted is handed out again")
			} else {
				d.delete(again.GetId())
			}
			d.checkClean()
		})
	}
}

func TestNothingIsWipedThatIsNotMarked(t *testing.T) {
	const attempts = 5
	m := newMachine(t)
	last, seen := make(chan struct{}), make(chan struct{})
	var tried atomic.Int32
	m.fake.Before = func(_ context.Context, op lvmfake.Op, _ string) error {
		switch {
		case op != lvmfake.OpTag:
			return nil
		case tried.Add(1) < attempts:
			return errors.New("no")
		}
		close(last)
		<-seen
		return nil
	}
	d := m.start(t)
	id := d.create(request("v", 2)).GetId()
	d.fill(id, 0x33)
	d.delete(id)
	select {
	case <-last:
	case <-time.After(waittest.Limit):
		t.Errorf("marking was tried %d times, want %d", tried.Load(), attempts)
	}
	d.shows(id, 2, 0x33)
	close(seen)
	d.checkClean()
}

// The metadata have space for one mark at a time.
func TestADeletedVolumeIsMarkedWhenTheMetadataIsFull(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	var ids []string
	for i := range 5 {
		ids = append(ids, d.create(fsRequest(fmt.Sprintf("pvc-%d", i), 8, "")).GetId())
	}
	m.fake.SetMetadataLimit(testGroup, must.Get(m.fake.Metadata(testGroup))(t).Size+60)
	crashed := d.gate.crashNext("delete: chunk wiped")
	// Let all of them wait for the slot.
	done := must.Get(d.groups.Acquire(t.Context(), d.groups.Named(testGroup)))(t)
	for _, id := range ids {
		d.delete(id)
	}
	done()
	<-crashed
	d.kill()
	m.loseJournal(t)
	d = m.start(t)
	left := d.list()
	if len(left) != len(ids)-1 {
		t.Errorf("after the loss of the journal there are %d volumes, want %d: %v", len(left), len(ids)-1, left)
	}
	for _, v := range left {
		d.delete(v.GetId())
	}
	waittest.Until(t, "all are removed", func() bool { return len(d.inventory.Inspect()) == 0 }, func() any { return d.inventory.Inspect() })
}

// No mark fits until an administrator removes a volume.
func TestADeletionGoesOnOnceTheMetadataHaveSpaceForItsMark(t *testing.T) {
	m := newMachine(t)
	tried := make(chan struct{}, 1)
	m.fake.Before = func(_ context.Context, op lvmfake.Op, _ string) error {
		if op == lvmfake.OpTag {
			select {
			case tried <- struct{}{}:
			default:
			}
		}
		return nil
	}
	must.Succeed(t, m.fake.Create(t.Context(), lvm.CreateOptions{Group: testGroup, Volume: "theirs", Extents: 1}))
	d := m.start(t)
	id := d.create(request("v", 2)).GetId()
	d.fill(id, 0x33)
	m.untagged(t, id)
	m.fake.SetMetadataLimit(testGroup, must.Get(m.fake.Metadata(testGroup))(t).Size)
	d.delete(id)
	for range 3 {
		<-tried
	}
	d.shows(id, 2, 0x33)
	if d.message(conditions.MetadataFull) == "" {
		t.Errorf("class %v", d.class())
	}
	must.Succeed(t, m.fake.Remove(t.Context(), testGroup, []string{"theirs"}))
	waittest.Until(t, "it is removed", func() bool { return len(m.volumeNames(t)) == 0 }, func() any { return d.inventory.Inspect() })
}

// A zeroed page is what a disk leaves that lost a write. The next lvmd must still report all
// volumes.
func TestAZeroedPageOfTheJournalIsNoticedWhereverItIs(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	volumes := map[string]string{}
	for i := range 40 {
		name := fmt.Sprintf("pvc-%d", i)
		volumes[name] = d.create(request(name, 1)).GetId()
	}
	d.stop()
	path := filepath.Join(m.state, "journal.db")
	whole := must.Get(os.ReadFile(path))(t)
	page := os.Getpagesize()
	rebuilt := 0
	for at := 0; at < len(whole); at += page {
		damaged := bytes.Clone(whole)
		clear(damaged[at:min(at+page, len(damaged))])
		must.Succeed(t, os.WriteFile(path, damaged, 0o600))
		var log bytes.Buffer
		d := m.start(t, func(_ *daemon, o *Options) { o.Log = slog.New(slog.NewTextHandler(&log, nil)) })
		found := map[string]string{}
		for _, v := range d.list() {
			if v.GetState() == lvmdv1.VolumeState_VOLUME_STATE_READY {
				found[v.GetName()] = v.GetId()
			}
		}
		if fmt.Sprint(found) != fmt.Sprint(volumes) {
			t.Errorf("without page %d there are %d volumes: %v", at/page, len(found), found)
		}
		// The journal is writable, too.
		free := d.available()
		d.delete(d.create(request("pvc-more", 1)).GetId())
		waittest.Until(t, "the volume is gone", func() bool { return d.available() == free })
		d.stop()
		aside := must.Get(filepath.Glob(path + ".damaged-*"))(t)
		for _, file := range aside {
			must.Succeed(t, os.Remove(file))
		}
		rebuilt += len(aside)
		if warned := strings.Contains(log.String(), "rebuilt from the volumes' tags"); warned != (len(aside) > 0) {
			t.Errorf("without page %d: moved aside %v; the log says %s", at/page, aside, &log)
		}
	}
	if rebuilt < 3 {
		t.Errorf("only %d of %d pages were missed", rebuilt, len(whole)/page)
	}
	t.Logf("%d of %d pages were missed", rebuilt, len(whole)/page)
}
