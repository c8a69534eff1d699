// Package trust is how nodes and the controller come to trust each other.
//
// It owns the uplink's certificate authority (made by the controller itself,
// kept in a Secret, published in a ConfigMap, rotated with an overlap), the
// serving certificate that each replica makes in memory, the decision whether
// a node's token is good, the addresses that agents dial from, and the token
// that guards the metrics. It never touches anything else in the API.
//
// Vocabulary:
//
//	signer    the CA certificate and key that sign serving certificates now
//	next      a CA that is published already and signs later
//	previous  the CA that signed before; published until no replica serves with it
//	bundle    all of these certificates, what nodes verify the controller by
//
// Invariants: a CA is published for at least PublishOverlap before it signs
// anything; every replica derives the same bundle from the same Secret; keys
// are written nowhere but to the Secret.
//
// Any replica may make or rotate what is stored here: every write is either
// "create if absent" or guarded by the version that was read. Caller:
// pkg/controller.
package trust
