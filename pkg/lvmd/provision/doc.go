// Package provision makes and grows volume groups from the disks that the configuration selects.
//
// A Provisioner compares the machine's block devices with the groups and acts on the difference: it
// makes physical volumes, makes or extends the group, and resizes what has grown. It uses a disk
// only if that passes all checks, see check.go, and reports the refused ones.
//
// Before it makes a physical volume, it writes an intent to the journal. If lvmd ends before the
// volume joins its group, it is known by its UUID and joins later; any other disk with a signature
// is refused. The intent ends once the disk's label shows the group, so that a disk that vgreduce
// removes later is not added again.
//
// It runs commands of lvm.Devices only, changes a group only in its exclusive slot, and keeps no
// state of groups: it sees their owner through the interface Groups alone.
package provision
