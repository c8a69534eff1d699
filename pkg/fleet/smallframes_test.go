package fleet

import (
	"encoding/binary"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/uplink"
	"github.com/carve-csi/carve/pkg/uplink/uplinktest"
	"github.com/carve-csi/carve/pkg/waittest"
)

// heldOfASession equals maxHeld of package uplink.
const heldOfASession = 24 << 20

// byteServer sends each byte of its answers in a frame of its own.
type byteServer struct{ http.Server }

// newByteServer answers the methods for which answers returns true, and calls onSend from time to
// time.
func newByteServer(length uint32, answers func(method string) bool, onSend func()) *byteServer {
	s := &byteServer{}
	s.Protocols = &http.Protocols{}
	s.Protocols.SetUnencryptedHTTP2(true)
	s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !answers(r.URL.Path) {
			<-r.Context().Done()
			return
		}
		w.Header().Set("Content-Type", "application/grpc")
		flush := http.NewResponseController(w).Flush
		if _, err := w.Write(binary.BigEndian.AppendUint32([]byte{0}, length)); err != nil || flush() != nil {
			return
		}
		for i := range length {
			if i%(1<<12) == 0 {
				onSend()
			}
			if _, err := w.Write([]byte{0}); err != nil || flush() != nil {
				return
			}
		}
	})
	return s
}

func (s *byteServer) Stop() { _ = s.Close() }

// gRPC keeps each frame separate until its message is whole.
func TestANodeThatSendsSingleBytesTakesAStatedAmountOfMemoryAndLosesItsUplink(t *testing.T) {
	for name, test := range map[string]struct {
		length uint32
		calls  int
	}{
		"in its report":              {maxReportBytes, 0},
		"in the answers to 64 calls": {maxAnswerBytes, 64},
	} {
		t.Run(name, func(t *testing.T) {
			f := New(Options{Log: slog.New(slog.DiscardHandler)})
			var sessions atomic.Int32
			net := must.Get(uplinktest.NewNetwork(t.TempDir(), func(s *uplink.Session) {
				sessions.Add(1)
				f.Add(s)
			}))(t)
			t.Cleanup(func() { f.Close(); net.Close() })
			before := heap()
			var most atomic.Int64
			net.AttachServer("n", newByteServer(test.length, func(method string) bool {
				return sessions.Load() < 2 && (method == lvmdv1.LVMD_Watch_FullMethodName) == (test.calls == 0)
			}, func() { most.Store(max(most.Load(), int64(heap()-before))) }))
			waittest.Until(t, "the node connects", func() bool { return f.Connected() == 1 })
			var asking sync.WaitGroup
			for range test.calls {
				asking.Go(func() {
					if vol, err := f.GetVolumeByName(t.Context(), "n", "v"); err == nil {
						t.Errorf("no answer, but taken for one: %v", vol)
					}
				})
			}
			waittest.Until(t, "the node connects again", func() bool { return sessions.Load() > 1 || most.Load() > 2*heldOfASession })
			f.Close()
			asking.Wait()
			if n := most.Load(); n > heldOfASession {
				t.Errorf("what the node sent takes %d KiB until it is decoded, want at most %d KiB", n>>10, heldOfASession>>10)
			} else {
				t.Logf("%d KiB at most", n>>10)
			}
		})
	}
}
