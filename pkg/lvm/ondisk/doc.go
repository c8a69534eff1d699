// Package ondisk reads LVM's structures on disks: the label of a physical volume, the metadata
// areas, and the text of a volume group's metadata. It runs no program, writes nothing and
// decides nothing.
//
// Vocabulary
//
//	label          the sector that makes a disk a physical volume
//	metadata area  a ring on a physical volume that holds a group's metadata
//	Head           the beginning of the committed text: the group's name, UUID and
//	               sequence number
//	Placement      where every volume lies and which extents are free
//	message        an instruction that LVM has yet to send to a thin pool
//
// Invariants: deviations from the format, which has not changed since 2002, are errors and
// never panics. A text that is replaced during the read fails its checksum.
package ondisk
