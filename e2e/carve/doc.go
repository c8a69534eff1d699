// Package carve does with Carve, on a cluster of the harness, what its users
// do: installs it from deploy/, applies manifests, waits for Pods, reads the
// published capacity, looks at the volumes on a node. The demo, the tests and
// the benchmarks share it.
package carve
