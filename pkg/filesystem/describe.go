package filesystem

import (
	"maps"
	"slices"
)

// settingMeanings says in one line what each setting does.
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

// SettingMeaning returns what a setting does, or nothing for an unknown one.
func SettingMeaning(name string) string { return settingMeanings[name] }

// DescribeSettings returns the settings that a type knows, with the values that each may
// have, in words.
func DescribeSettings(t Type) map[string]string {
	described := map[string]string{}
	for name, v := range settings[t] {
		described[name] = v.String()
	}
	return described
}

// DescribeMountOptions returns the mount options that are allowed for a type beside
// those that are allowed for all, sorted and with their values. The empty type stands for
// those that are allowed for all.
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

// DescribeDAXOptions returns the mount options that are allowed on persistent memory only.
func DescribeDAXOptions() string { return listOptions(daxOptions) }
