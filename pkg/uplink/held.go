package uplink

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/stats"
)

var errHeldTooMuch = errors.New("the node sent more than is kept until it is decoded")

const (
	// maxHeld limits the undecoded bytes that a session keeps for its node: the largest report, 16
	// MiB, and answers.
	maxHeld = 24 << 20
	// readCost is gRPC's overhead in bytes for each of the two reads of a frame. gRPC keeps each
	// frame separate until the message is whole: a frame of a single byte takes about a hundred.
	readCost = 48
	// frameCredit covers the frames around a message whose content is not kept.
	frameCredit = 4 * readCost
	// heldDecay is subtracted every second: for pings and the leftovers of cancelled calls.
	heldDecay = 1 << 10
)

// held counts the memory that a node's messages take until gRPC has decoded them. It sees each read
// of the connection, and learns of decoded messages as a stats.Handler.
type held struct {
	mu       sync.Mutex
	bytes    int
	since    time.Time // when heldDecay was last applied
	exceeded bool
}

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

// release discounts a decoded message of n bytes. It leaves the overhead of frames that the node
// cut small.
func (h *held) release(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.bytes = max(0, h.bytes-n-n/8-frameCredit)
}

func (h *held) tooMuch() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.exceeded
}

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

func (h *held) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

func (h *held) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

func (h *held) HandleConn(context.Context, stats.ConnStats) {}

// heldConn fails once its undecoded data exceeds maxHeld.
type heldConn struct {
	net.Conn
	held *held
}

func (c *heldConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if !c.held.add(n) {
		return 0, errHeldTooMuch
	}
	return n, err
}
