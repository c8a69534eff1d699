package lvm

import (
	"fmt"
	"strconv"
	"strings"
)

// parsePoolStatus parses the status of the kernel's thin-pool target
// (Documentation/admin-guide/device-mapper/thin-provisioning.rst):
//
//	TRANSACTION USED/TOTAL USED/TOTAL HELD_ROOT MODE DISCARD FULL CHECK WATERMARK
//
// where the first pair counts metadata blocks and the second data blocks. Kernels may omit
// fields at the end.
func parsePoolStatus(params string) (PoolStatus, error) {
	fields := strings.Fields(params)
	if len(fields) == 1 && (fields[0] == "Fail" || fields[0] == "Error") {
		return PoolStatus{Failed: true}, nil
	}
	if len(fields) < 5 {
		return PoolStatus{}, fmt.Errorf("thin pool status %q: want at least 5 fields", params)
	}
	var s PoolStatus
	var err error
	if s.MetadataUsed, s.MetadataTotal, err = parseFullness(fields[1]); err != nil {
		return PoolStatus{}, fmt.Errorf("thin pool status %q: metadata: %w", params, err)
	}
	if s.DataUsed, s.DataTotal, err = parseFullness(fields[2]); err != nil {
		return PoolStatus{}, fmt.Errorf("thin pool status %q: data: %w", params, err)
	}
	for _, f := range fields[4:] {
		switch f {
		case "ro":
			s.ReadOnly = true
		case "out_of_data_space":
			s.OutOfData = true
		case "queue_if_no_space":
			s.QueuesWhenFull = true
		case "needs_check":
			s.NeedsCheck = true
		}
	}
	return s, nil
}

func parseFullness(s string) (used, total int64, err error) {
	a, b, ok := strings.Cut(s, "/")
	if !ok {
		return 0, 0, fmt.Errorf("%q is not USED/TOTAL", s)
	}
	if used, err = strconv.ParseInt(a, 10, 64); err != nil {
		return 0, 0, err
	}
	if total, err = strconv.ParseInt(b, 10, 64); err != nil {
		return 0, 0, err
	}
	if used < 0 || used > total {
		return 0, 0, fmt.Errorf("%q is not USED/TOTAL", s)
	}
	return used, total, nil
}
