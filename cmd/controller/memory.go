package main

import (
	"log/slog"
	"math"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"github.com/carve-csi/carve/pkg/quantity"
)

// memoryShare is the share of the container's memory limit that is Go's: the kernel counts page cache and
// sockets, too.
const memoryShare = 0.9

// limitMemory has Go collect garbage more often where the container's memory limit is near: without, the
// heap may grow to twice what is in use before it does. GOMEMLIMIT in the environment wins. Without a
// limit, or where it cannot be read, nothing changes.
//
// The programs on nodes do without it: in their containers run LVM, mkfs and fsck, and what these take,
// Go does not see.
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
