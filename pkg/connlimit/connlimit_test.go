package connlimit

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carve-csi/carve/pkg/logging/logtest"
	"github.com/carve-csi/carve/pkg/must"
)

func peer(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 1} }

// fill takes all places, and returns the reason of the first rejection.
func fill(l *Limiter, ip string) (ends []func(), why Reason) {
	for {
		end, reason := l.Begin(peer(ip))
		if end == nil {
			return ends, reason
		}
		ends = append(ends, end)
	}
}

func TestConnectionsAreCountedByAddressByNetworkAndInAll(t *testing.T) {
	known := []netip.Addr{netip.MustParseAddr("2001:db8::9"), netip.MustParseAddr("10.0.0.9")}
	l := Limiter{Total: 24, PerAddress: 4, PerNetwork: 10, Kept: 8, Known: func(a netip.Addr) bool { return slices.Contains(known, a) }}
	var all []func()
	for _, step := range []struct {
		ip   string
		got  int
		full Reason
	}{
		{"10.0.0.1", 4, ReasonAddress},
		{"::ffff:10.0.0.1", 0, ReasonAddress}, // the same address
		{"2001:db8::1", 4, ReasonAddress},
		{"2001:db8::2", 4, ReasonAddress},
		{"2001:db8::3", 2, ReasonNetwork},
		{"2001:db8::4", 0, ReasonNetwork},
		{"2001:db8::9", 4, ReasonAddress}, // known
		{"2001:db8:0:1::1", 2, ReasonTotal},
		{"10.0.0.2", 0, ReasonTotal},
		{"10.0.0.9", 4, ReasonAddress}, // known
	} {
		ends, why := fill(&l, step.ip)
		if len(ends) != step.got || why != step.full {
			t.Errorf("%s has %d places until %q, want %d until %q", step.ip, len(ends), why, step.got, step.full)
		}
		all = append(all, ends...)
	}
	known = append(known, netip.MustParseAddr("2001:db8::1")) // its places still end as those of an unknown address
	for _, end := range all {
		end()
		end()
	}
	if l.total != 0 || l.unknown != 0 || len(l.by) != 0 {
		t.Errorf("counted when all have ended: %d, %d, %v", l.total, l.unknown, l.by)
	}
}

func TestRejectionsAreLoggedOfEachReasonUpToARate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var records logtest.Recorder
		l := Log{Logger: records.Logger(), Message: "refused"}
		logged := func(reason string) int {
			return len(records.Find(func(r logtest.Record) bool { return r.Message == "refused" && r.Attributes["reason"] == reason }))
		}
		for range 1000 {
			l.Reject(peer("10.0.0.1"), "address", nil)
		}
		l.Reject(peer("10.0.0.2"), "total", errors.New("x"))
		if n, other := logged("address"), logged("total"); n != 100 || other != 1 {
			t.Errorf("%d and %d are logged, want 100 and 1", n, other)
		}
		time.Sleep(time.Second)
		l.Reject(peer("10.0.0.3"), "address", nil)
		last := records.Find(func(r logtest.Record) bool { return r.Attributes["remote"] == "10.0.0.3:1" })
		if len(last) != 1 || fmt.Sprint(last[0].Attributes["others"]) != "900" {
			t.Errorf("a second later: %v, want one that says that 900 others were not logged", last)
		}
	})
}

func serve(t *testing.T, l *Limiter) (address string) {
	t.Helper()
	inner := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = inner.Close() })
	limited := l.Listener(inner, func(net.Addr, Reason) {})
	go func() {
		for {
			c, err := limited.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
				_ = c.Close() // a second Close does not count
			}()
		}
	}()
	return inner.Addr().String()
}

// served reports whether a new connection is served. The connection stays open until the test ends
// or closes it.
func served(t *testing.T, address string) (net.Conn, bool) {
	t.Helper()
	c := must.Get(net.Dial("tcp", address))(t)
	t.Cleanup(func() { _ = c.Close() })
	must.Succeed(t, c.SetDeadline(time.Now().Add(time.Minute)))
	b := make([]byte, 1)
	if _, err := c.Write([]byte("x")); err != nil {
		return c, false
	}
	_, err := c.Read(b)
	var netErr net.Error
	if errors.As(err, &netErr) && netErr.Timeout() {
		t.Fatal("a connection is neither served nor closed")
	}
	return c, err == nil
}

func TestAConnectionBeyondTheLimitIsClosedAndOneThatEndsAdmitsAnother(t *testing.T) {
	address := serve(t, &Limiter{Total: 10, PerAddress: 2, PerNetwork: 2})
	first, ok := served(t, address)
	if _, again := served(t, address); !ok || !again {
		t.Fatal("a connection within the limit is not served")
	}
	if _, third := served(t, address); third {
		t.Error("a connection beyond the limit is served")
	}
	_ = first.Close()
	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		if _, next := served(t, address); next {
			break
		}
		if time.Since(begin) > time.Minute {
			t.Fatal("no connection is served after one has ended")
		}
	}
	if _, third := served(t, address); third {
		t.Error("a connection that was closed twice admits two")
	}
}
