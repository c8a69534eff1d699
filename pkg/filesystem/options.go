package filesystem

import (
	"fmt"
	"maps"
	"math/bits"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

type flag struct{}

func (flag) canonical(string) (string, bool) { return "", false }
func (flag) String() string                  { return "" }

// either is an option without a value or with one of values.
type either struct{ values }

// text is any value. Quotes must enclose all of it, or they would swallow the
// options that follow.
type text struct{}

func (text) canonical(given string) (string, bool) {
	inner := given
	if len(given) >= 2 && given[0] == '"' && given[len(given)-1] == '"' {
		inner = given[1 : len(given)-1]
	}
	return given, given != "" && !strings.Contains(inner, `"`)
}
func (text) String() string { return "TEXT" }

// powers is a power of two in a range, optionally with a suffix k, m or g,
// which the kernel accepts in few options.
type powers struct {
	from, to int64
	suffixes bool
}

func (p powers) canonical(given string) (string, bool) {
	digits, shift := given, 0
	if i := strings.IndexAny("kmg", strings.ToLower(given[max(len(given)-1, 0):])); p.suffixes && i >= 0 && given != "" {
		digits, shift = given[:len(given)-1], 10*(i+1)
	}
	n, err := strconv.ParseInt(digits, 10, 32)
	n <<= shift
	return given, err == nil && n >= p.from && n <= p.to && bits.OnesCount64(uint64(n)) == 1
}
func (p powers) String() string {
	s := fmt.Sprintf("a power of 2 from %d to %d", p.from, p.to)
	if p.suffixes {
		s += ", also with k, m or g"
	}
	return s
}

func flags(names ...string) map[string]values {
	m := map[string]values{}
	for _, name := range names {
		m[name] = flag{}
	}
	return m
}

func merged(all ...map[string]values) map[string]values {
	m := map[string]values{}
	for _, one := range all {
		maps.Copy(m, one)
	}
	return m
}

// commonOptions have the same effect for every file system. Options for other
// mounts than the volume's own (bind, move, remount, propagation) are left out,
// and mand, which current kernels lack.
var commonOptions = merged(flags(
	"defaults", "ro", "rw", "nosuid", "suid", "nodev", "dev", "noexec", "exec",
	"sync", "async", "dirsync", "noatime", "atime", "nodiratime", "diratime",
	"relatime", "norelatime", "strictatime", "lazytime", "nolazytime",
), map[string]values{
	// The kubelet adds it to label the files by the mount.
	"context": text{},
})

// ownOptions belong to one file system. Left out are options that can disturb
// others (above all errors=panic) or other devices (journal_dev, logdev,
// degraded), that grant rights on the host, or that a kernel refuses for file
// systems made by Format, as that would show only when the Pod starts.
var ownOptions = map[Type]map[string]values{
	Ext4: merged(flags(
		"acl", "user_xattr", "nobarrier", "delalloc", "nodelalloc",
		"discard", "nodiscard", "noinit_itable", "journal_async_commit", "journal_checksum",
		"auto_da_alloc", "noauto_da_alloc", "dioread_lock", "dioread_nolock", "noquota",
	), map[string]values{
		"barrier": either{words{"0", "1"}}, "init_itable": either{between{0, 1000, false}},
		"data": words{"journal", "ordered", "writeback"}, "errors": words{"continue", "remount-ro"},
		"commit": between{0, 86400, false}, "journal_ioprio": between{0, 7, false},
		"max_batch_time": between{0, 1000000, false}, "min_batch_time": between{0, 1000000, false},
		"inode_readahead_blks": powers{1, 1 << 30, false}, "max_dir_size_kb": between{0, 1 << 30, false},
		"stripe": between{0, 1 << 20, false},
	}),
	XFS: merged(flags(
		"discard", "nodiscard", "inode32", "inode64", "largeio", "nolargeio", "noalign", "nouuid",
		"swalloc", "wsync", "filestreams", "prjquota", "pquota", "pqnoenforce", "noquota",
	), map[string]values{
		"allocsize": powers{4096, 1 << 30, true}, "logbufs": between{2, 8, false},
		// Smaller ones are refused if the log is striped.
		"logbsize": words{"256k", "262144"},
	}),
	Btrfs: merged(flags(
		"acl", "noacl", "autodefrag", "noautodefrag", "barrier", "nobarrier", "datacow", "nodatacow",
		"datasum", "nodatasum", "nodiscard", "flushoncommit", "noflushoncommit",
		"ssd", "nossd", "ssd_spread", "nossd_spread", "treelog", "notreelog",
	), map[string]values{
		"discard": either{words{"async", "sync"}}, "compress": either{compressions}, "compress-force": either{compressions},
		"commit": between{1, 86400, false}, "thread_pool": between{1, 64, false}, "max_inline": between{0, 2048, false},
	}),
}

type levels struct{}

var (
	compressions = levels{}
	compression  = regexp.MustCompile(`^(no|lzo|zlib(:[1-9])?|zstd(:([1-9]|1[0-5]))?)$`)
)

func (levels) canonical(given string) (string, bool) { return given, compression.MatchString(given) }
func (levels) String() string                        { return "no, lzo, zlib[:1-9], zstd[:1-15]" }

var daxOptions = map[string]values{"dax": either{words{"always", "inode", "never"}}}

// journalOptions are set by the profile scratch itself. Its older file systems
// have no journal, and the kernel then refuses these options.
var journalOptions = []string{"data", "commit", "journal_async_commit", "journal_checksum", "journal_ioprio", "max_batch_time", "min_batch_time"}

// conflicts are options that a kernel refuses together, or, with without,
// refuses unless one of those is given.
var conflicts = []struct {
	t       Type
	option  string
	without []string
	with    []string
}{
	{t: Ext4, option: "journal_async_commit", without: []string{"data=writeback", "data=journal"}},
	{t: Ext4, option: "data=journal", with: []string{"dioread_nolock", "delalloc", "dax", "dax=always"}},
	{t: XFS, option: "noalign", with: []string{"swalloc"}},
}

// maxMountData is the limit of mount(2): one page, less the terminator.
const maxMountData = 4095

// MountOptions validates the mount options of a StorageClass or
// PersistentVolume. Each element may have several, separated by commas. It
// returns them separately and in order, after those of the profile, and adds
// dax=always to a DAX volume without a dax option. Its error is an *OptionError
// that names the first rejected option and lists the allowed ones.
func MountOptions(u Use, given []string) ([]string, error) {
	if _, err := kindOf(u.Type); err != nil {
		return nil, err
	}
	allowed := merged(commonOptions, ownOptions[u.Type])
	of := string(u.Type)
	if u.Profile == Scratch {
		of += " of profile " + string(Scratch)
		for _, name := range journalOptions {
			delete(allowed, name)
		}
	}
	if u.DAX {
		allowed = merged(allowed, daxOptions)
	}
	options := u.mountOptions()
	length, daxGiven := 0, false
	for _, element := range given {
		for _, option := range SplitOptions(element) {
			name, _, _ := strings.Cut(option, "=")
			if !optionAllowed(option, allowed) {
				return nil, &OptionError{Kind: "mount option", Name: name, Given: option, For: of, Allowed: listOptions(allowed)}
			}
			daxGiven = daxGiven || name == "dax"
			length += len(option) + 1
			options = append(options, option)
		}
	}
	if length > maxMountData {
		return nil, fmt.Errorf("mount options have %d characters: allowed are %d", length, maxMountData)
	}
	if u.DAX && !daxGiven {
		options = append(options, "dax=always")
	}
	return options, checkConflicts(u, options)
}

// DiscardOption returns the option in given that makes the file system discard
// freed space at once, or "" if none is in effect.
func DiscardOption(given []string) string {
	found := ""
	for _, element := range given {
		for _, option := range SplitOptions(element) {
			switch name, _, _ := strings.Cut(option, "="); name {
			case "discard":
				found = option
			case "nodiscard":
				found = ""
			}
		}
	}
	return found
}

func checkConflicts(u Use, options []string) error {
	for _, c := range conflicts {
		if c.t != u.Type || !slices.Contains(options, c.option) {
			continue
		}
		refused := &OptionError{Kind: "mount option", Name: c.option, Given: c.option}
		has := func(o string) bool { return slices.Contains(options, o) }
		if i := slices.IndexFunc(c.with, has); i >= 0 {
			refused.For = fmt.Sprintf("%s with %s", u.Type, c.with[i])
			refused.Allowed = "one of the two"
			return refused
		}
		if c.without != nil && !slices.ContainsFunc(c.without, has) {
			refused.For = fmt.Sprintf("%s by itself", u.Type)
			refused.Allowed = "it together with " + strings.Join(c.without, " or ")
			return refused
		}
	}
	return nil
}

func optionAllowed(option string, allowed map[string]values) bool {
	for _, c := range []byte(option) {
		if c < ' ' || c == 0x7f {
			return false
		}
	}
	name, value, hasValue := strings.Cut(option, "=")
	known, ok := allowed[name]
	if !ok {
		return false
	}
	if !hasValue {
		switch known.(type) {
		case flag, either:
			return true
		}
		return false
	}
	_, ok = known.canonical(value)
	return ok
}

func listOptions(allowed map[string]values) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(allowed)) {
		switch v := allowed[name].(type) {
		case flag:
			all = append(all, name)
		case either:
			all = append(all, name+"[=("+v.String()+")]")
		default:
			all = append(all, name+"=("+v.String()+")")
		}
	}
	return strings.Join(all, ", ")
}

// SplitOptions splits mount options at commas outside of double quotes: SELinux
// contexts contain commas.
func SplitOptions(element string) []string {
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
