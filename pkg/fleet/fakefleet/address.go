package main

import (
	"hash/fnv"
	"net/netip"
)

// addressOf returns the loopback address that a node dials from, by hash and so hardly ever another
// node's. It avoids 127.0.0.0/16, which the controller's replicas use.
func addressOf(node string) netip.Addr {
	sum := fnv.New32a()
	sum.Write([]byte(node))
	hash := sum.Sum32()
	return netip.AddrFrom4([4]byte{127, 1 + byte(hash>>16)%254, byte(hash >> 8), byte(hash)})
}
