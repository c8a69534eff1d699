// Package leadership numbers the controller's leaders. Calls carry the number as gRPC
// metadata, and lvmd rejects calls with an older number than it has seen.
package leadership

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/grpc/metadata"
)

// Key is the metadata's key.
const Key = "carve-leadership"

// Leadership is one term of a cluster's controller.
type Leadership struct {
	// Cluster is the id of the installation.
	Cluster string `json:"cluster"`
	// Lease is the creation time of the Lease in Unix seconds: a recreated Lease restarts
	// Transitions.
	Lease int64 `json:"lease"`
	// Transitions is the Lease's leaseTransitions.
	Transitions int64 `json:"transitions"`
}

// Before reports whether l precedes other, for the same cluster.
func (l Leadership) Before(other Leadership) bool {
	if l.Lease != other.Lease {
		return l.Lease < other.Lease
	}
	return l.Transitions < other.Transitions
}

// String returns LEASE.TRANSITIONS/CLUSTER, as sent.
func (l Leadership) String() string {
	return fmt.Sprintf("%d.%d/%s", l.Lease, l.Transitions, l.Cluster)
}

// Parse reads the format of String.
func Parse(s string) (Leadership, error) {
	number, cluster, _ := strings.Cut(s, "/")
	lease, transitions, _ := strings.Cut(number, ".")
	l := Leadership{Cluster: cluster}
	var errLease, errTransitions error
	l.Lease, errLease = strconv.ParseInt(lease, 10, 64)
	l.Transitions, errTransitions = strconv.ParseInt(transitions, 10, 64)
	if errLease != nil || errTransitions != nil || cluster == "" {
		return Leadership{}, fmt.Errorf("%s: %q is not LEASE.TRANSITIONS/CLUSTER, two numbers and a name", Key, s)
	}
	return l, nil
}

// With adds l to the outgoing calls of a context.
func With(ctx context.Context, l Leadership) context.Context {
	return metadata.AppendToOutgoingContext(ctx, Key, l.String())
}

// During returns ctx with the number and the end of a leader's context leading, for callers
// with an independent ctx. The returned function releases its resources.
func During(ctx, leading context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(leading, cancel)
	if leading.Err() != nil {
		cancel() // AfterFunc is asynchronous: the call might start first
	}
	if sent, ok := metadata.FromOutgoingContext(leading); ok {
		for _, value := range sent.Get(Key) {
			ctx = metadata.AppendToOutgoingContext(ctx, Key, value)
		}
	}
	return ctx, func() { stop(); cancel() }
}

// Of returns an incoming call's leadership, or false if it has none.
func Of(ctx context.Context) (Leadership, bool, error) {
	values := metadata.ValueFromIncomingContext(ctx, Key)
	if len(values) == 0 {
		return Leadership{}, false, nil
	}
	l, err := Parse(values[len(values)-1])
	return l, err == nil, err
}
