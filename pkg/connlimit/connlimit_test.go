package connlimit

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/carve-csi/carve/pkg/must"
)

func TestConnectionsAreCountedByWhatOneMachineHas(t *testing.T) {
	of := func(ip string) any { return Address(&net.TCPAddr{IP: net.ParseIP(ip), Port: 1}) }
	for _, same := range [][2]string{{"10.0.0.1", "::ffff:10.0.0.1"}, {"2001:db8::1", "2001:db8::ffff:1"}} {
		if of(same[0]) != of(same[1]) {
			t.Errorf("%s and %s are counted apart", same[0], same[1])
		}
	}
	for _, other := range [][2]string{{"10.0.0.1", "10.0.0.2"}, {"2001:db8::1", "2001:db8:0:1::1"}} {
		if of(other[0]) == of(other[1]) {
			t.Errorf("%s and %s are counted together", other[0], other[1])
		}
	}
	l := Limiter{Total: 100, PerAddress: 32}
	a, b := Address(&net.TCPAddr{IP: net.IPv4(10, 0, 0, 1)}), Address(&net.TCPAddr{IP: net.IPv4(10, 0, 0, 2)})
	for range l.PerAddress {
		if !l.Begin(a) {
			t.Fatal("an address has fewer connections than it may have")
		}
	}
	if l.Begin(a) || !l.Begin(b) {
		t.Error("an address has more connections than it may have, or takes those of another")
	}
	for range l.PerAddress {
		l.End(a)
	}
	l.End(b)
	if l.total != 0 || len(l.byAddress) != 0 {
		t.Errorf("counted when all have ended: %d, %v", l.total, l.byAddress)
	}
}

// serve echoes on a limited listener.
func serve(t *testing.T, l *Limiter) (address string) {
	t.Helper()
	inner := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = inner.Close() })
	limited := l.Listener(inner)
	go func() {
		for {
			c, err := limited.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
				_ = c.Close() // closing twice counts once
			}()
		}
	}()
	return inner.Addr().String()
}

// served reports whether a new connection is served, and keeps it open until the test
// ends or closes it.
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
	address := serve(t, &Limiter{Total: 10, PerAddress: 2})
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
