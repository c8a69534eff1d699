package main

import (
	"testing"

	"github.com/carve-csi/carve/docs/pagetest"
)

func TestReferenceOfFlagsIsCurrent(t *testing.T) {
	pagetest.Current(t, "../../docs/reference/carve-lvmd.md", pagetest.Commands("carve-lvmd",
		"Owns the volume groups of a node: it serves `api/lvmd/v1` on a unix socket and, over the uplink, to the controller. The subcommands ask a running lvmd. In a cluster, run them in the container: `kubectl -n carve-system exec POD -c lvmd -- carve-lvmd volumes`.",
		command(func() error { return nil })))
}
