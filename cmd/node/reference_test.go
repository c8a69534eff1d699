package main

import (
	"testing"

	"github.com/carve-csi/carve/docs/pagetest"
)

func TestReferenceOfFlagsIsCurrent(t *testing.T) {
	pagetest.Current(t, "../../docs/reference/carve-node.md", pagetest.Commands("carve-node",
		"The CSI node plugin: it checks and mounts the volumes that lvmd makes.",
		command(system{})))
}
