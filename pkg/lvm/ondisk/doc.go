// Package ondisk reads what LVM keeps on its disks: the label of a physical
// volume, the metadata areas, and the text of a volume group's metadata.
//
// It runs no program and writes nothing. It decides nothing: callers compare
// what it reads with what they know.
//
// Vocabulary
//
//	label          the sector that makes a disk a physical volume
//	metadata area  a ring on a physical volume that holds a group's metadata
//	Head           the beginning of the text that was committed last: the group's
//	               name, UUID and sequence number
//	text           all of the metadata of a group, in sections and settings
//	Placement      where every volume lies and what is free, by the text
//	message        what the metadata of a thin pool says is yet to be sent to it
//
// Invariants: what is not in the format, which has not changed since 2002, is an
// error and no panic; a text that is being replaced while it is read does not
// have its checksum, and is an error.
//
// Callers: pkg/lvm; pkg/lvmd reads its types.
package ondisk
