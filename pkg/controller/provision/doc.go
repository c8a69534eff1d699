// Package provision creates volumes for claims, while the controller leads.
//
// Follow one claim: claimChanged records the selected node and reserves there; a worker calls
// sync, where observe reads the state, the pure function decide chooses an action and perform
// carries it out; finish waits until the claim is bound. docs/explanation/claims.md draws the
// states.
//
// Vocabulary:
//
//	selected   the node that the scheduler chose for a claim (late binding), or
//	           that place chose (immediate binding)
//	in flight  a create whose outcome is unknown: the node may hold the volume
//	adopted    in flight on behalf of an earlier leader, perhaps
//	shortage   the claims of a Pod do not fit on a node together
//	reschedule to ask the scheduler for another node, by removing the selected-node annotation
//
// Invariants: a PersistentVolume names the node that answered the create, so it is never
// pinned to a node without the volume. A claim with a create in flight gets another node only
// after the first one has confirmed that it holds no such volume.
//
// Locks: take Provisioner.placing before attempts.mu; protector.mu is independent. An attempt
// belongs to the worker that has its claim.
package provision
