package ondisk

import "github.com/carve-csi/carve/pkg/lvm/layout"

// Metadata is the state of a group's metadata on its disks.
type Metadata struct {
	// Seqno is raised by LVM with every change.
	Seqno uint64
	// Size is the text's size in bytes, and Limit the largest that fits into
	// the smallest of the group's metadata areas: LVM refuses to write more.
	Size, Limit int64
	// Unreadable counts the group's disks that do not answer, fail, or keep
	// no metadata.
	Unreadable int
}

// commandSlack is what a longer command line may take than the last one, in bytes: texts
// hold the line of the command that wrote them.
const commandSlack = 4 << 10

// leastVolume is what a volume of ours takes at least, tags included, in bytes: with
// names of one letter, and nothing said that can be left out.
const leastVolume = 350

// Most bounds how many volumes the metadata could hold, if there were no others,
// from above. It does not change with what the group holds. Zero: it is not known.
func (m Metadata) Most() int64 { return m.Limit / leastVolume }

// Fits reports whether the metadata has free space for one more linear volume with
// tags of so many bytes in so many pieces. It errs on the side of no.
func (m Metadata) Fits(tags []string, segments int64) bool {
	return m.Limit == 0 || m.Size+layout.VolumeText(tags, segments)+commandSlack <= m.Limit
}
