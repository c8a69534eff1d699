// Package fleet is the controller's live view of every node's lvmd, and the
// way to call one.
//
// It owns the sessions that pkg/uplink accepted: one is current per node, a
// new one of the same node replaces the old without cutting calls in flight.
// Over each current session it keeps one Watch, from which it knows the node's
// device classes and volumes. It never decides anything: placing, reserving
// and retrying are the caller's.
//
// Vocabulary:
//
//	node     a Kubernetes node whose lvmd has connected at least once
//	view     what was last reported by a node; kept when the node disconnects
//	call     one unary request to one node, with the caller's deadline
//
// Invariants: a view is always a state that the node was in, never a mixture
// of two; views of one node are handed to OnChange in order; a call that
// failed with NotConnectedError or NoPlaceError was never sent; a node that reports more than a
// node can hold (MaxVolumes) is refused, and takes no more memory for it.
//
// It runs on every controller replica, whether that leads or not, so that a
// stand-by knows the fleet when it takes over. Callers: pkg/controller.
package fleet
