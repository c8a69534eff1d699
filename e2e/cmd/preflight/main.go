// Command preflight checks that this machine can bring up a cluster of virtual
// machines, and says what is missing. It is built in a moment.
package main

import (
	"fmt"
	"os"

	"github.com/carve-csi/carve/e2e/preflight"
)

func main() {
	if err := preflight.Check(preflight.Cluster(2)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
