package ondisk

import "github.com/carve-csi/carve/pkg/lvm/layout"

// Metadata is the state of a group's metadata on its disks.
type Metadata struct {
	Seqno uint64
	// Size is the text's in bytes, and Limit the largest that fits into the smallest of the
	// group's metadata areas: LVM refuses to write more.
	Size, Limit int64
	// Unreadable counts the group's disks that do not answer, fail, or hold no metadata.
	Unreadable int
}

// commandSlack allows for a longer command line than the last one, in bytes: texts record the
// command that wrote them.
const commandSlack = 4 << 10

// leastVolume is the least size of one of our volumes in the text, tags included, in bytes:
// with names of one letter and nothing optional.
const leastVolume = 350

// Most bounds how many volumes the metadata could hold, whatever it holds now; zero if unknown.
func (m Metadata) Most() int64 { return m.Limit / leastVolume }

// Fits reports whether the metadata has space for another linear volume with these tags and
// segments. If in question, it returns false.
func (m Metadata) Fits(tags []string, segments int64) bool {
	return m.Limit == 0 || m.Size+layout.VolumeText(tags, segments)+commandSlack <= m.Limit
}
