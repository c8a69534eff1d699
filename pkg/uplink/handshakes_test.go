package uplink

import (
	"net"
	"testing"
)

func TestHandshakesAreCountedByWhatOneMachineHas(t *testing.T) {
	of := func(ip string) any { return addressOf(&net.TCPAddr{IP: net.ParseIP(ip), Port: 1}) }
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
	var h handshakes
	a, b := addressOf(&net.TCPAddr{IP: net.IPv4(10, 0, 0, 1)}), addressOf(&net.TCPAddr{IP: net.IPv4(10, 0, 0, 2)})
	for range maxHandshakesPerAddress {
		if !h.begin(a) {
			t.Fatal("an address has fewer handshakes than it may have")
		}
	}
	if h.begin(a) || !h.begin(b) {
		t.Error("an address has more handshakes than it may have, or takes those of another")
	}
	for range maxHandshakesPerAddress {
		h.end(a)
	}
	h.end(b)
	if h.total != 0 || len(h.byAddress) != 0 {
		t.Errorf("counted when all have ended: %d, %v", h.total, h.byAddress)
	}
}
