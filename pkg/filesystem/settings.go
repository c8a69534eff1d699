package filesystem

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Settings for mkfs and SetRoot. The table settings has those of each type with
// their values; mkfs gets nothing else.
const (
	// SettingLabel is the label: letters, digits and ._- only.
	SettingLabel = "label"
	// SettingBlockSize is the unit of allocation, in bytes.
	SettingBlockSize = "block-size"
	// SettingInodeSize is the size of an inode, in bytes.
	SettingInodeSize = "inode-size"
	// SettingBytesPerInode is the number of bytes of the volume per inode.
	SettingBytesPerInode = "bytes-per-inode"
	// SettingReservedPercent is the percentage of blocks reserved for root.
	SettingReservedPercent = "reserved-percent"
	// SettingMaxInodePercent is the maximum percentage of the volume for
	// inodes.
	SettingMaxInodePercent = "max-inode-percent"
	// SettingReflink lets files share extents: on or off.
	SettingReflink = "reflink"
	// SettingNodeSize is the size of a metadata block, in bytes.
	SettingNodeSize = "node-size"
	// SettingMetadata is the number of copies of the metadata: single or dup.
	SettingMetadata = "metadata"
	// SettingRootOwner is the root directory's owner, for SetRoot.
	SettingRootOwner = "root-owner"
	// SettingRootMode is the root directory's mode, for SetRoot.
	SettingRootMode = "root-mode"
)

// pageSize is the block size that DAX requires.
const pageSize = "4096"

// Settings are valid settings in canonical form: "name=value" sorted by name
// and joined by commas, so that equal settings are equal strings. Empty means
// the type's defaults. ParseSettings returns them.
type Settings string

// Map returns the settings by name, or nil if there are none.
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

func (s Settings) value(name string) string { return s.Map()[name] }

func (s Settings) number(name string, otherwise int64) int64 {
	if n, err := strconv.ParseInt(s.value(name), 10, 64); err == nil {
		return n
	}
	return otherwise
}

// OptionError is a rejected setting or mount option.
type OptionError struct {
	Kind string
	// Given is the rejected option, as name=value.
	Name, Given string
	// For is the file system, with further conditions.
	For string
	// Allowed lists the allowed options or values.
	Allowed string
}

// Error names the rejected and the allowed options.
func (e *OptionError) Error() string {
	return fmt.Sprintf("%s %q is not allowed for %s: allowed are %s", e.Kind, e.Given, e.For, e.Allowed)
}

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

// SettingNames returns the names of a type's settings, sorted.
func SettingNames(t Type) []string { return slices.Sorted(maps.Keys(settings[t])) }

// ParseSettings validates settings and returns them in canonical form. Sizes
// are in bytes or have a suffix Ki, Mi or Gi. Errors are *OptionError.
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

// CheckSectors returns an *OptionError if the settings are impossible on disks
// whose logical block size is sector bytes.
func (s Settings) CheckSectors(t Type, sector int64) error {
	if s.value(SettingBlockSize) == "" || s.number(SettingBlockSize, 0) >= sector {
		return nil
	}
	known, _ := settings[t][SettingBlockSize].(sizes)
	allowed := slices.DeleteFunc(slices.Clone(known), func(size int64) bool { return size < sector })
	return &OptionError{Kind: "setting", Name: SettingBlockSize, Given: SettingBlockSize + "=" + s.value(SettingBlockSize),
		For: fmt.Sprintf("%s on disks with sectors of %d bytes", t, sector), Allowed: allowed.String()}
}

type values interface {
	// canonical returns the value in canonical form, or false if it is not
	// allowed.
	canonical(given string) (string, bool)
	fmt.Stringer
}

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

type sizes []int64

func (s sizes) canonical(given string) (string, bool) {
	n, ok := parseSize(given)
	return strconv.FormatInt(n, 10), ok && slices.Contains(s, n)
}

func (s sizes) String() string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint([]int64(s)), " ", ", "), "[]")
}

// between is an integer in a range, with size in bytes and perhaps a suffix.
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

type words []string

func (w words) canonical(given string) (string, bool) { return given, slices.Contains(w, given) }

func (w words) String() string { return strings.Join(w, ", ") }

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
