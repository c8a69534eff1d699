// Package netns owns the named network namespace of a test cluster:
// the control plane's processes and the virtual machines of the nodes are started
// in it, joined by one bridge that has an address of its own, and nothing of them
// can be reached, or reaches anything, outside.
//
// A namespace is named under /run/netns, as by ip-netns(8), so `ip netns exec NAME`
// works on it. It outlives the process that made it and goes away by Remove, which
// first ends every process in it: membership in the namespace, not a list of process
// ids, says what belongs to the cluster, so what a crashed run left is found too.
//
// The package never touches the network of the namespace that its caller is in. It
// needs root. All functions may be called concurrently, save that Create and Remove
// of one name must not overlap.
package netns
