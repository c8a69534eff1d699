package lvm

// Metadata is the state of a group's metadata on its disks.
type Metadata struct {
	// Seqno is raised by LVM with every change.
	Seqno uint64
	// Size is the text's size in bytes, and Limit the largest that fits into
	// the smallest of the group's metadata areas: LVM refuses to write more.
	Size, Limit int64
	// Unreadable counts the group's disks that do not tell: they fail, or keep
	// no metadata.
	Unreadable int
}

// What LVM's metadata text takes at most, in bytes, counted from the text that
// 2.03 writes. Texts hold the last command's line, too, which differs from
// command to command: commandSlack allows for a longer one.
const (
	volumeText   = 300 // with a host name of 64 and a volume's name of 28 bytes
	segmentText  = 160
	tagText      = 4 // quotes, comma, space
	commandSlack = 4 << 10
)

// leastVolume is what a volume of ours takes at least, tags included, in bytes: with
// names of one letter, and nothing said that can be left out.
const leastVolume = 350

// Most bounds how many volumes the metadata could hold, if there were no others,
// from above. It does not change with what the group holds. Zero: it is not known.
func (m Metadata) Most() int64 { return m.Limit / leastVolume }

// Fits tells whether the metadata has room for one more linear volume with
// tags of so many bytes in so many pieces. It errs on the side of no.
func (m Metadata) Fits(tags []string, segments int64) bool {
	return m.Limit == 0 || m.Size+VolumeText(tags, segments)+commandSlack <= m.Limit
}

// VolumeText bounds what a linear volume takes in the metadata, in bytes.
func VolumeText(tags []string, segments int64) int64 {
	n := volumeText + segmentText*segments
	for _, t := range tags {
		n += int64(len(t)) + tagText
	}
	return n
}
