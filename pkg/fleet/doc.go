// Package fleet is the controller's live view of every node's lvmd, and the way to call one.
//
// It owns the sessions that pkg/uplink accepted. One per node is current; a new one replaces it,
// and calls in flight on the old one go on. A node has at most two sessions: a third closes the
// first. Over each current session the fleet keeps one Watch, which reports the node's device
// classes and volumes. Placing, reserving and retrying are left to the caller.
//
// Vocabulary:
//
//	node     a Kubernetes node whose lvmd has connected at least once
//	view     the last report of a node, kept when the node disconnects
//	call     one unary request to one node, with the caller's deadline
//
// Invariants: a view is always a state that the node was in, never a mixture of two; OnChange gets
// the views of one node in order; a call that failed with NotConnectedError or NoPlaceError was
// never sent; a report beyond the limits (such as MaxVolumes) is rejected before it takes more
// memory.
//
// It runs on every controller replica, so that a stand-by knows the fleet when it takes over.
// Callers: pkg/controller.
package fleet
