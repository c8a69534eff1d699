package uplink

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/stats"
)

// errHeldTooMuch ends a session whose node sent more than is kept for it.
var errHeldTooMuch = errors.New("the node sent more than is kept until it is decoded")

const (
	// maxHeld bounds what a session keeps of what its node sent until it is decoded: the largest report,
	// 16 MiB, and answers.
	maxHeld = 24 << 20
	// readCost is what gRPC takes for a frame beside what is in it, for each of the two reads that it is
	// read with. It keeps each frame apart until the message is whole: for one of a single byte, it takes
	// about a hundred.
	readCost = 48
	// frameCredit is for the frames that come with a message and have nothing that is kept.
	frameCredit = 4 * readCost
	// heldDecay is forgotten in each second: pings, and what was left of calls that were given up.
	heldDecay = 1 << 10
)

// held counts the memory that a node's messages take until they are decoded. It learns from gRPC
// what was decoded, as stats.Handler, and counts each read of the connection by itself.
type held struct {
	mu       sync.Mutex
	bytes    int
	since    time.Time // when heldDecay was last applied
	exceeded bool
}

// add notes a read of n bytes, and reports whether the session may go on.
func (h *held) add(n int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if left := time.Since(h.since); left >= time.Second {
		h.bytes = max(0, h.bytes-int(left.Seconds()*heldDecay))
		h.since = time.Now()
	}
	h.bytes += n + readCost
	h.exceeded = h.exceeded || h.bytes > maxHeld
	return !h.exceeded
}

// release notes that n bytes are kept no longer. The reads of frames that were cut small are not
// released with them.
func (h *held) release(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.bytes = max(0, h.bytes-n-n/8-frameCredit)
}

// tooMuch reports whether the node sent more than is kept.
func (h *held) tooMuch() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.exceeded
}

// HandleRPC implements stats.Handler.
func (h *held) HandleRPC(_ context.Context, event stats.RPCStats) {
	switch event := event.(type) {
	case *stats.InHeader:
		h.release(event.WireLength)
	case *stats.InTrailer:
		h.release(event.WireLength)
	case *stats.InPayload:
		h.release(event.WireLength)
	}
}

// TagRPC implements stats.Handler.
func (h *held) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// TagConn implements stats.Handler.
func (h *held) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (h *held) HandleConn(context.Context, stats.ConnStats) {}

// heldConn is a connection of which only so much is read ahead of what is decoded.
type heldConn struct {
	net.Conn
	held *held
}

// Read implements net.Conn.
func (c *heldConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if !c.held.add(n) {
		return 0, errHeldTooMuch
	}
	return n, err
}
