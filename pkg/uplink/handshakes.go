package uplink

import (
	"net"
	"net/netip"
	"sync"
)

const (
	// maxHandshakes bounds the peers that are connected and not yet accepted, and
	// maxHandshakesPerAddress those of one address: any Pod can connect, and none may
	// take what all nodes need. Nodes behind one address, as of a gateway, share it;
	// those that are turned down dial again.
	maxHandshakes           = 1024
	maxHandshakesPerAddress = 32
)

// handshakes counts the peers that are connected and not yet accepted. Its zero value
// counts none.
type handshakes struct {
	mu        sync.Mutex
	total     int
	byAddress map[netip.Prefix]int
}

// begin counts a handshake of that address, and reports false when there are too many.
func (h *handshakes) begin(address netip.Prefix) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.total >= maxHandshakes || h.byAddress[address] >= maxHandshakesPerAddress {
		return false
	}
	if h.byAddress == nil {
		h.byAddress = map[netip.Prefix]int{}
	}
	h.total++
	h.byAddress[address]++
	return true
}

// end counts it no more.
func (h *handshakes) end(address netip.Prefix) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.total--
	if h.byAddress[address]--; h.byAddress[address] == 0 {
		delete(h.byAddress, address)
	}
}

// addressOf is what a peer's handshakes are counted by: its IPv4 address, or the first
// 64 bits of its IPv6 address, of which one machine may use all the rest. Peers
// without an address, as in tests, are counted together.
func addressOf(peer net.Addr) netip.Prefix {
	tcp, ok := peer.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	address := tcp.AddrPort().Addr().Unmap().WithZone("")
	bits := address.BitLen()
	if address.Is6() {
		bits = 64
	}
	prefix, err := address.Prefix(bits)
	if err != nil {
		return netip.Prefix{}
	}
	return prefix
}
