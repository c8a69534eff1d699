package filesystem

import (
	"fmt"
	"slices"
	"strings"
)

// Options that the kernel handles alike for every file system. Left out are
// those that concern other mounts than the volume's own (bind, move, remount,
// propagation) and mand, which no current kernel has.
var commonOptions = []string{
	"defaults", "ro", "rw", "nosuid", "suid", "nodev", "dev", "noexec", "exec",
	"sync", "async", "dirsync", "noatime", "atime", "nodiratime", "diratime",
	"relatime", "norelatime", "strictatime", "lazytime", "nolazytime",
	// The kubelet adds it for volumes that are labelled by their mount.
	"context=",
}

// Options of one file system. A trailing "=" stands for any value. Left out is
// what lets a volume's user disturb others: errors=panic above all, other
// devices (journal_dev, logdev), and what grants rights on the host.
var ownOptions = map[Type][]string{
	Ext4: {
		"acl", "noacl", "user_xattr", "nouser_xattr", "barrier", "nobarrier", "barrier=",
		"data=ordered", "data=writeback", "data=journal", "commit=", "delalloc", "nodelalloc",
		"discard", "nodiscard", "errors=continue", "errors=remount-ro", "init_itable", "init_itable=", "noinit_itable",
		"journal_async_commit", "journal_checksum", "journal_ioprio=", "max_batch_time=", "min_batch_time=",
		"auto_da_alloc", "noauto_da_alloc", "dioread_lock", "dioread_nolock", "inode_readahead_blks=",
		"max_dir_size_kb=", "stripe=", "prjquota", "noquota",
	},
	XFS: {
		"allocsize=", "attr2", "noattr2", "discard", "nodiscard", "inode32", "inode64", "largeio", "nolargeio",
		"logbsize=", "logbufs=", "noalign", "norecovery", "nouuid", "swalloc", "wsync", "filestreams",
		"prjquota", "pquota", "pqnoenforce", "noquota",
	},
}

// daxOptions are accepted for volumes on persistent memory only.
var daxOptions = []string{"dax", "dax=always", "dax=inode", "dax=never"}

// maxMountData is what mount(2) has room for: one page with its terminator.
const maxMountData = 4095

// MountOptions splits and checks mount options as a StorageClass or a
// PersistentVolume lists them, each element one option or several separated by
// commas. It returns them one each, in order, with DAX switched on for a dax
// volume whose options do not say otherwise. The error names the first option
// that is not allowed and lists what is.
func MountOptions(t Type, dax bool, given []string) ([]string, error) {
	if _, err := kindOf(t); err != nil {
		return nil, err
	}
	allowed := slices.Concat(commonOptions, ownOptions[t])
	if dax {
		allowed = append(allowed, daxOptions...)
	}
	var options []string
	length, daxGiven := 0, false
	for _, element := range given {
		for _, option := range splitOptions(element) {
			if !optionAllowed(option, allowed) {
				return nil, fmt.Errorf("mount option %q is not allowed for %s: allowed are %s",
					option, t, strings.Join(allowed, ", "))
			}
			daxGiven = daxGiven || slices.Contains(daxOptions, option)
			length += len(option) + 1
			options = append(options, option)
		}
	}
	if length > maxMountData {
		return nil, fmt.Errorf("mount options have %d characters: allowed are %d", length, maxMountData)
	}
	if dax && !daxGiven {
		options = append(options, "dax=always")
	}
	return options, nil
}

// optionAllowed compares an option with the allowed ones.
func optionAllowed(option string, allowed []string) bool {
	for _, c := range []byte(option) {
		if c < ' ' || c == 0x7f {
			return false
		}
	}
	key, value, hasValue := strings.Cut(option, "=")
	if !hasValue {
		return slices.Contains(allowed, option) && !strings.HasSuffix(option, "=")
	}
	if slices.Contains(allowed, option) && value != "" {
		return true
	}
	if !slices.Contains(allowed, key+"=") || value == "" {
		return false
	}
	// A quote that does not enclose the whole value would swallow what follows.
	inner := value
	if len(value) >= 2 && value[0] == '"' && value[len(value)-1] == '"' {
		inner = value[1 : len(value)-1]
	}
	return !strings.Contains(inner, `"`)
}

// splitOptions splits at commas that are not within double quotes: SELinux
// contexts contain commas.
func splitOptions(element string) []string {
	var options []string
	quoted := false
	start := 0
	for i, c := range []byte(element) {
		switch {
		case c == '"':
			quoted = !quoted
		case c == ',' && !quoted:
			options = append(options, element[start:i])
			start = i + 1
		}
	}
	return append(options, element[start:])
}
