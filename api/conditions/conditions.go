// Package conditions lists the conditions of volumes and device classes, with their meanings
// and remedies. docs/reference/conditions.md is generated from it.
package conditions

import "slices"

// Types of conditions of device classes and volumes, reported by lvmd.
const (
	ConfigurationRefused = "ConfigurationRefused"
	ContentsNotFound     = "ContentsNotFound"
	Degraded             = "Degraded"
	DeletionWaits        = "DeletionWaits"
	DiskErrors           = "DiskErrors"
	DuplicateDevice      = "DuplicateDevice"
	Failed               = "Failed"
	HasDependents        = "HasDependents"
	Inactive             = "Inactive"
	LVMBusy              = "LVMBusy"
	MetadataFull         = "MetadataFull"
	MissingDevice        = "MissingDevice"
	NotResponding        = "NotResponding"
	OutOfSync            = "OutOfSync"
	PoolCannotGrow       = "PoolCannotGrow"
	PoolDataHigh         = "PoolDataHigh"
	PoolFailed           = "PoolFailed"
	PoolFull             = "PoolFull"
	PoolInactive         = "PoolInactive"
	PoolKeepsOldData     = "PoolKeepsOldData"
	PoolMetadataHigh     = "PoolMetadataHigh"
	PoolMissing          = "PoolMissing"
	PoolNeedsCheck       = "PoolNeedsCheck"
	PoolQueuesWhenFull   = "PoolQueuesWhenFull"
	PoolReadOnly         = "PoolReadOnly"
	ReadOnly             = "ReadOnly"
	Suspended            = "Suspended"
	TooManyVolumes       = "TooManyVolumes"
	VolumeGroupChanged   = "VolumeGroupChanged"
	VolumeGroupForeign   = "VolumeGroupForeign"
	VolumeGroupImitated  = "VolumeGroupImitated"
	VolumeGroupMissing   = "VolumeGroupMissing"
	VolumeGroupOutdated  = "VolumeGroupOutdated"
	VolumeGroupReplaced  = "VolumeGroupReplaced"
	VolumeGroupUnfit     = "VolumeGroupUnfit"
	VolumesLeftAlone     = "VolumesLeftAlone"
)

// Types of conditions of a volume, found by the node plugin.
const (
	FileSystemErrors   = "FileSystemErrors"
	FileSystemFailed   = "FileSystemFailed"
	FileSystemWarnings = "FileSystemWarnings"
	IOLimitsNotApplied = "IOLimitsNotApplied"
	MountedElsewhere   = "MountedElsewhere"
	UnmountFails       = "UnmountFails"
)

// Condition describes one type of condition.
type Condition struct {
	// Type is used in reports, metrics and Events.
	Type string
	// Of lists the possible subjects.
	Of []Subject
	// Unusable lists subjects that cannot be used meanwhile: the volume, all volumes of the
	// class, or new ones in it.
	Unusable []Subject
	// Both are Markdown.
	Meaning, Remedy string
}

// Subject is the kind of object that a condition affects.
type Subject string

// Subjects.
const (
	Class  Subject = "class"
	Volume Subject = "volume"
	// NewVolume is a volume yet to be created: it has no conditions of its own.
	NewVolume Subject = "new volume"
)

// Unusable returns the types of conditions that make s unusable, sorted.
func Unusable(s Subject) []string {
	var types []string
	for _, c := range All {
		if slices.Contains(c.Unusable, s) {
			types = append(types, c.Type)
		}
	}
	return types
}

var (
	ofClass  = []Subject{Class}
	ofVolume = []Subject{Volume}
	ofNew    = []Subject{NewVolume}
	ofBoth   = []Subject{Class, Volume}
)

// All is sorted by type.
var All = []Condition{
	{ConfigurationRefused, ofClass, nil, "The configuration file is not in force; the one before it is.", "Read the message or lvmd's log, and correct the file."},
	{ContentsNotFound, ofVolume, ofVolume, "Whether the volume was ever handed out is not known, as the journal was lost or is older than the volume, and what should be on it is not found. It is kept as it is, neither handed out nor formatted.", "Restore its file system or header and restart the agent; delete the volume only if its data is not needed."},
	{Degraded, ofBoth, nil, "Devices of a RAID volume, or of a RAID thin pool, failed or are missing. The data is on the others.", "[Replace the disk](../how-to/troubleshooting.md#condition-degraded-a-raid-disk-failed)."},
	{DeletionWaits, ofClass, nil, "Deleted volumes are neither wiped nor removed, for logical volumes that depend on them and were made after the deletion. Or a disk refuses the writes of the wipe.", "[Remove what the message names](../how-to/troubleshooting.md#condition-hasdependents-a-volume-is-not-deleted), or [replace the disk](../how-to/troubleshooting.md#condition-deletionwaits-a-disk-refuses-writes)."},
	{DiskErrors, ofClass, nil, "A disk of the volume group failed a request within the last minute.", "Look at `dmesg` and `smartctl`."},
	{DuplicateDevice, ofClass, ofClass, "A physical volume of the group is on two devices: one is a copy of the other, both lead to one disk, or both are members of an array that does not run. Nothing in the group is changed or activated until one is gone.", "[Find out which one is the copy](../how-to/troubleshooting.md#duplicatedevice-a-disk-and-its-copy)."},
	{Failed, ofVolume, ofVolume, "The volume answers no I/O, because its pool or cache failed, or because it is a snapshot with a size of its own, which lvmd does not make, and overflowed.", "Repair the pool or cache (`lvconvert --repair`). Remove the snapshot: what it held is lost."},
	{FileSystemErrors, ofVolume, nil, "The kernel found errors in the file system, or made it read-only after errors. It takes no writes until it was checked.", "Delete the Pods that use it: the next staging checks it."},
	{FileSystemFailed, ofVolume, nil, "The file system answers with I/O errors.", "Look at the disk (`dmesg`), then delete the Pods that use the volume."},
	{FileSystemWarnings, ofVolume, nil, "The file system met errors, mostly I/O errors, and goes on: ext4's `warning_count` since the mount, btrfs' `device stats`.", "Look at the disk. btrfs forgets its counts with `btrfs device stats --reset`."},
	{HasDependents, ofVolume, nil, "A logical volume that an administrator made depends on the volume, such as a snapshot or a cache. The volume can be neither deleted nor grown.", "[Remove what the message names](../how-to/troubleshooting.md#condition-hasdependents-a-volume-is-not-deleted)."},
	{IOLimitsNotApplied, ofVolume, nil, "A Pod that uses the volume is not held to its I/O limits; the message says why.", "[Install the component, or give the node what it lacks](../how-to/io-limits.md#limits-that-are-not-applied)."},
	{Inactive, ofVolume, ofVolume, "The volume has no device, or one without a table.", "lvmd tries again what it could not activate; else `vgchange --activate y VG`, or restart the agent."},
	{LVMBusy, ofBoth, nil, "LVM reports a state that a command of an administrator began or should end: a conversion, a merge, a difference between copies, a refresh or repair that is due. Or it does not know the volume's state.", "Wait for the command that the message names, or run it."},
	{MetadataFull, ofClass, nil, "The volume group's metadata area is full: no more volumes fit.", "Delete claims that are not needed. If lvmd's log says that deleted volumes cannot be marked, there is not even space for that: find with `lvs --all -o +lv_tags VG` a tag or a volume that is neither Carve's nor needed, and take it away (`lvchange --deltag`, `lvremove`); the deletions go on. Where that is not enough, use another group, made with a larger area (`vgcreate --metadatasize`)."},
	{MissingDevice, ofBoth, ofVolume, "A disk is lost. LVM changes nothing in the group meanwhile.", "[Bring the disk back, or give it up](../how-to/troubleshooting.md#a-disk-is-lost-or-a-volume-group-is-missing)."},
	{MountedElsewhere, ofVolume, nil, "No Pod uses the volume, and something has it mounted. It can be neither staged nor deleted.", "[Restart the container that the message names](../how-to/troubleshooting.md#failedmount-still-mounted-elsewhere-on-the-node)."},
	{NotResponding, ofClass, ofClass, "LVM commands time out for the volume group, or have failed since lvmd started; its log says why.", "[Find the disk that does not answer](../how-to/troubleshooting.md#lvm-hangs)."},
	{OutOfSync, ofBoth, nil, "Copies or parity are synchronised. Until then the loss of a device may lose data.", "Wait for it."},
	{PoolCannotGrow, ofClass, nil, "The thin pool should grow and cannot: the volume group is full, or `autoExtend.limit` is reached.", "Extend the volume group, raise `limit`, or delete volumes."},
	{PoolDataHigh, ofClass, nil, "The pool's data passed `dataThreshold`. Volumes that would be overprovisioned are refused.", "`lvextend -L+10G VG/POOL`, or `autoExtend`; delete volumes or snapshots; `fstrim` mounted file systems."},
	{PoolFailed, ofBoth, ofBoth, "The thin pool answers no I/O.", "[Repair the pool](../how-to/thin.md#repair-a-pool)."},
	{PoolFull, ofBoth, nil, "The thin pool is full: writes to new blocks fail.", "Extend the pool at once. File systems that met an error may be read-only until they are staged again."},
	{PoolInactive, ofBoth, ofBoth, "The thin pool has no device. Mostly its metadata is checked first, or its activation failed and is tried again; the message says so.", "[Wait, or remove the cause](../how-to/troubleshooting.md#poolinactive-a-thin-pool-has-no-device)."},
	{PoolKeepsOldData, ofClass, ofNew, "The pool does not zero new blocks. New volumes are refused.", "`lvchange --zero y VG/POOL`."},
	{PoolMetadataHigh, ofClass, nil, "The pool's metadata passed `metadataThreshold`. New volumes are refused.", "`lvextend --poolmetadatasize +1G VG/POOL`; delete snapshots."},
	{PoolMissing, ofBoth, ofBoth, "The thin pool is gone, or could not be made; the message says why.", "Remove the cause: lvmd tries again every minute. Where the pool is gone, look for it (`lvs --all VG`; `vgcfgrestore --list VG`): a restart of the agent makes an empty one, in extents that may hold the former one's data."},
	{PoolNeedsCheck, ofBoth, nil, "The pool's metadata had an error.", "[Repair the pool](../how-to/thin.md#repair-a-pool)."},
	{PoolQueuesWhenFull, ofClass, nil, "Writes to a full pool wait before they fail.", "`lvchange --errorwhenfull y VG/POOL`."},
	{PoolReadOnly, ofBoth, nil, "The pool's metadata cannot be written. All its volumes are read-only.", "[Repair the pool](../how-to/thin.md#repair-a-pool)."},
	{ReadOnly, ofBoth, nil, "The volume was made read-only, or its group is read-only or exported.", "`lvchange --permission rw VG/VOLUME`; `vgimport` for an exported group."},
	{Suspended, ofVolume, ofVolume, "The kernel holds back the volume's I/O.", "lvmd resumes what its own commands left suspended; else `dmsetup resume`."},
	{TooManyVolumes, ofClass, nil, "The group has as many logical volumes as its limit allows.", "`vgchange --logicalvolume 0 VG`."},
	{UnmountFails, ofVolume, nil, "The volume cannot be unmounted from a Pod that has ended, mostly for what is mounted in it; the Pod stays Terminating.", "[Remove what the message names](../how-to/troubleshooting.md#condition-unmountfails-a-pod-stays-terminating)."},
	{VolumeGroupChanged, ofClass, nil, "When lvmd started, it took or made a volume group in place of the former one, which had no volumes or was given up. The condition lasts an hour.", "If that is wrong, [bring the former group back](../how-to/troubleshooting.md#volumegroupchanged-another-group-is-used)."},
	{VolumeGroupForeign, ofClass, ofClass, "The volume group is there, with a system ID or a lock type for which LVM lets only other machines use it.", "If it is this node's, take off what the message names; else give the class a group of another name."},
	{VolumeGroupImitated, ofClass, nil, "A user of a volume wrote something into it that looks like a disk of the node's volume group, as a copy of that disk does. lvmd does not use it; the host's own LVM might.", "[Find the volume's user](../how-to/troubleshooting.md#volumegroupimitated-a-volume-holds-what-looks-like-the-nodes-disk)."},
	{VolumeGroupMissing, ofBoth, ofBoth, "lvmd does not find the volume group.", "[Look for it, and bring its disks back](../how-to/troubleshooting.md#a-disk-is-lost-or-a-volume-group-is-missing). Make one only on a node that never had it."},
	{VolumeGroupOutdated, ofClass, ofClass, "The volume group's metadata is older than it was, as on a copy of a disk from before. It is not used.", "[Bring the newest disk back, or accept what is there](../how-to/troubleshooting.md#volumegroupoutdated-the-metadata-is-older-than-it-was)."},
	{VolumeGroupReplaced, ofClass, ofClass, "Another volume group has the name, or the group has none of its disks, or none of its volumes, any more. It is not used.", "[Detach it, rename it, or accept it](../how-to/troubleshooting.md#volumegroupreplaced-another-group-has-the-name)."},
	{VolumeGroupUnfit, ofClass, ofNew, "The volume group does not fit the class: its extents are too small or too few devices are in it for the layout, or it is not the persistent memory that `medium: pmem` needs. Volumes that exist are served.", "As the message says, `vgchange --physicalextentsize 4m VG`, which needs no restart, or `vgextend`; or correct the class. [Make a group on persistent memory](../how-to/persistent-memory.md)."},
	{VolumesLeftAlone, ofClass, nil, "Volumes have tags of Carve that this version cannot read; the message says why. They are neither used nor removed.", "[Install the later version again](../how-to/upgrade.md#go-back); else correct the tags (`lvchange --addtag`, `--deltag`)."},
}
