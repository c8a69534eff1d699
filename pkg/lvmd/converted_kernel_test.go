//go:build kernel

package lvmd_test

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

type converted struct {
	what, class string
	// make converts a volume that is filled with 0x5a; undo reverts it with the contents intact.
	make, undo func(v *lvmdv1.Volume)
	// dependent is the resulting logical volume, remedy the advice in the error.
	dependent, remedy func(id string) string
	// readable dependents hold 0x5a, too. late conversions also work on a deleted volume.
	readable, late bool
}

func convertedNode(t *testing.T) *node {
	n := newNode(t, "/dev/vdb", "/dev/vdc")
	n.config += "- {name: raid1, volumeGroup: carve, type: raid1}\n"
	return n
}

func (n *node) conversions(t *testing.T, size int64) []converted {
	fixed := func(text string) func(string) string { return func(string) string { return text } }
	leg := func(id string) string { return "carve/" + id + "_rimage_1" }
	return []converted{
		{"a leg that was split off a mirror", "raid1", func(v *lvmdv1.Volume) {
			waittest.Until(t, "the mirror is in sync", func() bool {
				return strings.TrimSpace(lvmByHand(t, "lvs", "--noheadings", "-o", "sync_percent", "carve/"+v.GetId())) == "100.00"
			})
			lvmByHand(t, "lvconvert", "--yes", "--splitmirrors", "1", "--trackchanges", "carve/"+v.GetId())
		}, func(v *lvmdv1.Volume) {
			lvmByHand(t, "lvconvert", "--yes", "--merge", leg(v.GetId()))
		}, leg, func(id string) string { return "lvconvert --merge " + leg(id) }, true, true},
		{"a snapshot that waits to be merged", "local", func(v *lvmdv1.Volume) {
			lvmByHand(t, "lvcreate", "--yes", "--snapshot", "--name", backup, "--extents", "100%ORIGIN", "carve/"+v.GetId())
			fill(t, v, 0x6b)
			open := must.Get(os.Open(v.GetDevicePath()))(t)
			defer open.Close()
			lvmByHand(t, "lvconvert", "--yes", "--merge", "carve/"+backup)
		}, func(v *lvmdv1.Volume) {
			polled := strings.Replace(handConfig, "activation {", "activation { polling_interval=1", 1)
			byHand(t, "lvm", "lvchange", "--refresh", "--poll", "y", "carve/"+v.GetId(), "--config", polled)
			waittest.Until(t, "it is merged", func() bool {
				return !strings.Contains(lvmByHand(t, "lvs", "--all", "--noheadings", "-o", "lv_name", "carve"), backup)
			})
		}, fixed("carve/" + backup), func(id string) string { return "lvchange --refresh carve/" + id }, false, false},
		{"a write cache", "local", func(v *lvmdv1.Volume) {
			lvmByHand(t, "lvcreate", "--yes", "--name", backup, "--size", "16M", "carve", "/dev/vdc")
			lvmByHand(t, "lvchange", "--activate", "n", "carve/"+backup, "carve/"+v.GetId())
			lvmByHand(t, "lvconvert", "--yes", "--type", "writecache", "--cachevol", backup, "carve/"+v.GetId())
			lvmByHand(t, "lvchange", "--activate", "y", "carve/"+v.GetId())
		}, func(v *lvmdv1.Volume) {
			lvmByHand(t, "lvconvert", "--yes", "--splitcache", "carve/"+v.GetId())
			lvmByHand(t, "lvremove", "--yes", "carve/"+backup)
		}, fixed("carve/" + backup), func(id string) string { return "lvconvert --splitcache carve/" + id }, false, true},
	}
}

func (c *converted) check(t *testing.T, id string, size int64) {
	t.Helper()
	name := strings.TrimPrefix(c.dependent(id), "carve/")
	if all := lvmByHand(t, "lvs", "--all", "--noheadings", "-o", "lv_name", "carve"); !strings.Contains(all, name) {
		t.Fatalf("%s: there is no %s any more, but\n%s", c.what, name, all)
	}
	if !c.readable {
		return
	}
	got := must.Get(os.ReadFile("/dev/mapper/carve-" + name))(t)
	if n := bytes.Count(got, []byte{0x5a}); int64(n) != size || int64(len(got)) != size {
		t.Fatalf("%s: %d of %d bytes of %s are as they were", c.what, n, len(got), name)
	}
}

// The first attempts come before lvmd's scan.
func TestAVolumeThatLVMConvertsWaitsUntilThatIsOver(t *testing.T) {
	const size = 16 << 20
	n := convertedNode(t)
	p := n.start()
	all := p.classNamed("local").GetAvailableBytes()
	for _, c := range n.conversions(t, size) {
		t.Run(c.what, func(t *testing.T) {
			v := p.create(inClass(create(strings.ReplaceAll(c.what, " ", "-"), size, ""), c.class))
			fill(t, v, 0x5a)
			refused := func(what string, err error, wants ...string) {
				t.Helper()
				for _, want := range append(wants, c.dependent(v.GetId())) {
					if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), want) {
						t.Errorf("%s: error %v, want FailedPrecondition with %q", what, err, want)
					}
				}
			}
			c.make(v)
			_, err := p.client.ExpandVolume(t.Context(), &lvmdv1.ExpandVolumeRequest{Id: v.GetId(), RequiredBytes: 2 * size})
			refused("the growth at once", err)
			c.undo(v)
			waittest.Until(t, "it is known that this is over", func() bool { return p.conditions() == "" }, func() any { return p.conditions() })
			c.make(v)
			_, err = p.client.DeleteVolume(t.Context(), &lvmdv1.DeleteVolumeRequest{Id: v.GetId()})
			refused("a deletion at once", err)
			waittest.Until(t, "a condition says what to do", func() bool {
				return strings.Contains(p.volume(v.GetId()).String(), c.remedy(v.GetId()))
			}, func() any { return p.volume(v.GetId()) })
			_, err = p.client.DeleteVolume(t.Context(), &lvmdv1.DeleteVolumeRequest{Id: v.GetId()})
			refused("a deletion", err, c.remedy(v.GetId()))
			_, err = p.client.ExpandVolume(t.Context(), &lvmdv1.ExpandVolumeRequest{Id: v.GetId(), RequiredBytes: 2 * size})
			refused("the growth", err, c.remedy(v.GetId()))
			c.check(t, v.GetId(), size)
			c.undo(v)
			waittest.Until(t, "the condition is over", func() bool { return p.conditions() == "" }, func() any { return p.conditions() })
			checkFilled(t, v, 0x5a, size)
			grown := must.Get(p.client.ExpandVolume(t.Context(), &lvmdv1.ExpandVolumeRequest{Id: v.GetId(), RequiredBytes: 2 * size}))(t)
			checkFilled(t, grown.GetVolume(), 0x5a, size)
			p.delete(v.GetId())
			waittest.Until(t, "nothing is left", func() bool {
				return len(n.leftovers()) == 0 && p.classNamed("local").GetAvailableBytes() == all
			}, func() any { return n.leftovers() })
		})
	}
}

// lvmd ends between the acknowledgement of a deletion and the wipe.
func TestAVolumeThatLVMConvertsAfterItsDeletionIsNotWiped(t *testing.T) {
	const size = 16 << 20
	n := convertedNode(t)
	for _, c := range n.conversions(t, size) {
		if !c.late {
			continue
		}
		t.Run(c.what, func(t *testing.T) {
			p := n.startCrashingAt("delete: tombstone written", 1)
			v := p.create(inClass(create(strings.ReplaceAll(c.what, " ", "-"), size, ""), c.class))
			fill(t, v, 0x5a)
			_, _ = p.client.DeleteVolume(t.Context(), &lvmdv1.DeleteVolumeRequest{Id: v.GetId()})
			waittest.Until(t, "lvmd has ended", func() bool { return p.hasEnded(time.Millisecond) })
			c.make(v)
			p = n.start()
			defer p.kill()
			waittest.Until(t, "a condition names both", func() bool {
				class := p.classNamed(c.class).GetConditions()
				return len(class) == 1 && strings.Contains(class[0].GetMessage(), v.GetId()) && strings.Contains(class[0].GetMessage(), c.dependent(v.GetId()))
			}, func() any { return p.classNamed(c.class) })
			other := p.create(inClass(create("pvc-other", size, ""), c.class)).GetId()
			p.delete(other)
			waittest.Until(t, "the other volume is removed", func() bool {
				return !strings.Contains(lvmByHand(t, "lvs", "--noheadings", "-o", "lv_name", n.group), other)
			})
			checkFilled(t, v, 0x5a, size)
			c.check(t, v.GetId(), size)
			c.undo(v)
			waittest.Until(t, "the deletion goes on", func() bool {
				return len(n.leftovers()) == 0 && len(p.classNamed(c.class).GetConditions()) == 0
			}, func() any { return n.leftovers() })
		})
	}
}
