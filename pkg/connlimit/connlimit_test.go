package connlimit

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carve-csi/carve/pkg/logging/logtest"
	"github.com/carve-csi/carve/pkg/must"
)

func peer(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 1} }

// fill takes places until there are none, and returns why there are none.
func fill(l *Limiter, ip string) (places []*Place, why Reason) {
	for {
		p, reason := l.Begin(peer(ip), nil)
		if p == nil {
			return places, reason
		}
		places = append(places, p)
	}
}

func TestConnectionsAreCountedByAddressByNetworkAndInAll(t *testing.T) {
	l := Limiter{Total: 24, PerAddress: 4, PerNetwork: 10, Kept: 8}
	l.Remember(peer("2001:db8::9"))
	l.Remember(peer("10.0.0.9"))
	var all []*Place
	for _, step := range []struct {
		ip   string
		got  int
		full Reason
	}{
		{"10.0.0.1", 4, ReasonAddress},
		{"::ffff:10.0.0.1", 0, ReasonAddress}, // the same
		{"2001:db8::1", 4, ReasonAddress},
		{"2001:db8::2", 4, ReasonAddress},
		{"2001:db8::3", 2, ReasonNetwork},
		{"2001:db8::4", 0, ReasonNetwork},
		{"2001:db8::9", 4, ReasonAddress}, // known
		{"2001:db8:0:1::1", 2, ReasonTotal},
		{"10.0.0.2", 0, ReasonTotal},
		{"10.0.0.9", 4, ReasonAddress}, // known
	} {
		places, why := fill(&l, step.ip)
		if len(places) != step.got || why != step.full {
			t.Errorf("%s has %d places until %q, want %d until %q", step.ip, len(places), why, step.got, step.full)
		}
		all = append(all, places...)
	}
	l.Remember(peer("2001:db8::1")) // its places still end as those of an unknown address
	for _, p := range all {
		p.End()
		p.End()
	}
	if l.total != 0 || l.unknown != 0 || len(l.byAddress) != 0 || len(l.bySource) != 0 {
		t.Errorf("counted when all have ended: %d, %d, %v, %v", l.total, l.unknown, l.byAddress, l.bySource)
	}
}

// A source is an address, or a /64 of IPv6.
func TestWhereAllPlacesAreTakenTheyAreSharedAmongSources(t *testing.T) {
	l := Limiter{Total: 12, PerAddress: 8, PerNetwork: 8}
	evicted := map[string]int{}
	begin := func(ip string) (*Place, Reason) {
		return l.Begin(peer(ip), func() {
			evicted[ip]++
			if !l.mu.TryLock() {
				t.Fatal("evict is called with the lock held")
			}
			l.mu.Unlock()
		})
	}
	var first *Place
	for i, ip := range []string{"10.0.0.1", "2001:db8::1"} {
		for range 6 {
			if p, why := begin(ip); p == nil {
				t.Fatalf("%s is rejected: %s", ip, why)
			} else if i == 0 && first == nil {
				first = p
			}
		}
	}
	// Another address of a /64 that has its share takes a place in it.
	if p, why := begin("2001:db8::2"); p == nil || evicted["2001:db8::1"] != 1 {
		t.Errorf("rejected for %q, evicted are %v; want one of its neighbor", why, evicted)
	}
	for n := range 4 {
		if p, why := begin("10.0.0.2"); p == nil {
			t.Errorf("after %d: rejected for %q", n, why)
		}
	}
	if p, _ := begin("10.0.0.2"); p != nil {
		t.Error("it has more than its share")
	}
	if evicted["10.0.0.1"] != 2 || evicted["2001:db8::1"] != 3 || !first.Evicted() {
		t.Errorf("evicted are %v, the oldest: %t; want two and three", evicted, first.Evicted())
	}
	first.End()
	if l.total != 12 || l.unknown != 12 {
		t.Errorf("%d and %d are counted, want 12", l.total, l.unknown)
	}
}

func TestAFullNetworkIsSharedAmongItsAddresses(t *testing.T) {
	l := Limiter{Total: 100, PerAddress: 4, PerNetwork: 8}
	evicted := map[string]int{}
	begin := func(ip string) (*Place, Reason) { return l.Begin(peer(ip), func() { evicted[ip]++ }) }
	for _, ip := range []string{"2001:db8::1", "2001:db8::2"} {
		for range 4 {
			begin(ip)
		}
	}
	for n := range 3 {
		if p, why := begin("2001:db8::3"); (p != nil) != (n < 2) || p == nil && why != ReasonNetwork {
			t.Errorf("connection %d has a place: %t, rejected for %q; want two", n, p != nil, why)
		}
	}
	if evicted["2001:db8::1"]+evicted["2001:db8::2"] != 2 || l.total != 8 {
		t.Errorf("evicted are %v of %d, want two of eight", evicted, l.total)
	}
}

func TestExpectedAddressesAreKnownWithoutALink(t *testing.T) {
	agent := netip.MustParseAddr("2001:db8::1")
	l := Limiter{Total: 3, PerAddress: 2, PerNetwork: 1, Kept: 1, Known: func(a netip.Addr) bool { return a == agent }}
	for _, step := range []struct {
		ip   string
		got  int
		full Reason
	}{
		{"2001:db8::2", 1, ReasonNetwork},
		{"10.0.0.1", 1, ReasonTotal},
		{"2001:db8::1", 1, ReasonTotal}, // of those that are kept
	} {
		if places, why := fill(&l, step.ip); len(places) != step.got || why != step.full {
			t.Errorf("%s has %d places until %q, want %d until %q", step.ip, len(places), why, step.got, step.full)
		}
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

func TestAnAddressIsKnownForADay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := Limiter{Total: 1, PerAddress: 1, PerNetwork: 1, Kept: 1}
		l.Remember(peer("10.0.0.1"))
		time.Sleep(rememberFor)
		p, why := l.Begin(peer("10.0.0.1"), nil)
		if p == nil {
			t.Fatalf("rejected after a day: %s", why)
		}
		p.End()
		time.Sleep(time.Second)
		if p, _ := l.Begin(peer("10.0.0.1"), nil); p != nil {
			t.Error("known after more than a day")
		}
	})
}

func TestKnownAddressesAreBoundedAndTheOldestIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := Limiter{}
		for i := range maxRemembered + 1 {
			l.Remember(peer(fmt.Sprintf("10.0.%d.%d", i/256, i%256)))
			time.Sleep(time.Millisecond)
		}
		if _, ok := l.remembered[addressOf(peer("10.0.0.0"))]; ok || len(l.remembered) != maxRemembered {
			t.Errorf("%d addresses are known, the oldest among them: %t", len(l.remembered), ok)
		}
	})
}

// serve echoes on a limited listener.
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
				_ = c.Close() // closing twice counts once
			}()
		}
	}()
	return inner.Addr().String()
}

// served is servedFrom an address of the system's choice.
func served(t *testing.T, address string) (net.Conn, bool) { return servedFrom(t, "", address) }

// servedFrom reports whether a new connection from an address is served, and keeps it open until the test
// ends or closes it.
func servedFrom(t *testing.T, from, address string) (net.Conn, bool) {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c := must.Get(dialer.Dial("tcp", address))(t)
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

func TestAnAddressWithFewConnectionsIsServedBesideOneWithMany(t *testing.T) {
	const total = 8
	address := serve(t, &Limiter{Total: total, PerAddress: total, PerNetwork: total})
	var first net.Conn
	for n := range total {
		c, ok := servedFrom(t, "127.0.0.1", address)
		if !ok {
			t.Fatalf("connection %d is not served", n)
		}
		if n == 0 {
			first = c
		}
	}
	if _, ok := servedFrom(t, "127.0.0.2", address); !ok {
		t.Error("another address is not served")
	}
	if _, err := first.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the oldest connection of the address with all places: want it closed, got %v", err)
	}
}
