// Package pmem proves Carve on a Kubernetes node with persistent memory. Only a virtual
// machine has that, so its one node is apart from the cluster of the other tests.
package pmem
