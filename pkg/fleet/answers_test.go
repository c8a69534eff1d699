package fleet

import (
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/uplink"
	"github.com/carve-csi/carve/pkg/uplink/uplinktest"
	"github.com/carve-csi/carve/pkg/waittest"
)

const (
	// heldByAnAnswer is the memory that one call may take until its answer is decoded: the answer
	// and what the node sent after it, in gRPC's buffers, which may be half full.
	heldByAnAnswer = 2 * (64<<10 + sentAhead)
	// sentAhead equals answerWindow of package uplink.
	sentAhead = 64 << 10
)

type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(message any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*message.(*[]byte))}, nil
}

func (rawCodec) Unmarshal(mem.BufferSlice, any) error { return nil }

// flood answers each call with the longest allowed message, and then keeps sending.
type flood struct {
	answer, more []byte

	mu   sync.Mutex
	sent []int // bytes of more, by call
}

func (f *flood) serve(_ any, stream grpc.ServerStream) error {
	if method, _ := grpc.MethodFromServerStream(stream); method == lvmdv1.LVMD_Watch_FullMethodName {
		<-stream.Context().Done()
		return nil
	}
	if err := stream.RecvMsg(&[]byte{}); err != nil {
		return err
	}
	if err := stream.SendMsg(&f.answer); err != nil {
		return err
	}
	sent := 0
	for stream.SendMsg(&f.more) == nil {
		sent += len(f.more)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sent = append(f.sent, sent)
	return nil
}

func heap() int {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int(stats.HeapAlloc) //nolint:gosec // no test has so much
}

func TestTheLargestAnswersOfManyNodesTakeAStatedAmountOfMemory(t *testing.T) {
	const nodes, callsPerNode = 16, 16
	const calls = nodes * callsPerNode
	f := New(Options{Log: slog.New(slog.DiscardHandler)})
	f.answers = make(places, calls)
	decoding := &slowCodec{CodecV2: protoCodec, finish: make(chan struct{})}
	protoCodec = decoding
	t.Cleanup(func() { protoCodec = decoding.CodecV2 })
	net := must.Get(uplinktest.NewNetwork(t.TempDir(), f.Add))(t)
	t.Cleanup(func() { f.Close(); net.Close() })
	hostile := &flood{answer: make([]byte, maxAnswerBytes), more: make([]byte, 8<<10)}
	for i := range nodes {
		net.AttachServer(fmt.Sprint(i), grpc.NewServer(append(uplink.ServerOptions(),
			grpc.ForceServerCodecV2(rawCodec{}), grpc.UnknownServiceHandler(hostile.serve))...))
	}
	waittest.Until(t, "the nodes connect", func() bool { return f.Connected() == nodes })
	before := heap()
	var asking sync.WaitGroup
	for i := range calls {
		asking.Go(func() {
			if vol, err := f.GetVolumeByName(t.Context(), fmt.Sprint(i%nodes), "v"); err == nil {
				t.Errorf("no answer, but taken for one: %v", vol)
			}
		})
	}
	waittest.Until(t, "each call has all of its answer", func() bool {
		decoding.mu.Lock()
		defer decoding.mu.Unlock()
		return decoding.now == calls
	})
	if took := heap() - before; took > calls*heldByAnAnswer {
		t.Errorf("%d answers take %d KiB until they are decoded, want at most %d KiB", calls, took>>10, calls*heldByAnAnswer>>10)
	}
	close(decoding.finish)
	asking.Wait()
	f.Close()
	hostile.mu.Lock()
	defer hostile.mu.Unlock()
	for _, sent := range hostile.sent {
		// The node's own gRPC takes 64 KiB before it sends them.
		if sent > sentAhead+64<<10+len(hostile.more) {
			t.Errorf("%d KiB were sent after an answer that was not decoded", sent>>10)
		}
	}
}
