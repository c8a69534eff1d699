package filesystem

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// The settings that the making of a file system has. Which of them a type
// knows, and which values, is in its table below; nothing else reaches mkfs.
const (
	// SettingLabel names the file system: letters, digits and ._- only.
	SettingLabel = "label"
	// SettingBlockSize is the unit of allocation, in bytes.
	SettingBlockSize = "block-size"
	// SettingInodeSize is the size of one inode, in bytes.
	SettingInodeSize = "inode-size"
	// SettingBytesPerInode is for how many bytes of the volume there is an inode.
	SettingBytesPerInode = "bytes-per-inode"
	// SettingReservedPercent is what is kept back for root.
	SettingReservedPercent = "reserved-percent"
	// SettingMaxInodePercent is how much of the volume inodes may take.
	SettingMaxInodePercent = "max-inode-percent"
	// SettingReflink lets files share extents: on or off.
	SettingReflink = "reflink"
	// SettingNodeSize is the size of a block of metadata, in bytes.
	SettingNodeSize = "node-size"
	// SettingMetadata is how many copies of the metadata there are: single or dup.
	SettingMetadata = "metadata"
	// SettingRootOwner is the owner of the root directory. SetRoot sets it.
	SettingRootOwner = "root-owner"
	// SettingRootMode is the mode of the root directory, which SetRoot sets, too.
	SettingRootMode = "root-mode"
)

// pageSize is what blocks of a file system that is mounted with DAX must have.
const pageSize = "4096"

// Settings are checked settings in their canonical form, "name=value" sorted
// by name and joined by commas, so that equal settings are equal strings. The
// empty one is a type's default. ParseSettings makes them.
type Settings string

// Map returns the settings by name, or nil when there are none.
func (s Settings) Map() map[string]string {
	if s == "" {
		return nil
	}
	m := map[string]string{}
	for _, pair := range strings.Split(string(s), ",") {
		name, value, _ := strings.Cut(pair, "=")
		m[name] = value
	}
	return m
}

// value returns a setting's value, or nothing when it is not set.
func (s Settings) value(name string) string { return s.Map()[name] }

// number returns a setting's value, or another when it is not set.
func (s Settings) number(name string, otherwise int64) int64 {
	if n, err := strconv.ParseInt(s.value(name), 10, 64); err == nil {
		return n
	}
	return otherwise
}

// OptionError says that a setting or a mount option is not allowed.
type OptionError struct {
	// Kind is "setting" or "mount option".
	Kind string
	// Name is the option's, Given what was asked for, as name=value.
	Name, Given string
	// For is what it is not allowed for: a file system, and perhaps more.
	For string
	// Allowed lists what is.
	Allowed string
}

// Error names what was given and what is allowed.
func (e *OptionError) Error() string {
	return fmt.Sprintf("%s %q is not allowed for %s: allowed are %s", e.Kind, e.Given, e.For, e.Allowed)
}

// settings is what each type knows, by name.
var settings = map[Type]map[string]values{
	Ext4: {
		SettingLabel:           label(16),
		SettingBlockSize:       sizes{1024, 2048, 4096},
		SettingInodeSize:       sizes{256, 512, 1024},
		SettingBytesPerInode:   between{1024, 64 << 20, true},
		SettingReservedPercent: between{0, 50, false},
		SettingRootOwner:       owner{},
		SettingRootMode:        mode{},
	},
	XFS: {
		SettingLabel:           label(12),
		SettingBlockSize:       sizes{1024, 2048, 4096},
		SettingInodeSize:       sizes{512, 1024, 2048},
		SettingMaxInodePercent: between{1, 100, false},
		SettingReflink:         words{"on", "off"},
		SettingRootOwner:       owner{},
		SettingRootMode:        mode{},
	},
	Btrfs: {
		SettingLabel:     label(100),
		SettingNodeSize:  sizes{4096, 8192, 16384, 32768, 65536},
		SettingMetadata:  words{"dup", "single"},
		SettingRootOwner: owner{},
		SettingRootMode:  mode{},
	},
}

// SettingNames returns the settings that a type knows, sorted.
func SettingNames(t Type) []string { return slices.Sorted(maps.Keys(settings[t])) }

// ParseSettings checks settings given by name and brings them into canonical
// form. Sizes are in bytes, or have a suffix Ki, Mi or Gi. Errors are
// *OptionError and name what is allowed.
func ParseSettings(u Use, given map[string]string) (Settings, error) {
	if _, err := kindOf(u.Type); err != nil {
		return "", err
	}
	var pairs []string
	for _, name := range slices.Sorted(maps.Keys(given)) {
		known, ok := settings[u.Type][name]
		if !ok {
			return "", &OptionError{Kind: "setting", Name: name, Given: name, For: string(u.Type), Allowed: strings.Join(SettingNames(u.Type), ", ")}
		}
		value, ok := known.canonical(given[name])
		if !ok {
			return "", &OptionError{Kind: "setting", Name: name, Given: name + "=" + given[name], For: string(u.Type), Allowed: known.String()}
		}
		pairs = append(pairs, name+"="+value)
	}
	s := Settings(strings.Join(pairs, ","))
	return s, s.agree(u)
}

// agree checks settings against each other and against what the file system is
// for.
func (s Settings) agree(u Use) error {
	refuse := func(name, reason, allowed string) error {
		return &OptionError{Kind: "setting", Name: name, Given: name + "=" + s.value(name), For: string(u.Type) + reason, Allowed: allowed}
	}
	block := s.number(SettingBlockSize, 4096)
	inode := s.number(SettingInodeSize, 0)
	if least := max(block, 4*max(inode, 256)); s.value(SettingBytesPerInode) != "" && s.number(SettingBytesPerInode, 0) < least {
		return refuse(SettingBytesPerInode, fmt.Sprintf(" with blocks of %d and inodes of %d bytes", block, max(inode, 256)), between{least, 64 << 20, true}.String())
	}
	switch {
	case u.Type == XFS && inode > block/2:
		return refuse(SettingInodeSize, fmt.Sprintf(" with blocks of %d bytes", block), fmt.Sprintf("%d or less", block/2))
	case u.Type == Ext4 && inode > block:
		return refuse(SettingInodeSize, fmt.Sprintf(" with blocks of %d bytes", block), fmt.Sprintf("%d or less", block))
	case u.DAX && block != 4096:
		return refuse(SettingBlockSize, " on persistent memory", pageSize)
	case u.DAX && s.value(SettingReflink) == "on":
		return refuse(SettingReflink, " on persistent memory", "off")
	}
	return nil
}

// CheckSectors fails, with an *OptionError, if no file system can be made with the settings on
// disks with sectors of so many bytes, their logical block size.
func (s Settings) CheckSectors(t Type, sector int64) error {
	if s.value(SettingBlockSize) == "" || s.number(SettingBlockSize, 0) >= sector {
		return nil
	}
	known, _ := settings[t][SettingBlockSize].(sizes)
	allowed := slices.DeleteFunc(slices.Clone(known), func(size int64) bool { return size < sector })
	return &OptionError{Kind: "setting", Name: SettingBlockSize, Given: SettingBlockSize + "=" + s.value(SettingBlockSize),
		For: fmt.Sprintf("%s on disks with sectors of %d bytes", t, sector), Allowed: allowed.String()}
}

// values are those that a setting or a mount option may have.
type values interface {
	// canonical returns the value in the form in which it is kept. False: it is
	// not allowed.
	canonical(given string) (string, bool)
	// String says what is allowed.
	fmt.Stringer
}

// label is a name of at most so many characters.
type label int

func (l label) canonical(given string) (string, bool) {
	ok := given != "" && len(given) <= int(l) && !strings.ContainsFunc(given, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("._-", r)
	}) && given[0] != '-'
	return given, ok
}

func (l label) String() string {
	return fmt.Sprintf("1 to %d of [A-Za-z0-9._-], not beginning with -", int(l))
}

// sizes are some sizes in bytes.
type sizes []int64

func (s sizes) canonical(given string) (string, bool) {
	n, ok := parseSize(given)
	return strconv.FormatInt(n, 10), ok && slices.Contains(s, n)
}

func (s sizes) String() string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint([]int64(s)), " ", ", "), "[]")
}

// between is a whole number from the first to the second; a size in bytes if
// so marked, and a plain number otherwise.
type between struct {
	from, to int64
	size     bool
}

func (b between) canonical(given string) (string, bool) {
	n, ok := parseSize(given)
	if !b.size {
		var err error
		n, err = strconv.ParseInt(given, 10, 64)
		ok = err == nil
	}
	return strconv.FormatInt(n, 10), ok && n >= b.from && n <= b.to
}

func (b between) String() string { return fmt.Sprintf("%d to %d", b.from, b.to) }

// words are fixed values.
type words []string

func (w words) canonical(given string) (string, bool) { return given, slices.Contains(w, given) }

func (w words) String() string { return strings.Join(w, ", ") }

// parseSize reads a number of bytes, or one with a suffix.
func parseSize(s string) (int64, bool) {
	shift := 0
	for i, suffix := range []string{"Ki", "Mi", "Gi"} {
		if number, ok := strings.CutSuffix(s, suffix); ok {
			s, shift = number, 10*(i+1)
		}
	}
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil || n < 0 {
		return 0, false
	}
	return n << shift, true
}
