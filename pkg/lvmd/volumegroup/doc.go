// Package volumegroup is lvmd's way to a volume group: the exclusive slot in which commands change
// it, the scan after each change, the identity by which it is known, the repair of devices that a
// killed command left in the middle of a change, and the look at what others did to it.
//
// It keeps the inventory true to the disks. It never decides why a group is to be changed.
//
// Vocabulary
//
//	slot          the right to run a command that changes a group; one at a time per group,
//	              shared fairly by the tenants, see fairqueue
//	change        one command in a slot, and the inventory's view of it
//	pin           the UUID that a group is known by; others of its name are not taken for it
//	suspect       a group in which a command failed, until its devices are what its metadata says
//	unresponsive  a group for which a command timed out, until a scan of it succeeds
//
// Locks: a group's slot is taken before a transaction of the journal, and that before the
// inventory's lock.
//
// Callers: packages lvmd and lvmd/reclaim.
package volumegroup
