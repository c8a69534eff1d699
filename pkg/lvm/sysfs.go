package lvm

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// hasDAX tells whether the kernel maps the device's contents directly into
// memory (queue/dax); of a partition, its disk's says so.
func hasDAX(path string) bool {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return false
	}
	dir := fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
	for _, file := range []string{"/queue/dax", "/../queue/dax"} {
		if b, err := os.ReadFile(dir + file); err == nil {
			return strings.TrimSpace(string(b)) == "1"
		}
	}
	return false
}
