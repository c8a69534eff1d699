package main

import (
	"testing"

	"github.com/carve-csi/carve/docs/pagetest"
)

func TestReferenceOfFlagsIsCurrent(t *testing.T) {
	pagetest.Current(t, "../../docs/reference/carve-controller.md", pagetest.Commands("carve-controller",
		"Provisions volumes and publishes the capacity of nodes.",
		newCommand()))
}
