//go:build kernel

package lvmd_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carve-csi/carve/api/conditions"
	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// locked acts like a command that waits for a disk or an administrator's answer.
func locked(t *testing.T, group string) (unlock func()) {
	t.Helper()
	held := must.Get(os.OpenFile(filepath.Join(lvm.LockDir, "V_"+group), os.O_CREATE|os.O_RDWR, 0o600))(t)
	t.Cleanup(func() { held.Close() })
	must.Succeed(t, unix.Flock(int(held.Fd()), unix.LOCK_EX))
	return func() { must.Succeed(t, unix.Flock(int(held.Fd()), unix.LOCK_UN)) }
}

// Another command locks one of lvmd's groups at the start, and then a group that lvmd does not
// use.
func TestACommandThatKeepsAGroupsLockHoldsUpNoOtherGroup(t *testing.T) {
	n := newNode(t)
	lvmByHand(t, "vgcreate", "--yes", "other", "/dev/vdc")
	takeAway(t, func() {
		lvmByHand(t, "vgremove", "--yes", "--force", "--force", "other")
		lvmByHand(t, "pvremove", "--yes", "/dev/vdc")
	})
	ours := n.config
	n.config = ours + "- {name: other, volumeGroup: other}\n"
	n.timeout = 10 * time.Second
	p := n.start()
	v := p.create(create("pvc-1", 8<<20, ""))
	must.Succeed(t, p.stop())

	unlock := locked(t, "other")
	p = n.launchUntil(n.command(), func(p *process) bool {
		// The health service would wait for all groups.
		ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
		defer cancel()
		_, err := p.client.ListClasses(ctx, &lvmdv1.ListClassesRequest{})
		return err == nil
	})
	isLate := func() bool {
		return slices.ContainsFunc(p.classNamed("other").GetConditions(), func(c *lvmdv1.Condition) bool { return c.GetType() == conditions.NotResponding })
	}
	if !isLate() {
		t.Errorf("the class of the group that is locked has %v", p.classNamed("other").GetConditions())
	}
	p.delete(v.GetId())
	p.delete(p.create(create("pvc-2", 8<<20, "ext4")).GetId())
	unlock()
	waittest.Until(t, "the other group is served", func() bool { return !isLate() })
	p.delete(p.create(inClass(create("pvc-3", 8<<20, ""), "other")).GetId())
	must.Succeed(t, p.stop())

	n.config = ours
	unlock = locked(t, "other")
	p = n.start()
	p.delete(p.create(create("pvc-4", 8<<20, "ext4")).GetId())
	unlock()
}
