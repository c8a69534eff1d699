// Package inventory is lvmd's in-memory model of its volume groups: thin pools, volumes and their
// states, reservations of free space, reports, and the watchers of these. One lock guards it, which
// only this package takes.
//
// It does no I/O and calls no caller's function under the lock. A caller asks for admission, runs a
// command, commits its effect or applies a scan, and acts on the result.
//
// Vocabulary
//
//	state       where a volume is between its admission and its end
//	phase       the part of a state that the journal keeps, for the next start
//	claim       a state in which one operation has the volume
//	transition  an allowed change of state
//	admission   the decision that an operation may begin, with the space reserved for it
//	effect      the change that a successful command made
//
// Callers: package lvmd.
package inventory
