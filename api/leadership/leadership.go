// Package leadership is the number by which lvmd distinguishes the controller that leads
// from one that led before: the calls of a leader carry it, as gRPC metadata.
//
// Callers: pkg/controller, which sends it; pkg/lvmd, which refuses what comes with an
// older one than it has seen.
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

// Leadership is one time of leading a cluster's controller.
type Leadership struct {
	// Cluster is the id of the installation.
	Cluster string `json:"cluster"`
	// Lease is when the Lease was created, in seconds since 1970: one that is made
	// again counts from the beginning.
	Lease int64 `json:"lease"`
	// Transitions is how often the Lease went over to another holder (leaseTransitions).
	Transitions int64 `json:"transitions"`
}

// Before reports whether l is an earlier time of leading the same cluster than other.
func (l Leadership) Before(other Leadership) bool {
	if l.Lease != other.Lease {
		return l.Lease < other.Lease
	}
	return l.Transitions < other.Transitions
}

// String is how l is sent: LEASE.TRANSITIONS/CLUSTER.
func (l Leadership) String() string {
	return fmt.Sprintf("%d.%d/%s", l.Lease, l.Transitions, l.Cluster)
}

// Parse reads what String writes.
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

// With has the calls that are made with the context carry l.
func With(ctx context.Context, l Leadership) context.Context {
	return metadata.AppendToOutgoingContext(ctx, Key, l.String())
}

// During is ctx for a call of a leader whose own context is leading: the call carries
// the leader's number, and ends when leading does. It is for callers whose context
// comes from elsewhere. The returned function frees what During holds.
func During(ctx, leading context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(leading, cancel)
	if leading.Err() != nil {
		cancel() // AfterFunc does it a moment later, when the call may be under way
	}
	if sent, ok := metadata.FromOutgoingContext(leading); ok {
		for _, value := range sent.Get(Key) {
			ctx = metadata.AppendToOutgoingContext(ctx, Key, value)
		}
	}
	return ctx, func() { stop(); cancel() }
}

// Of returns the leadership that a call carries, and false where it carries none.
func Of(ctx context.Context) (Leadership, bool, error) {
	values := metadata.ValueFromIncomingContext(ctx, Key)
	if len(values) == 0 {
		return Leadership{}, false, nil
	}
	l, err := Parse(values[len(values)-1])
	return l, err == nil, err
}
