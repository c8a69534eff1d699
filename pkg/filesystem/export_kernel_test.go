//go:build kernel

package filesystem

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"

	"github.com/carve-csi/carve/pkg/must"
)

// EveryMountOption returns every mount option allowed for a use, with the
// extremes of its values, except context, which only kernels with SELinux know.
func EveryMountOption(u Use) []string {
	allowed := merged(commonOptions, ownOptions[u.Type])
	delete(allowed, "context")
	if u.Profile == Scratch {
		for _, name := range journalOptions {
			delete(allowed, name)
		}
	}
	var all []string
	for _, name := range slices.Sorted(maps.Keys(allowed)) {
		known := allowed[name]
		switch e := known.(type) {
		case flag:
			all = append(all, name)
			continue
		case either:
			all, known = append(all, name), e.values
		}
		for _, value := range ends(known) {
			all = append(all, name+"="+value)
		}
	}
	return all
}

// ends returns allowed values, including the extremes.
func ends(v values) []string {
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	switch v := v.(type) {
	case words:
		return v
	case between:
		return []string{number(v.from), number(v.to)}
	case powers:
		of := []string{number(v.from), number(v.to)}
		if v.suffixes {
			of = append(of, "64k", "1M", "1g")
		}
		return of
	case levels:
		return []string{"no", "lzo", "zlib", "zlib:1", "zlib:9", "zstd", "zstd:1", "zstd:15"}
	}
	panic(fmt.Sprintf("%T has no ends", v))
}

// EverySetting returns settings with each allowed value, or the extremes, of
// each setting of the type, and last the largest values together.
func EverySetting(t *testing.T, typ Type) []Settings {
	t.Helper()
	all := map[string][]string{
		SettingLabel: {"l"}, SettingReservedPercent: {"0", "50"}, SettingBytesPerInode: {"4096", "67108864"},
		SettingMaxInodePercent: {"1", "100"}, SettingReflink: {"on", "off"}, SettingMetadata: {"dup", "single"},
		SettingBlockSize: {"1024", "2048", "4096"}, SettingInodeSize: {"512", "1024"}, SettingNodeSize: {"4096", "8192", "16384", "32768", "65536"},
	}
	var given []Settings
	parse := func(settings map[string]string) {
		given = append(given, must.Get(ParseSettings(Use{Type: typ}, settings))(t))
	}
	last := map[string]string{}
	for _, name := range SettingNames(typ) {
		for _, value := range all[name] {
			parse(map[string]string{name: value})
			last[name] = value
		}
	}
	parse(last)
	return given
}
