package layout

// Upper bounds of LVM's metadata text, in bytes, measured with 2.03.
const (
	volumeText  = 300 // with a host name of 64 and a volume name of 28 bytes
	segmentText = 160
	tagText     = 4 // quotes, comma, space
)

// VolumeText bounds the metadata of a linear volume, in bytes.
func VolumeText(tags []string, segments int64) int64 {
	n := volumeText + segmentText*segments
	for _, t := range tags {
		n += int64(len(t)) + tagText
	}
	return n
}
