package main

import (
	"hash/fnv"
	"net/netip"
)

// addressOf is where a node dials from: an address of the loopback device that is hardly another's, and none of
// 127.0.0.0/16, in which the controller's replicas are.
func addressOf(node string) netip.Addr {
	sum := fnv.New32a()
	sum.Write([]byte(node))
	hash := sum.Sum32()
	return netip.AddrFrom4([4]byte{127, 1 + byte(hash>>16)%254, byte(hash >> 8), byte(hash)})
}
