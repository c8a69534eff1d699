// Package trust establishes the mutual trust between nodes and the controller.
//
// It owns the uplink's certificate authority (created by the controller, kept in a Secret,
// published in a ConfigMap, rotated with an overlap), the serving certificate that each replica
// creates in memory, the check of nodes' tokens, the addresses that agents dial from, and the token
// that protects the metrics. It changes nothing else in the API.
//
// Vocabulary:
//
//	signer    the CA certificate and key that sign serving certificates now
//	next      a CA that is published already and signs later
//	previous  the CA that signed before; published until no replica serves with it
//	bundle    all of these certificates, which nodes verify the controller with
//
// Invariants: a CA is published for at least PublishOverlap before it signs anything; every replica
// derives the same bundle from the same Secret; keys are only written to the Secret.
//
// Any replica may create or rotate the stored objects: every write either creates an absent object
// or requires the version that was read. Caller: pkg/controller.
package trust
