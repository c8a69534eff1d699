package lvm

import (
	"fmt"
	"strconv"
	"strings"
)

// RAIDStatus is the kernel's view of a RAID volume.
type RAIDStatus struct {
	// Images counts its devices, Failed the failed and missing ones, and Behind those not yet
	// in sync.
	Images, Failed, Behind int
	// Both are sectors of each image.
	Synced, Total int64
	// Action is idle, frozen, resync, recover, check, repair or reshape.
	Action string
	// Mismatches counts the sectors that a check found to differ.
	Mismatches int64
}

// parseRAIDStatus reads "TYPE IMAGES HEALTH SYNCED/TOTAL ACTION MISMATCHES …"
// of the kernel's dm-raid, since version 1.5.
func parseRAIDStatus(params string) (RAIDStatus, error) {
	bad := func() (RAIDStatus, error) {
		return RAIDStatus{}, fmt.Errorf("status %q is not understood", params)
	}
	words := strings.Fields(params)
	if len(words) < 6 {
		return bad()
	}
	n, err := strconv.Atoi(words[1])
	if err != nil || n != len(words[2]) {
		return bad()
	}
	s := RAIDStatus{Images: n, Action: words[4]}
	for _, c := range words[2] {
		switch c {
		case 'A':
		case 'a':
			s.Behind++
		case 'D', '-':
			s.Failed++
		default:
			return bad()
		}
	}
	synced, total, ok := strings.Cut(words[3], "/")
	if !ok {
		return bad()
	}
	for _, number := range []struct {
		text string
		into *int64
	}{{synced, &s.Synced}, {total, &s.Total}, {words[5], &s.Mismatches}} {
		if *number.into, err = strconv.ParseInt(number.text, 10, 64); err != nil || *number.into < 0 {
			return bad()
		}
	}
	return s, nil
}
