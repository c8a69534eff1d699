//go:build kernel

package lvm_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/must"
)

func TestNothingIsDoneToAnotherGroupThatIsWhereTheKnownOneWas(t *testing.T) {
	const name = "carve-known"
	group(t, name)
	h := host(t)
	scan := func() []lvm.Group {
		t.Helper()
		return must.Get(h.Scan(t.Context(), []string{name}))(t)
	}
	known := scan()[0]
	h.Pin(name, known.Identity())
	create := func(volume string) error {
		return h.Create(t.Context(), lvm.CreateOptions{Group: name, Volume: volume, Extents: 1, Tags: []string{"carve"}})
	}
	must.Succeed(t, create("cv1"))

	lvmByHand(t, "vgremove", "--yes", "--force", name)
	lvmByHand(t, "vgcreate", "--yes", name, "/dev/vdb", "/dev/vdc")
	lvmByHand(t, "lvcreate", "--yes", "--name", "cv1", "--extents", "1", name)
	for what, err := range map[string]error{
		"create": create("cv2"),
		"remove": h.Remove(t.Context(), name, []string{"cv1"}),
		"tag":    h.Tag(t.Context(), name, []string{"cv1"}, "carve.deleted"),
	} {
		if !errors.Is(err, lvm.ErrNotFound) || !strings.Contains(err.Error(), known.UUID) {
			t.Errorf("%s in another group: %v, want %v with %s", what, err, lvm.ErrNotFound, known.UUID)
		}
	}
	if _, err := h.Placement(name); !errors.Is(err, lvm.ErrNotFound) {
		t.Errorf("where everything lies in another group: %v, want %v", err, lvm.ErrNotFound)
	}
	if found := scan(); len(found) != 0 {
		t.Errorf("another group is taken for the known one: %+v", found)
	}
	h.Pin(name, lvm.Identity{})
	if found := scan(); len(found) != 1 || len(found[0].Volumes) != 1 || len(found[0].Volume("cv1").Tags) != 0 {
		t.Errorf("the other group was changed: %+v", found)
	}
}

func TestOnlyDevicesWithinTheLimitAreLookedAt(t *testing.T) {
	const name = "carve-limited"
	group(t, name)
	for _, c := range []struct {
		name    string
		allowed []string
		// missing counts the hidden ones of the group's two devices; -1 hides all.
		missing int
	}{
		{"both", []string{"/dev/vdb", "/dev/vdc"}, 0},
		{"one", []string{"/dev/vdb"}, 1},
		{"none", nil, -1},
	} {
		h := host(t)
		h.Limit(func(d *blockdev.Device) bool {
			for _, path := range c.allowed {
				if d.Path == path {
					return true
				}
			}
			return false
		})
		found := must.Get(h.Scan(t.Context(), []string{name}))(t)
		switch {
		case c.missing < 0 && len(found) == 0:
		case len(found) != 1 || found[0].MissingDevices != c.missing:
			t.Errorf("%s of its devices allowed: %+v, want %d missing devices", c.name, found, c.missing)
		}
		devices := must.Get(h.BlockDevices())(t)
		if len(devices) != len(c.allowed) {
			t.Errorf("%s allowed: there are %v, want %v", c.name, devices, c.allowed)
		}
	}
}

func TestAGroupsAllocationPolicyLimitsNothing(t *testing.T) {
	const name = "carve-policy"
	group(t, name)
	lvmByHand(t, "vgchange", "--alloc", "contiguous", name)
	h := host(t)
	scan := func() lvm.Group {
		t.Helper()
		return must.Get(h.Scan(t.Context(), []string{name}))(t)[0]
	}
	free := scan().FreeExtents
	// Neither lies on one device, and the growth of the first one is not contiguous.
	must.Succeed(t, h.Create(t.Context(), lvm.CreateOptions{Group: name, Volume: "cv1", Extents: free*3/4 - 1}))
	must.Succeed(t, h.Create(t.Context(), lvm.CreateOptions{Group: name, Volume: "cv2", Extents: 1}))
	must.Succeed(t, h.Extend(t.Context(), name, "cv1", free-1))
	if g := scan(); g.FreeExtents != 0 || g.Allocation != "contiguous" {
		t.Errorf("%d extents are free in a group of the policy %s, want 0, contiguous", g.FreeExtents, g.Allocation)
	}
	must.Succeed(t, h.Remove(t.Context(), name, []string{"cv2"}))
	err := h.Create(t.Context(), lvm.CreateOptions{Group: name, Volume: "cv3", Extents: 2, Options: []string{"--alloc=contiguous"}})
	if !errors.Is(err, lvm.ErrNoSpace) {
		t.Errorf("two extents where one is free: %v, want %v", err, lvm.ErrNoSpace)
	}
}

func TestALimitOfVolumesIsReported(t *testing.T) {
	const name = "carve-few"
	group(t, name)
	h := host(t)
	most := func() int64 {
		t.Helper()
		return must.Get(h.Scan(t.Context(), []string{name}))(t)[0].MostVolumes
	}
	if got := most(); got != 0 {
		t.Errorf("a group without a limit may have %d volumes, want 0, which is no limit", got)
	}
	lvmByHand(t, "vgchange", "--logicalvolume", "1", name)
	if got := most(); got != 1 {
		t.Errorf("the group may have %d volumes, want 1", got)
	}
	must.Succeed(t, h.Create(t.Context(), lvm.CreateOptions{Group: name, Volume: "cv1", Extents: 1}))
	if err := h.Create(t.Context(), lvm.CreateOptions{Group: name, Volume: "cv2", Extents: 1}); err == nil {
		t.Error("LVM made more volumes than the limit")
	}
}
