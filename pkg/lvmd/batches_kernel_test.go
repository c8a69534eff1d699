//go:build kernel

package lvmd_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvmd/reclaim"
	"github.com/carve-csi/carve/pkg/waittest"
)

// No command may outlast its deadline, and no creation may fail.
func TestManyRealSnapshotsAreDeletedAtOnceWhileOthersCreate(t *testing.T) {
	const snapshots = 50
	n := thinNode(t, "overprovisioning: 10")
	n.keeps = []string{"carve-pool"}
	n.debug = true
	p := n.start()
	v := p.create(create("pvc-source", 4<<20, ""))
	fill(t, v, 0x5a)
	var ids []string
	for i := range snapshots {
		ids = append(ids, p.snapshotAgain(&lvmdv1.CreateSnapshotRequest{Name: fmt.Sprint("snapshot-", i), SourceVolumeId: v.GetId()}).GetId())
	}
	var deleting, creating sync.WaitGroup
	var gone atomic.Bool
	made := 0
	creating.Go(func() {
		for ; !gone.Load() || made == 0; made++ {
			created, err := p.client.CreateVolume(t.Context(), create(fmt.Sprint("pvc-", made), 4<<20, ""))
			if err == nil {
				_, err = p.client.DeleteVolume(t.Context(), &lvmdv1.DeleteVolumeRequest{Id: created.GetVolume().GetId()})
			}
			if err != nil {
				t.Errorf("volume %d: %v", made, err)
				return
			}
		}
	})
	for _, id := range ids {
		deleting.Go(func() {
			if _, err := p.client.DeleteSnapshot(t.Context(), &lvmdv1.DeleteSnapshotRequest{Id: id}); err != nil {
				t.Errorf("snapshot %s: %v", id, err)
			}
		})
	}
	deleting.Wait()
	left := func() int {
		return strings.Count(lvmByHand(t, "lvs", "--noheadings", "-o", "lv_name", "--select", `lv_name=~"`+strings.Join(ids, "|")+`"`, n.group), "\n")
	}
	waittest.Until(t, "all snapshots are removed", func() bool { return left() == 0 }, func() any { return left() })
	gone.Store(true)
	creating.Wait()
	checkFilled(t, v, 0x5a, 4<<20)
	p.delete(v.GetId())
	waittest.Until(t, "nothing is left", func() bool { return len(n.leftovers()) == 0 })

	commands := 0
	for line := range strings.Lines(p.log.String()) {
		if !strings.Contains(line, `"msg":"lvm"`) {
			continue
		}
		if strings.Contains(line, `"command":"lvremove"`) {
			commands++
		}
		if !strings.Contains(line, `"error":null`) {
			t.Errorf("a command failed: %s", line)
		}
	}
	t.Logf("%d volumes were made while %d snapshots were removed; %d commands removed volumes", made, snapshots, commands)
	if least := snapshots / reclaim.MaxThinRemoved; commands < least {
		t.Errorf("%d commands removed all volumes, want at least %d", commands, least)
	}
	if strings.Contains(p.log.String(), "LVM does not answer") {
		t.Errorf("LVM did not answer in time:\n%s", p.log)
	}
}
