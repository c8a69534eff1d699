// Package scheduler knows how much room there is: what each node reported,
// minus what claims that chose a node will take there. It is pure: it does no
// I/O, starts no goroutine and is told the time.
//
// Vocabulary:
//
//	report       what a node says is free, per device class, together with the
//	             names of the volumes that this figure already accounts for
//	group        the volume group behind a class; classes of one group share
//	             its space
//	reservation  room that a claim will take on a node, from the moment the node
//	             was selected until a report counts the volume, the claim is
//	             released, or a deadline passes
//	room         reported minus reserved: what may be published
//
// Invariants: room is never negative; a volume is counted once, as a
// reservation or in the report, never as both and never as neither; without
// reservations room is exactly what the node reported.
//
// The package extender below it lets kube-scheduler ask.
//
// Callers: pkg/controller feeds reports from pkg/fleet and reservations from
// claims, and publishes room. lvmd's own admission stays the authority.
package scheduler
