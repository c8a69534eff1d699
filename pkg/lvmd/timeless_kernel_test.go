//go:build kernel

package lvmd_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// forgetTimes removes the volumes' creation times, which LVM before 2.02.89 did not record.
func (n *node) forgetTimes(group string) {
	n.t.Helper()
	file := filepath.Join(n.dir, group+".vg")
	lvmByHand(n.t, "vgchange", "--activate", "n", group)
	lvmByHand(n.t, "vgcfgbackup", "--file", file, group)
	text := string(must.Get(os.ReadFile(file))(n.t))
	at := strings.Index(text, "logical_volumes")
	volumes := regexp.MustCompile(`(?m)^\s*creation_(time|host) = .*\n`).ReplaceAllString(text[at:], "")
	must.Succeed(n.t, os.WriteFile(file, []byte(text[:at]+volumes), 0o600))
	lvmByHand(n.t, "vgcfgrestore", "--yes", "--file", file, group)
	if got := strings.TrimSpace(lvmByHand(n.t, "lvs", "--noheadings", "--options", "lv_time", group)); got != "" {
		n.t.Fatalf("the volumes of %s have the times %q", group, got)
	}
}

// Such volumes are in another system's group, foreign in lvmd's group, and lvmd's own after the
// loss of the journal.
func TestVolumesWithoutACreationTimeAreServed(t *testing.T) {
	n := newNode(t)
	const other = "oldroot"
	lvmByHand(t, "vgcreate", "--yes", other, "/dev/vdc")
	takeAway(t, func() {
		lvmByHand(t, "vgremove", "--yes", "--force", "--force", other)
		lvmByHand(t, "pvremove", "--yes", "/dev/vdc")
	})
	lvmByHand(t, "lvcreate", "--yes", "--name", "home", "--size", "16m", other)
	lvmByHand(t, "lvcreate", "--yes", "--name", "theirs", "--size", "16m", n.group)
	p := n.start()
	all := p.available()
	v := p.create(create("pvc-kept", 8<<20, ""))
	fill(t, v, 0x5a)
	must.Succeed(t, p.stop())
	n.forgetTimes(other)
	n.forgetTimes(n.group)
	must.Succeed(t, os.Remove(filepath.Join(n.dir, "state", "journal.db")))
	before := time.Now()

	p = n.start()
	kept := p.create(create("pvc-kept", 8<<20, ""))
	if kept.GetId() != v.GetId() || len(kept.GetConditions()) > 0 {
		t.Errorf("the volume is %v, want %s without conditions", kept, v.GetId())
	}
	if made := kept.GetCreatedAt().AsTime(); made.Before(before.Add(-time.Minute)) {
		t.Errorf("it was made at %v, want when it was found, after %v: what is old may be an orphan", made, before)
	}
	checkFilled(t, kept, 0x5a, 8<<20)
	p.delete(p.create(create("pvc-new", 8<<20, "ext4")).GetId())
	p.delete(kept.GetId())
	waittest.Until(t, "the space is back", func() bool { return p.available() == all })
}
