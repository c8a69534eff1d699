// Package volumegroup is lvmd's access to a volume group: the exclusive slot for commands that
// change it, the scan after each change, its identity, the repair of devices that a killed command
// left inconsistent, and the detection of changes by others.
//
// It keeps the inventory equal to the disks. It never decides why a group changes.
//
// Vocabulary
//
//	slot          the right to run a command that changes a group; one at a time per group,
//	              shared fairly by the tenants, see fairqueue
//	change        one command in a slot, and the inventory's view of it
//	pin           the UUID that a group is known by; others of its name are not used
//	suspect       a group in which a command failed, until its devices match its metadata
//	unresponsive  a group for which a command timed out, until a scan of it succeeds
//
// Locks: a group's slot is taken before a transaction of the journal, and that before the
// inventory's lock.
//
// Callers: packages lvmd and lvmd/reclaim.
package volumegroup
