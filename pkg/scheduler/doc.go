// Package scheduler knows how much free space there is: what each node reported,
// minus what claims that chose a node will take there. It is pure: it does no
// I/O, starts no goroutine, and is given the time.
//
// Vocabulary:
//
//	report       what a node says is free, per device class, together with the
//	             names of the volumes that this figure already accounts for
//	group        the volume group behind a class; classes of one group share
//	             its space
//	reservation  space that a claim will take on a node, from the moment the node
//	             was selected until a report counts the volume, the claim is
//	             released, or a deadline passes
//	free space   reported minus reserved: what may be published
//
// Invariants: free space is never negative; a volume is counted once, as a
// reservation or in the report, never as both and never as neither; without
// reservations free space is exactly what the node reported.
//
// Callers: pkg/controller feeds reports from pkg/fleet and reservations from
// claims, and publishes what is free. lvmd's own admission decides in the end.
package scheduler
