//go:build !kernel

package lvmd

import (
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/waittest"
)

func twoGroups(t *testing.T) *machine {
	t.Helper()
	m := newMachine(t)
	m.fake.AddGroup("large", testExtent, 2*testTotal)
	m.config = "- {name: both, default: true, volumeGroups: [carve, large]}\n- {name: one, volumeGroup: carve}\n"
	return m
}

func TestAClassOverSeveralGroupsSumsTheirSpaceAndNamesEach(t *testing.T) {
	m := twoGroups(t)
	d := m.start(t)
	c := d.state().GetClasses()[0]
	if got, want := c.GetAvailableBytes(), 3*testTotal*testExtent; got != want || c.GetTotalBytes() != want {
		t.Errorf("available %d of %d, want %d", got, c.GetTotalBytes(), want)
	}
	if got, want := c.GetMaximumVolumeSizeBytes(), 2*testTotal*testExtent; got != want {
		t.Errorf("maximum %d, want the larger group's %d", got, want)
	}
	if c.GetVgName() != "carve,large" || c.GetVgUuid() != "fake-carve,fake-large" || len(c.GetGroups()) != 2 {
		t.Errorf("class %v", c)
	}
	if g := c.GetGroups()[1]; g.GetVgName() != "large" || g.GetVgUuid() != "fake-large" || g.GetAvailableBytes() != 2*testTotal*testExtent {
		t.Errorf("second group %v", g)
	}
}

func TestAVolumeGoesWhereMostIsFree(t *testing.T) {
	m := twoGroups(t)
	d := m.start(t)
	// 64 and 128 extents are free: the first three leave 64, 64, 64 and 64, 32.
	for i, c := range []struct {
		extents int64
		group   string
	}{{60, "large"}, {30, "large"}, {60, "carve"}, {10, "large"}} {
		v := d.create(request("v"+string(rune('a'+i)), c.extents))
		if v.GetVgName() != c.group {
			t.Errorf("volume %d of %d extents is in %s, want %s", i, c.extents, v.GetVgName(), c.group)
		}
	}
	// 4 and 28 extents are left.
	_, err := d.client.CreateVolume(t.Context(), request("too-large", 29))
	wantCode(t, err, codes.ResourceExhausted, names.ReasonNoSpace)
	last := d.create(request("fits", 28))
	if c := d.state().GetClasses()[0]; c.GetAvailableBytes() != 4*testExtent || c.GetMaximumVolumeSizeBytes() != 4*testExtent {
		t.Errorf("class %v, want 4 extents", c)
	}
	if other := d.state().GetClasses()[1]; other.GetAvailableBytes() != 4*testExtent {
		t.Errorf("the class that shares a group: %v", other)
	}
	d.delete(last.GetId())
	d.stop()
	d = m.start(t)
	byGroup := map[string]int{}
	for _, v := range d.list() {
		byGroup[v.GetVgName()]++
	}
	if byGroup["carve"] != 1 || byGroup["large"] != 3 {
		t.Errorf("volumes by group: %v", byGroup)
	}
}

func TestAVolumeGrowsWithinItsOwnGroup(t *testing.T) {
	d := twoGroups(t).start(t)
	d.create(request("a", 100)) // leaves 28 in the large group
	v := d.create(request("b", 60))
	if v.GetVgName() != "carve" {
		t.Fatalf("volume %v", v)
	}
	_, err := d.client.ExpandVolume(t.Context(), expandRequest(v.GetId(), 65))
	wantCode(t, err, codes.OutOfRange, names.ReasonSizeOutOfRange)
	if _, err := d.client.ExpandVolume(t.Context(), expandRequest(v.GetId(), 64)); err != nil {
		t.Error(err)
	}
}

func TestAGroupThatIsOutOfOrderLeavesTheClassTheOthers(t *testing.T) {
	m := twoGroups(t)
	d := m.start(t)
	m.fake.SetMissing("large", true)
	d.groups.Named("large").SetStale()
	waittest.Until(t, "the missing device is reported", func() bool {
		c := d.state().GetClasses()[0]
		return len(c.GetConditions()) == 1 && c.GetMaximumVolumeSizeBytes() == testTotal*testExtent
	})
	if v := d.create(request("a", 1)); v.GetVgName() != testGroup {
		t.Errorf("volume %v", v)
	}
	_, err := d.client.CreateVolume(t.Context(), request("b", testTotal))
	wantCode(t, err, codes.ResourceExhausted, names.ReasonNoSpace)
}

func TestAnOptionalClassHasTheGroupsThatThereAre(t *testing.T) {
	m := newMachine(t)
	m.config = "- {name: both, default: true, optional: true, volumeGroups: [carve, large]}\n"
	d := m.start(t)
	if c := d.state().GetClasses()[0]; c.GetVgName() != testGroup || len(c.GetGroups()) != 1 || len(c.GetConditions()) != 0 {
		t.Errorf("class %v", c)
	}
	m.config = "- {name: both, default: true, volumeGroups: [carve, large]}\n"
	d.stop()
	d = m.start(t)
	if c := d.state().GetClasses()[0]; len(c.GetGroups()) != 2 || c.GetAvailableBytes() != testTotal*testExtent ||
		len(c.GetConditions()) != 1 || c.GetConditions()[0].GetType() != "VolumeGroupMissing" {
		t.Errorf("a class that is not optional: want both groups, the space of one and VolumeGroupMissing, got %v", c)
	}
}

func expandRequest(id string, extents int64) *lvmdv1.ExpandVolumeRequest {
	return &lvmdv1.ExpandVolumeRequest{Id: id, RequiredBytes: extents * testExtent}
}

func TestOverSeveralGroupsTheMaximumFitsAndOneExtentMoreDoesNot(t *testing.T) {
	fewHistories(t)
	rapid.Check(t, func(r *rapid.T) {
		m := newMachine(t)
		sizes := map[string]int64{testGroup: testTotal}
		for _, name := range []string{"b", "c"} {
			sizes[name] = rapid.Int64Range(1, 40).Draw(r, name)
			m.fake.AddGroup(name, testExtent, sizes[name])
		}
		m.config = "- {name: all, default: true, volumeGroups: [carve, b, c], reserve: 4Mi}\n"
		d := m.start(t)
		defer d.stop()
		free := map[string]int64{}
		for name, size := range sizes {
			free[name] = size - 1
		}
		check := func() (most int64) {
			var sum int64
			for _, f := range free {
				sum, most = sum+f, max(most, f)
			}
			waittest.Until(t, "what is free adds up", func() bool {
				c := d.state().GetClasses()[0]
				return c.GetAvailableBytes() == sum*testExtent && c.GetMaximumVolumeSizeBytes() == most*testExtent
			})
			return most
		}
		var made []*lvmdv1.Volume
		for i := range rapid.IntRange(1, 8).Draw(r, "steps") {
			most := check()
			if _, err := d.client.CreateVolume(t.Context(), request("more", most+1)); status.Code(err) != codes.ResourceExhausted {
				r.Fatalf("%d extents, one too many: error %v", most+1, err)
			}
			if most == 0 || len(made) > 0 && rapid.Bool().Draw(r, "delete") {
				v := made[len(made)-1]
				made = made[:len(made)-1]
				d.delete(v.GetId())
				free[v.GetVgName()] += v.GetSizeBytes() / testExtent
				continue
			}
			v := d.create(request(fmt.Sprintf("v%d", i), rapid.Int64Range(1, most).Draw(r, "extents")))
			if free[v.GetVgName()] != most {
				r.Fatalf("volume of %d bytes went to %s with %d extents, the most are %d", v.GetSizeBytes(), v.GetVgName(), free[v.GetVgName()], most)
			}
			free[v.GetVgName()] -= v.GetSizeBytes() / testExtent
			made = append(made, v)
		}
		check()
	})
}
