// Package provision makes and grows volume groups of the disks that the configuration selects.
//
// A Provisioner compares the machine's block devices with the groups, and does what is missing:
// it makes physical volumes, makes or extends the group, and resizes what has grown. A disk is
// taken only when it passes all checks: see check.go, and the refusals that are reported.
//
// Each physical volume is an intent in the journal before it is made, so that one that was
// left without a group is known by its UUID, and joins later: it has a signature, for which any
// other disk is refused. The intent ends when the disk's label says that it has joined, so that
// one that vgreduce takes out later is not taken back.
//
// It runs nothing but lvm.Devices, changes a group only in its exclusive slot, and keeps no
// state of groups: the interface Groups is all it knows of their owner.
package provision
