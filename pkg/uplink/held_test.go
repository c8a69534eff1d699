package uplink

import (
	"strings"
	"testing"

	"github.com/carve-csi/carve/pkg/must"
)

func TestWhatWasDecodedCountsAgainstASessionNoLonger(t *testing.T) {
	ca := newTestCA(t, "ca")
	ctrl := startController(t, ca, "127.0.0.1:0")
	startNode(t, ca, ctrl.addr, nil)
	s := ctrl.session(t)
	for _, test := range []struct{ calls, bytes int }{{2000, 10}, {2 * maxHeld >> 20, 1 << 20}} {
		name := strings.Repeat("x", test.bytes)
		for range test.calls {
			must.Succeed(t, call(t, s, name))
		}
		s.held.mu.Lock()
		if s.held.bytes > 64<<10 {
			t.Errorf("after %d answers of %d bytes, %d bytes count against the session", test.calls, test.bytes, s.held.bytes)
		}
		s.held.mu.Unlock()
	}
}
