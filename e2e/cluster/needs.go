package cluster

import (
	"github.com/carve-csi/carve/e2e/netns"
	"github.com/carve-csi/carve/e2e/preflight"
)

// needs is what bringing the cluster up needs of this machine. Once its namespace is
// there, what needs the memory may run already.
func (c *Cluster) needs() preflight.Needs {
	needs := preflight.Cluster(len(c.nodes))
	if _, err := netns.Open(c.namespaceName()); err == nil {
		needs.MemoryMiB = 0
	}
	return needs
}
