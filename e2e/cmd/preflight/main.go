// Command preflight checks that this machine can bring up a cluster of virtual
// machines, and says what is missing. It boots one where it matters whether KVM works.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/carve-csi/carve/e2e/preflight"
)

func main() {
	disks := flag.Int("disks", 0, "how many `GiB` are written to the disks of virtual machines at a time")
	shared := flag.Int("shared", 0, "how many `GiB` of /dev/shm machines need where KVM does not work")
	flag.Parse()
	needs := preflight.Cluster(2)
	needs.DisksMiB, needs.SharedMiB = *disks<<10, *shared<<10
	needs.Prove = withoutKVM
	if err := preflight.Check(needs); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
