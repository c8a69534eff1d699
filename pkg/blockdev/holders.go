package blockdev

import (
	"os"
	"path/filepath"
	"strings"
)

// holders returns what lies on a device, as " by NAME (MAPPING), …", or "": such as a user's
// mapping, or volumes that the host's LVM found in a raw volume and activated. It omits mounted
// file systems. root is "/" except in tests.
func holders(root string, device Number) string {
	dir := filepath.Join(root, "sys/dev/block", device.String(), "holders")
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) == 0 {
		return ""
	}
	var found []string
	for _, e := range entries {
		holder := e.Name()
		if mapping := attribute(filepath.Join(dir, holder), "dm/name"); mapping != "" {
			holder += " (" + mapping + ")"
		}
		found = append(found, holder)
	}
	return " by " + strings.Join(found, ", ")
}
