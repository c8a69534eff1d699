// Package quantity writes sizes in messages as people write them in claims: 100Gi. It knows
// nothing of Kubernetes, so that lvmd can use it, too.
package quantity

import (
	"fmt"
	"strconv"
	"strings"
)

// units are the suffixes, from the largest on.
var units = []struct {
	bytes  int64
	suffix string
}{{1 << 50, "Pi"}, {1 << 40, "Ti"}, {1 << 30, "Gi"}, {1 << 20, "Mi"}, {1 << 10, "Ki"}}

// digits is how many digits a whole number may have before a fraction of a larger unit is easier
// to read.
const digits = 5

// Bytes returns a size in the largest unit in which it is whole: 100Gi, 1536Mi. Where that is a
// long number it is, in the largest unit that there is one of, rounded down to two decimals:
// 99.93Gi.
func Bytes(n int64) string {
	if n < 0 {
		return strconv.FormatInt(n, 10)
	}
	exact := strconv.FormatInt(n, 10)
	for _, u := range units {
		if n != 0 && n%u.bytes == 0 {
			exact = strconv.FormatInt(n/u.bytes, 10) + u.suffix
			break
		}
	}
	if len(strings.TrimRight(exact, "PTGMKi")) <= digits {
		return exact
	}
	for _, u := range units {
		if n < u.bytes {
			continue
		}
		hundredths := n%u.bytes/1024*100/(u.bytes/1024) + n/u.bytes*100
		text := fmt.Sprintf("%d.%02d", hundredths/100, hundredths%100)
		return strings.TrimRight(strings.TrimRight(text, "0"), ".") + u.suffix
	}
	return exact
}
