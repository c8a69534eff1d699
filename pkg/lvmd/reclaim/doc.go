// Package reclaim frees the space of deleted volumes: it marks them as deleted in LVM, wipes them
// and removes them, in the background, for each volume group.
//
// A deletion is acknowledged once its tombstone is in the journal. No extent is free before its
// wipe is durable. Wiping never holds a group's exclusive slot. In the same turns at the slot, the
// package also removes the tags of creation from volumes that were handed out.
//
// Vocabulary
//
//	tombstone   a volume that was deleted for its users and is yet to be wiped and removed
//	mark        a tag by which LVM's metadata shows a tombstone
//	checkpoint  a record in the journal of how much of a tombstone is wiped
//
// Callers: package lvmd.
package reclaim
