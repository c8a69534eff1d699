package layout

// What LVM's metadata text takes at most, in bytes, counted from the text that
// 2.03 writes.
const (
	volumeText  = 300 // with a host name of 64 and a volume's name of 28 bytes
	segmentText = 160
	tagText     = 4 // quotes, comma, space
)

// VolumeText bounds what a linear volume takes in the metadata, in bytes.
func VolumeText(tags []string, segments int64) int64 {
	n := volumeText + segmentText*segments
	for _, t := range tags {
		n += int64(len(t)) + tagText
	}
	return n
}
