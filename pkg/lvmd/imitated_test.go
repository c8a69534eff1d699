//go:build !kernel

package lvmd

import (
	"strings"
	"testing"

	"github.com/carve-csi/carve/api/conditions"
	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/waittest"
)

// The condition names the device that shows the group's UUID.
func TestWhatAUserWritesThatLooksLikeTheGroupIsACondition(t *testing.T) {
	m := newMachine(t)
	m.fake.AddDisk(blockdev.Device{Name: "loop6", Size: diskSize, UserData: "it lies on the logical volume carve-other"})
	m.fake.AddDisk(blockdev.Device{Name: "loop7", Size: diskSize, UserData: "it lies on the logical volume carve-v"})
	events := make(chan struct{}, 1)
	watched := func(_ *daemon, o *Options) { o.BlockEvents = events }
	d := m.start(t, watched)
	if found := d.class().GetConditions(); len(found) > 0 {
		t.Errorf("there are the conditions %v without a reason", found)
	}
	named := func(when string) {
		t.Helper()
		waittest.Until(t, when+": the condition is there", func() bool { return d.message(conditions.VolumeGroupImitated) != "" })
		if why := d.message(conditions.VolumeGroupImitated); !strings.Contains(why, "/dev/loop7: it lies on the logical volume carve-v") || strings.Contains(why, "loop6") {
			t.Errorf("%s: the condition says %q", when, why)
		}
		if d.available() != testTotal {
			t.Errorf("%s: %d extents are available, want all", when, d.available())
		}
	}
	m.fake.ImitateGroup("loop7", testGroup)
	events <- struct{}{}
	named("after an event of the kernel")
	d.stop()
	d = m.start(t, watched)
	named("at a start")
	m.fake.ImitateGroup("loop7", "")
	events <- struct{}{}
	waittest.Until(t, "the condition is over", func() bool { return len(d.class().GetConditions()) == 0 })
}
