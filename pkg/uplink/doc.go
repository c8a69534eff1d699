// Package uplink is the authenticated connection between a node's lvmd and the controller. The node
// dials and proves its identity; the controller then calls it over that connection.
//
// It owns the TLS handshake, the Hello/Welcome exchange of api/lvmd/v1/uplink.proto, reconnection,
// replacement of a connection before its credential expires, and the gRPC transport over the
// connection on both ends. It leaves the check of tokens to the Server's Authenticate function, and
// never calls lvmd by itself.
//
// Vocabulary:
//
//	link     the node's side of one controller address: at most one
//	         connection that is current, and a loop that renews it
//	session  the controller's side of one accepted connection; it implements
//	         grpc.ClientConnInterface
//	retire   reject new calls, let those in flight finish, then close
//
// Invariants: a node sends nothing to a peer whose certificate does not chain to the CA file; no
// call reaches a node whose token was not accepted for that node's name; a session never outlives
// its credential by more than ExpiryGrace; TLS is always 1.3.
//
// Callers: cmd/lvmd through RunClient, pkg/controller through Server; pkg/fleet calls over the
// sessions.
package uplink

import "time"

const (
	// MaxFrameBytes limits the encoded Hello and Welcome. It is part of the protocol
	// (uplink.proto).
	MaxFrameBytes = 64 << 10

	// HandshakeTimeout limits the time from the TCP connection to the Welcome, on either end. It is
	// generous: a node that has just started fifty containers is slow, not broken.
	HandshakeTimeout = 20 * time.Second

	// ExpiryGrace is how long the controller keeps a session past Grant.ReauthenticateBy, to
	// tolerate small differences between clocks.
	ExpiryGrace = time.Minute

	// DeadPeerTimeout is how long the peer's kernel may be silent: a machine that stops without
	// closing its connections is detected within about this time. A busy peer is safe, because its
	// kernel answers.
	DeadPeerTimeout = 20 * time.Second

	// KeepaliveInterval is the time between gRPC pings on both ends. Within this and
	// KeepaliveTimeout, they detect a process that hangs while its kernel answers. They are all
	// that an idle controller does for each node.
	KeepaliveInterval = 20 * time.Second
	// KeepaliveTimeout is how long a ping may stay unanswered. It is long because a busy process is
	// slow to answer, and a false alarm cancels the node's work.
	KeepaliveTimeout = 40 * time.Second
	// minPing is the minimum interval of the peer's pings. Earlier versions ping every ten seconds.
	minPing = 5 * time.Second
)
