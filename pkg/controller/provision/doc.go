// Package provision makes volumes for claims.
//
// Read it along one claim: the informers call claimChanged, which notes the selected node and
// reserves there (provision.go). A worker calls sync: observe reads the state (observe.go),
// decide chooses the action by nothing but that state (decide.go), perform acts: create asks the
// node for the volume and writes the PersistentVolume (create.go), finish waits until the claim is bound
// to it (bind.go). The states are drawn in docs/explanation/claims.md.
//
// Vocabulary:
//
//	selected   the node that the scheduler chose for a claim (late binding), or
//	           that we chose (immediate binding)
//	attempt    what is remembered of a claim while it is being provisioned
//	in flight  a create whose outcome is unknown: the node may hold the volume
//	adopted    in flight on behalf of an earlier leader, perhaps
//	shortage   the claims of a Pod do not fit on a node together
//	reschedule to ask the scheduler for another node, by removing the selected-node annotation
//
// Invariants: a PersistentVolume names the node that answered the create, so
// it can never be pinned to a node that does not hold the volume; a claim with a create in
// flight is given to another node only after the node said that it holds no such volume.
//
// Locks: attempts.mu and Provisioner.placing, which is taken first; protector.mu is
// independent of them. An attempt belongs to the worker that has its claim.
//
// Caller: the controller, while it leads.
package provision
