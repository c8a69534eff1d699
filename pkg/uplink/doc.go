// Package uplink is the authenticated connection between a node's lvmd and the
// controller: the node dials, proves itself, and is then called over the very
// connection it made.
//
// It owns the TLS handshake, the Hello/Welcome exchange of
// api/lvmd/v1/uplink.proto, reconnection, replacement of a connection before
// its credential runs out, and the turning of an accepted connection into a
// gRPC transport on both ends. It never decides whether a token is good (the
// Server asks its Authenticate function) and never calls lvmd by itself.
//
// Vocabulary:
//
//	link     the node's side of one controller address: at most one
//	         connection that is current, and a loop that renews it
//	session  the controller's side of one accepted connection; it implements
//	         grpc.ClientConnInterface
//	retire   take no new calls, let those in flight finish, then close
//
// Invariants: nothing is sent to a peer whose certificate does not chain to
// the CA file; no call reaches a node whose token was not accepted for that
// node's name; a session never outlives its credential by more than
// ExpiryGrace; TLS is 1.3 or there is no connection.
//
// Callers: cmd/lvmd through RunClient, pkg/controller through Server; pkg/fleet calls over
// the sessions.
package uplink

import "time"

const (
	// MaxFrameBytes bounds the encoded Hello and Welcome. It is part of the
	// protocol (uplink.proto).
	MaxFrameBytes = 64 << 10

	// HandshakeTimeout bounds everything between a TCP connection and the
	// Welcome, on either end. It is generous: a node that has just started
	// fifty containers is slow, not broken.
	HandshakeTimeout = 20 * time.Second

	// ExpiryGrace is how long past Grant.ReauthenticateBy the controller lets a
	// session live, so that clocks that differ a little cut nothing.
	ExpiryGrace = time.Minute

	// DeadPeerTimeout is how long the kernel of the other end may be silent: a
	// machine that stopped without closing its connections is noticed within about this. It costs
	// a live peer nothing however busy it is, for its kernel answers.
	DeadPeerTimeout = 20 * time.Second

	// KeepaliveInterval and KeepaliveTimeout are the gRPC pings on both ends: a
	// process that hangs while its kernel answers is noticed within their sum.
	// The timeout is long because a busy process is slow to answer, and a mistake
	// cancels what the node is doing. The pings are all that an idle controller does for
	// each node.
	KeepaliveInterval = 20 * time.Second
	// KeepaliveTimeout is how long a ping may stay unanswered.
	KeepaliveTimeout = 40 * time.Second
	// minPing is how often the other end may ping. Earlier versions do every ten seconds.
	minPing = 5 * time.Second
)
