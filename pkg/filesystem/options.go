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

// flag is the value of an option that has none.
type flag struct{}

func (flag) canonical(string) (string, bool) { return "", false }
func (flag) String() string                  { return "" }

// either is an option that stands alone or has one of the values.
type either struct{ values }

// text is any value; quotes have to enclose all of it, as one that does not
// would swallow what follows.
type text struct{}

func (text) canonical(given string) (string, bool) {
	inner := given
	if len(given) >= 2 && given[0] == '"' && given[len(given)-1] == '"' {
		inner = given[1 : len(given)-1]
	}
	return given, given != "" && !strings.Contains(inner, `"`)
}
func (text) String() string { return "TEXT" }

// powers is a power of two in a range, perhaps with a suffix k, m or g, which
// the kernel reads in few options only.
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

// commonOptions are handled alike by the kernel for every file system. Left out
// are those that concern other mounts than the volume's own (bind, move,
// remount, propagation) and mand, which no current kernel has.
var commonOptions = merged(flags(
	"defaults", "ro", "rw", "nosuid", "suid", "nodev", "dev", "noexec", "exec",
	"sync", "async", "dirsync", "noatime", "atime", "nodiratime", "diratime",
	"relatime", "norelatime", "strictatime", "lazytime", "nolazytime",
), map[string]values{
	// The kubelet adds it for volumes that are labelled by their mount.
	"context": text{},
})

// ownOptions are those of one file system. Left out is what lets a volume's
// user disturb others (errors=panic above all), other devices (journal_dev,
// logdev, degraded), what grants rights on the host, and what a kernel refuses
// for the file systems that Format makes: that would show only when the Pod
// starts.
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
		// Smaller ones are refused where the log is striped.
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

// levels are btrfs' ways of compressing, some with a level.
type levels struct{}

var (
	compressions = levels{}
	compression  = regexp.MustCompile(`^(no|lzo|zlib(:[1-9])?|zstd(:([1-9]|1[0-5]))?)$`)
)

func (levels) canonical(given string) (string, bool) { return given, compression.MatchString(given) }
func (levels) String() string                        { return "no, lzo, zlib[:1-9], zstd[:1-15]" }

// daxOptions are accepted for volumes on persistent memory only.
var daxOptions = map[string]values{"dax": either{words{"always", "inode", "never"}}}

// journalOptions are those of the journal, which the profile scratch chooses by itself:
// older file systems of it have none, and the kernel refuses them there.
var journalOptions = []string{"data", "commit", "journal_async_commit", "journal_checksum", "journal_ioprio", "max_batch_time", "min_batch_time"}

// conflicts are pairs of options that a kernel refuses together, as both would
// stand in the string that it gets. The second one is a condition: it holds
// when none of its options is given.
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

// maxMountData is what fits into a call of mount(2): one page with its terminator.
const maxMountData = 4095

// MountOptions splits and checks mount options as a StorageClass or a
// PersistentVolume lists them, each element one option or several separated by
// commas. It returns them one each, in order, after those of the profile, and
// with DAX switched on for a DAX volume whose options do not say otherwise. The
// error is an *OptionError that names the first option that is not allowed and
// lists what is.
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

// DiscardOption returns the mount option, of those that a class lists, by which
// a file system informs its device at once of the space that it frees. It is empty
// when there is none, or a later one takes it back.
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

// optionAllowed compares an option with the allowed ones.
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

// listOptions says which options are allowed.
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

// SplitOptions splits mount options, as they are given and as the kernel lists
// them, at commas that are not within double quotes: SELinux contexts contain
// commas.
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
