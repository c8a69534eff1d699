// Package scheduler computes free space: the nodes' reports minus what claims that chose a node
// will take. It does no I/O, starts no goroutine, and gets the time from a function.
//
// Vocabulary:
//
//	report       a node's free space per device class, with the names of the
//	             volumes that this figure already accounts for
//	group        the volume group behind a class; classes of one group share
//	             its space
//	reservation  space that a claim will take on a node, from the selection of
//	             the node until a report counts the volume, the claim is
//	             released, or a deadline passes
//	free space   reported minus reserved: what may be published
//
// Invariants: free space is never negative; a volume counts exactly once, as a reservation or in
// the report; without reservations, free space is exactly what the node reported.
//
// Callers: pkg/controller feeds reports from pkg/fleet and reservations from claims, and publishes
// the free space. lvmd's own admission has the final decision.
package scheduler
