package main

import (
	"log/slog"
	"math"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"github.com/carve-csi/carve/pkg/quantity"
)

// memoryShare is Go's share of the container's memory limit: the kernel also counts page cache
// and sockets.
const memoryShare = 0.9

// limitMemory makes Go collect garbage more often near the container's memory limit: otherwise
// the heap may grow to twice its live size. GOMEMLIMIT overrides it. It does nothing without a
// readable limit.
//
// Programs on nodes do without it: Go does not see the memory of LVM, mkfs and fsck in their
// containers.
func limitMemory(log *slog.Logger, container memlimit.Provider) {
	limit, err := memlimit.Set(memlimit.WithRatio(memoryShare), memlimit.WithProvider(container))
	switch {
	case err != nil:
		log.Warn("the container's memory limit cannot be read, set GOMEMLIMIT instead", "error", err)
	case limit == math.MaxInt64:
		log.Info("memory is not limited")
	default:
		log.Info("memory is limited", "gomemlimit", quantity.Bytes(limit))
	}
}
