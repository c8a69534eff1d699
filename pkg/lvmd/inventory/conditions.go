package inventory

import (
	"fmt"
	"slices"

	"github.com/carve-csi/carve/api/conditions"
	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvm"
)

func contentsNotFound(v *Volume) string {
	const kept = "it is kept as it is, neither handed out nor formatted; "
	switch {
	case v.unseen:
		return "whether its thin pool has it cannot be seen yet: " + kept + "lvmd looks again once the pool is active and no other command uses the volume group"
	case v.device.Path == "" && !v.rec.Ident.Snapshot:
		return "whether it was ever handed out is not known, and it has no device that shows it: " + kept + "lvmd looks again once the device is there"
	}
	return "whether it was ever handed out is not known, and what should be on it is not found: " + kept +
		"restart lvmd when its contents are restored; delete the volume only if its data is not needed"
}

func sameConditions(a, b []*lvmdv1.Condition) bool {
	return slices.EqualFunc(a, b, func(a, b *lvmdv1.Condition) bool {
		return a.GetType() == b.GetType() && a.GetMessage() == b.GetMessage()
	})
}

func condition(kind, format string, args ...any) *lvmdv1.Condition {
	return &lvmdv1.Condition{Type: kind, Message: fmt.Sprintf(format, args...)}
}

func oneOfEachType(all []*lvmdv1.Condition) []*lvmdv1.Condition {
	var joined []*lvmdv1.Condition
	for _, c := range all {
		i := slices.IndexFunc(joined, func(o *lvmdv1.Condition) bool { return o.GetType() == c.GetType() })
		if i < 0 {
			joined = append(joined, c)
			continue
		}
		joined[i] = condition(c.GetType(), "%s; %s", joined[i].GetMessage(), c.GetMessage())
	}
	return joined
}

// A finding is the condition that a letter of lv_attr stands for.
type finding struct{ kind, message string }

// Letters of lv_attr, whose positions lvs(8) lists. Those in none of these tables make no
// condition:
//
//   - 1, type: the others are layouts, which are reported as such, or components of volumes.
//     lvmd creates mirrors without initial sync (R); for images out of sync see raidConditions.
//   - 2, permissions: r and R are ReadOnly, w is usual.
//   - 3, 4, allocation and minor number: LVM's policy. Locked extents are being moved by pvmove,
//     which does the volume no harm.
//   - 5, state: instead of a, s, d, i and - the device is asked: it is Inactive without a live
//     table, and Suspended while the kernel holds back its I/O. h is a volume that is gone.
//   - 6, open: usual.
//   - 7, target: the others are known kinds of devices.
//   - 8, zeroing: of pools, see pool.conditions.
//   - 9, health: an administrator asks for w (lvchange --writemostly). For RAID, raidConditions has
//     the kernel's current r and m; LVM's are as of the last scan.
//   - 10, k: an administrator set it, and wants the volume inactive; then it is Inactive.
var (
	typeFindings = map[byte]finding{
		'O': {conditions.LVMBusy, "a snapshot is being merged into the volume: wait for it (lvconvert --merge)"},
		'S': {conditions.LVMBusy, "the volume is being merged into the one that it is a snapshot of: wait for it (lvconvert --merge)"},
		'c': {conditions.LVMBusy, "how the volume lies is being changed: wait for it (lvconvert)"},
	}
	activationFindings = map[lvm.Activation]finding{
		lvm.InvalidSnapshot:   {conditions.Failed, "the snapshot overflowed and holds nothing that can be used: look at it (lvs) and remove it (lvremove)"},
		lvm.MergeFailed:       {conditions.LVMBusy, "lvconvert --merge failed and may have changed a part of the volume: look at dmesg, and restore the data"},
		lvm.CheckNeeded:       {conditions.LVMBusy, "the metadata of its pool or cache had an error: deactivate that and repair it (lvconvert --repair)"},
		lvm.UnknownActivation: {conditions.LVMBusy, "LVM could not ask the kernel for the volume's state: look at dmesg and dmsetup status"},
	}
	targetFindings = map[byte]finding{
		'u': {conditions.LVMBusy, "LVM does not know the kind of device that the kernel has for the volume: look at dmsetup status"},
	}
	healthFindings = map[lvm.Health]finding{
		lvm.Partial:          {conditions.MissingDevice, "a device that the volume lies on is missing"},
		lvm.RefreshNeeded:    {conditions.LVMBusy, "a device of the volume came back or had write errors: refresh it (lvchange --refresh)"},
		lvm.MismatchesExist:  {conditions.LVMBusy, "a check found copies or parity that differ: repair them (lvchange --syncaction repair)"},
		lvm.Reshaping:        {conditions.LVMBusy, "how the volume lies is being changed: wait for it (lvconvert)"},
		lvm.ReshapeRemoved:   {conditions.LVMBusy, "devices are left over from a change of how the volume lies; the same lvconvert again removes them"},
		lvm.Failed:           {conditions.Failed, "the volume answers no more I/O"},
		lvm.OutOfDataSpace:   {conditions.PoolFull, "its pool is full: writes to new blocks fail"},
		lvm.MetadataReadOnly: {conditions.PoolReadOnly, "the metadata of its pool cannot be written"},
		lvm.WriteCacheError:  {conditions.LVMBusy, "its write cache had an error: look at the cache's disk (dmesg)"},
		lvm.UnknownHealth:    {conditions.LVMBusy, "LVM does not know the volume's health: look at dmesg and dmsetup status"},
	}
)

func conditionsOf(lv *lvm.Volume, d lvm.Device, active bool) []*lvmdv1.Condition {
	var c []*lvmdv1.Condition
	add := func(f finding) {
		if f.kind != "" {
			c = append(c, condition(f.kind, "%s", f.message))
		}
	}
	if health := lv.Attr.Health; !lv.Layout.IsRAID() || health != lvm.RefreshNeeded && health != lvm.MismatchesExist {
		add(healthFindings[health])
	}
	switch {
	case !active:
		add(finding{conditions.Inactive, "the volume has no device"})
	case d.Suspended:
		add(finding{conditions.Suspended, "the kernel holds back the volume's I/O"})
	}
	add(activationFindings[lv.Attr.Activation])
	if !lv.Attr.Writable {
		add(finding{conditions.ReadOnly, "the volume is read-only"})
	}
	add(typeFindings[lv.Attr.Type])
	add(targetFindings[lv.Attr.Target])
	return c
}

// raidConditions reports progress in steps: each change is a message to every watcher.
func raidConditions(s lvm.RAIDStatus) []*lvmdv1.Condition {
	var c []*lvmdv1.Condition
	if s.Failed > 0 {
		c = append(c, condition(conditions.Degraded, "%d of the volume's %d devices failed or are missing; one that is back is taken in again by lvchange --refresh", s.Failed, s.Images))
	}
	if s.Synced < s.Total && s.Total > 0 && s.Action != "check" && s.Action != "repair" || s.Behind > 0 {
		const step = 10
		tenths := int64(0)
		if s.Total > 0 {
			tenths = s.Synced / (s.Total/step + 1)
		}
		c = append(c, condition(conditions.OutOfSync, "copies or parity are being made true (%s, about %d %% done); until then the loss of a device may lose data",
			s.Action, tenths*step))
	}
	if s.Mismatches > 0 && s.Action != "check" && s.Action != "repair" {
		c = append(c, condition(conditions.LVMBusy, "a check found %d sectors in which copies or parity differ: repair them (lvchange --syncaction repair)", s.Mismatches))
	}
	return c
}
