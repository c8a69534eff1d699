//go:build kernel

package filesystem

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
)

// EveryMountOption returns every mount option that is allowed for a use, with
// the ends of what its value may be. Left out is context, which only kernels with
// SELinux know.
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

// ends are values that are allowed, the extreme ones among them.
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
