package filesystem

import (
	"maps"
	"slices"
)

var settingMeanings = map[string]string{
	SettingLabel:           "The label of the file system.",
	SettingBlockSize:       "The unit of allocation, in bytes; not less than a sector of the disks.",
	SettingInodeSize:       "The size of one inode, in bytes.",
	SettingBytesPerInode:   "One inode is made for so many bytes of the volume; at least a block and four inodes.",
	SettingReservedPercent: "Percent of the blocks that only root may use.",
	SettingMaxInodePercent: "Percent of the volume that inodes may take.",
	SettingReflink:         "Whether files can share blocks.",
	SettingNodeSize:        "The size of a metadata block, in bytes.",
	SettingMetadata:        "Whether metadata is written twice (`dup`) or once.",
	SettingRootOwner:       "The owner of the root directory; `0:0` otherwise.",
	SettingRootMode:        "The mode of [the root directory](../how-to/filesystems.md#the-root-directory), such as `1777`; `0755` otherwise.",
}

// SettingMeaning returns the effect of a setting, or "" for an unknown one.
func SettingMeaning(name string) string { return settingMeanings[name] }

// DescribeSettings returns a type's settings with a description of their
// values.
func DescribeSettings(t Type) map[string]string {
	described := map[string]string{}
	for name, v := range settings[t] {
		described[name] = v.String()
	}
	return described
}

// DescribeMountOptions returns the sorted mount options of a type, with their
// values, without the options common to all types. For the empty type it
// returns the common ones.
func DescribeMountOptions(t Type) []string {
	allowed := ownOptions[t]
	if t == "" {
		allowed = commonOptions
	}
	var described []string
	for _, name := range slices.Sorted(maps.Keys(allowed)) {
		described = append(described, listOptions(map[string]values{name: allowed[name]}))
	}
	return described
}

// DescribeDAXOptions returns the mount options allowed only on persistent
// memory.
func DescribeDAXOptions() string { return listOptions(daxOptions) }
