//go:build !kernel

package inventory

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/layout"
	"github.com/carve-csi/carve/pkg/lvm/ondisk"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
	"github.com/carve-csi/carve/pkg/lvmd/zeroed"
	"github.com/carve-csi/carve/pkg/must"
)

func TestOnlyWhatLVMHasNotFinishedMakingIsHalfMade(t *testing.T) {
	raid := layout.Layout{Type: layout.RAID1, Mirrors: 1}
	volume := func(layout layout.Layout, skip bool, tags ...string) lvm.Volume {
		return lvm.Volume{Name: "cv1", Layout: layout, Tags: tags, Attr: lvm.Attr{SkipActivation: skip}}
	}
	bare := lvm.Volume{Name: "cv1_rmeta_0"}
	for _, c := range []struct {
		name    string
		volumes []lvm.Volume
		want    bool
	}{
		{"its bookkeeping lies bare and it is not activated", []lvm.Volume{volume(raid, true, spec.TagMarker), bare}, true},
		{"it is whole", []lvm.Volume{volume(raid, false, spec.TagMarker)}, false},
		{"an administrator forbade its activation", []lvm.Volume{volume(raid, true, spec.TagMarker)}, false},
		{"it gets another image", []lvm.Volume{volume(raid, false, spec.TagMarker), bare}, false},
		{"it is not ours", []lvm.Volume{volume(raid, true), bare}, false},
		{"it is a snapshot", []lvm.Volume{volume(layout.Layout{Type: layout.Linear}, true, spec.TagMarker), bare}, false},
		{"the bookkeeping is another volume's", []lvm.Volume{volume(raid, true, spec.TagMarker), {Name: "cv2_rmeta_0"}}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := halfMade(&lvm.Group{Volumes: c.volumes})["cv1"]; got != c.want {
				t.Errorf("half made: %v", got)
			}
		})
	}
}

// The race detector finds what a scan writes to while a reader lacks the lock.
func TestAVolumeIsReadWhileItsGroupIsScanned(t *testing.T) {
	m, g := scanned(t, Options{})
	const id = "cvaaaaaaaaaaaaaaaaaaaaaaaaaa"
	identity := spec.Identity{Name: "v", Class: "local", Block: true, Size: spec.Size{Required: extent}}
	scan := func(seqno uint64) {
		g.ApplyScan(Scan{
			Group: &lvm.Group{
				Name: "carve", UUID: "uuid", Seqno: seqno, ExtentSize: extent, Extents: 10, FreeExtents: 9, FreeSegments: 1,
				Devices: []lvm.PhysicalVolume{{Path: "/dev/vdb", UUID: "pv", Allocatable: true, Extents: 10}},
				Volumes: []lvm.Volume{{Name: id, Size: extent, Segments: 1, Pool: "pool", Tags: identity.Tags(), Created: time.Unix(1, 0)}},
			},
			Metadata: ondisk.Metadata{Seqno: seqno, Size: 1000, Limit: 1 << 20},
		}, nil)
	}
	scan(2)
	v := m.Volume(id)
	if v == nil {
		t.Fatal("the volume of the scan is not known")
	}
	var reader sync.WaitGroup
	reader.Go(func() {
		for range 100 {
			if !v.IsThin() || v.IsEncrypted() || v.ID() != id || v.Ident().Name != "v" || v.Group() != g {
				t.Errorf("volume %s of %s is %q, thin %v", v.ID(), v.Group().Name(), v.Ident().Name, v.IsThin())
			}
		}
	})
	for i := range 100 {
		scan(uint64(3 + i))
	}
	reader.Wait()
}

func TestUnreadableGroupIsScannedAtIntervals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, g := scanned(t, Options{})
		failed := errors.New("I/O error")
		found := &lvm.Group{Name: "carve", UUID: "uuid", Seqno: 1, ExtentSize: extent, Extents: 10}
		for _, c := range []struct {
			after      time.Duration
			unreadable error
			want       bool
		}{{0, nil, true}, {0, failed, false}, {unreadableInterval + 1, failed, true}} {
			g.ApplyScan(Scan{Group: found, Metadata: ondisk.Metadata{Seqno: 1}, Unreadable: c.unreadable}, nil)
			time.Sleep(c.after)
			if got := g.Differs(ondisk.Metadata{}, failed, 0, time.Hour); got != c.want {
				t.Errorf("%v after a scan that ended with %v: differs is %v", c.after, c.unreadable, got)
			}
		}
	})
}

// Another program changes the group concurrently with a creation.
func TestUnexplainedEffectTakesNoZeroes(t *testing.T) {
	for name, take := range map[string]func(*Group, Effect, Change){
		"scanned": func(g *Group, e Effect, _ Change) {
			found := &lvm.Group{Name: "carve", UUID: "uuid", Seqno: 3, ExtentSize: extent, Extents: 10}
			g.ApplyScan(Scan{Group: found, Metadata: ondisk.Metadata{Seqno: 3}}, e)
		},
		"not scanned": func(g *Group, e Effect, c Change) {
			g.SetStale()
			c.CommitUnscanned(e)
		},
	} {
		t.Run(name, func(t *testing.T) {
			m, g := scanned(t, Options{})
			area := []lvm.Segment{{Length: extent, Exact: true, Areas: []lvm.Area{{Device: "pv", Length: extent}}}}
			g.zeroes.Free(area)
			v := admitted(t, m, 1).Volume
			take(g, Created(v, area, nil), must.Get(g.BeginChange())(t))
			if where, _ := v.NotZeroed(); !slices.Equal(where, zeroed.Set{{To: extent}}) {
				t.Errorf("%v of the new volume may not be zeroes, want all of it", where)
			}
		})
	}
}
