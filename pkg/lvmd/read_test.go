//go:build !kernel

package lvmd

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func TestAListSaysOfAVolumeWhatItIsAtThatMoment(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	v := d.create(request("one", 3))
	d.create(fsRequest("two", 4, "ext4"))
	same := func() {
		t.Helper()
		for _, listed := range d.list() {
			got := must.Get(d.client.GetVolume(t.Context(), &lvmdv1.GetVolumeRequest{Id: listed.GetId()}))(t).GetVolume()
			got.Disks = "" // not in a list
			if !proto.Equal(listed, got) {
				t.Errorf("listed as %v, is %v", listed, got)
			}
		}
	}
	same()
	r := must.Get(d.client.ExpandVolume(t.Context(), &lvmdv1.ExpandVolumeRequest{Id: v.GetId(), RequiredBytes: 5 * testExtent}))(t)
	listed := d.list()
	i := slices.IndexFunc(listed, func(l *lvmdv1.Volume) bool { return l.GetId() == v.GetId() })
	if len(listed) != 2 || !proto.Equal(listed[i], r.GetVolume()) {
		t.Errorf("listed as %v, is %v", listed, r.GetVolume())
	}
	m.fake.RemoveGroup(testGroup)
	waittest.Until(t, "all volumes are known to miss their group", func() bool {
		for _, v := range d.list() {
			if len(v.GetConditions()) != 1 || v.GetConditions()[0].GetType() != "VolumeGroupMissing" {
				return false
			}
		}
		return true
	})
	same()
}

// The volumes lie on either disk of a group, or on both.
func TestVolumesOnTheSameDisksHaveOneNameForThem(t *testing.T) {
	m := newMachine(t)
	m.fake.AddGroupOf("second", testExtent, testTotal, testTotal)
	m.config += "- {name: second, volumeGroup: second}\n"
	d := m.start(t)
	on := map[string]string{} // by the UUIDs of the disks
	for i := range int64(6) {
		r := request(fmt.Sprintf("v%d", i), 1+i%3)
		r.DeviceClass = "second"
		id := d.create(r).GetId()
		var where []string
		for _, s := range must.Get(m.fake.Mapping("second", id))(t) {
			where = append(where, s.Areas[0].Device)
		}
		slices.Sort(where)
		disks := strings.Join(slices.Compact(where), " ")
		got := must.Get(d.client.GetVolume(t.Context(), &lvmdv1.GetVolumeRequest{Id: id}))(t).GetVolume().GetDisks()
		if len(got) != 32 || strings.Contains(got, "pv") {
			t.Errorf("the disks of a volume are called %q, want 32 digits", got)
		}
		if before, ok := on[disks]; ok && before != got {
			t.Errorf("the disks %s are called %s and %s", disks, before, got)
		}
		on[disks] = got
	}
	if all := slices.Compact(slices.Sorted(maps.Values(on))); len(on) < 2 || len(all) != len(on) {
		t.Errorf("%d sets of disks have %d names, want at least 2 and as many", len(on), len(all))
	}
}

// Neither other lists nor callers that leave may change a result.
func TestListsAtTheSameTimeAreWhole(t *testing.T) {
	m := newMachine(t)
	m.fake.RemoveGroup(testGroup)
	m.fake.AddGroup(testGroup, testExtent, 400)
	d := m.start(t)
	want := map[string]*lvmdv1.Volume{}
	for i := range 120 {
		v := d.create(request(fmt.Sprintf("v-%d", i), 1))
		want[v.GetId()] = v
	}
	var callers sync.WaitGroup
	for caller := range 8 {
		callers.Go(func() {
			for i := range 60 {
				ctx, cancel := context.WithCancel(t.Context())
				if caller%2 == 0 {
					time.AfterFunc(time.Duration(i)*20*time.Microsecond, cancel)
				}
				size := (caller + i) % 4 * 40 // 0 means all.
				r, err := d.client.ListVolumes(ctx, &lvmdv1.ListVolumesRequest{PageSize: int32(size)})
				cancel()
				if status.Code(err) == codes.Canceled {
					continue
				}
				if size == 0 {
					size = len(want)
				}
				if err != nil || len(r.GetVolumes()) != size {
					t.Errorf("%d volumes are listed instead of %d, error %v", len(r.GetVolumes()), size, err)
				}
				for _, v := range r.GetVolumes() {
					if !proto.Equal(v, want[v.GetId()]) {
						t.Errorf("listed as %v, was made as %v", v, want[v.GetId()])
					}
				}
			}
		})
	}
	callers.Wait()
}

func TestClassesAreListedAsWatchersGetThem(t *testing.T) {
	m := newMachine(t)
	m.config += "- {name: second, volumeGroup: carve, reserve: 8Mi}\n- {name: absent, volumeGroup: none, optional: true}\n"
	d := m.start(t)
	check := func(free int64) {
		t.Helper()
		r := must.Get(d.client.ListClasses(t.Context(), &lvmdv1.ListClassesRequest{}))(t)
		reported := d.state().GetClasses()
		if len(r.GetClasses()) != 2 || len(reported) != 2 {
			t.Fatalf("%d classes are listed and %d reported", len(r.GetClasses()), len(reported))
		}
		for i, c := range r.GetClasses() {
			if !proto.Equal(c, reported[i]) {
				t.Errorf("listed as %v, reported as %v", c, reported[i])
			}
		}
		if got := r.GetClasses()[0].GetAvailableBytes() / testExtent; got != free {
			t.Errorf("%d extents are available, want %d", got, free)
		}
	}
	check(testTotal)
	v := d.create(request("one", 3))
	check(testTotal - 3)
	d.delete(v.GetId())
	waittest.Until(t, "it is free", func() bool { return d.available() == testTotal })
	check(testTotal)
}

func TestListingPagesInOrder(t *testing.T) {
	d := newMachine(t).start(t)
	for i := range 5 {
		d.create(request(fmt.Sprintf("pvc-%d", i), 1))
	}
	var got []string
	token := ""
	for pages := 0; ; pages++ {
		resp, err := d.client.ListVolumes(t.Context(), &lvmdv1.ListVolumesRequest{PageSize: 2, PageToken: token})
		if err != nil || pages > 3 {
			t.Fatalf("page %d: error %v", pages, err)
		}
		for _, v := range resp.GetVolumes() {
			got = append(got, v.GetId())
		}
		if token = resp.GetNextPageToken(); token == "" {
			break
		}
	}
	all := d.list()
	if len(got) != 5 || len(all) != 5 {
		t.Fatalf("%d by pages, %d at once", len(got), len(all))
	}
	for i, v := range all {
		if got[i] != v.GetId() || i > 0 && got[i-1] >= got[i] {
			t.Errorf("order %v", got)
		}
	}
	_, err := d.client.ListVolumes(t.Context(), &lvmdv1.ListVolumesRequest{PageToken: "x"})
	wantCode(t, err, codes.InvalidArgument, names.ReasonInvalidField)
}
