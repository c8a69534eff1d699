package filesystem

import (
	"slices"
	"strconv"
	"strings"
)

// SELinuxContext returns the context that mount options give to all files,
// without quotes and in the kernel's spelling, or "". Spellings of the same
// context differ: the kernel sorts categories (s0:c2,c1) and joins successive
// ones (s0:c1.c3).
func SELinuxContext(options []string) string {
	for _, option := range options {
		given, ok := strings.CutPrefix(option, "context=")
		if !ok {
			continue
		}
		// user:role:type:level
		parts := strings.SplitN(strings.Trim(given, `"`), ":", 4)
		if len(parts) == 4 {
			low, high, ranged := strings.Cut(parts[3], "-")
			low, high = sensitivity(low), sensitivity(high)
			if ranged && low != high {
				low += "-" + high
			}
			parts[3] = low
		}
		return strings.Join(parts, ":")
	}
	return ""
}

// maxCategories is the customary maximum of an SELinux policy.
const maxCategories = 1024

// sensitivity spells one end of a level, such as "s0:c1,c2", like the kernel.
// It returns anything else unchanged.
func sensitivity(given string) string {
	name, list, _ := strings.Cut(given, ":")
	if list == "" {
		return given
	}
	var has [maxCategories + 1]bool
	for _, part := range strings.Split(list, ",") {
		first, last, ranged := strings.Cut(part, ".")
		if !ranged {
			last = first
		}
		from, to := category(first), category(last)
		if from < 0 || to < from {
			return given
		}
		for c := from; c <= to; c++ {
			has[c] = true
		}
	}
	var spelled []string
	for from := 0; from < maxCategories; from++ {
		if !has[from] {
			continue
		}
		to := from + slices.Index(has[from:], false) - 1
		spelled = append(spelled, "c"+strconv.Itoa(from))
		if to > from {
			between := "."
			if to == from+1 {
				between = ","
			}
			spelled[len(spelled)-1] += between + "c" + strconv.Itoa(to)
		}
		from = to
	}
	return name + ":" + strings.Join(spelled, ",")
}

// category parses "c12". It returns -1 for anything else.
func category(given string) int {
	digits, ok := strings.CutPrefix(given, "c")
	n, err := strconv.Atoi(digits)
	if !ok || err != nil || n < 0 || n >= maxCategories {
		return -1
	}
	return n
}
