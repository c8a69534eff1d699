package ondisk

import (
	"fmt"
	"strings"
)

const (
	maxNameLength = 127
	maxTagLength  = 1024
)

// ValidName reports whether s can name a volume group or logical volume: 1 to 127 of
// [A-Za-z0-9+_.-], not starting with a hyphen, not "." or "..". It accepts names that LVM
// reserves for components (_tmeta, snapshot…): Carve's names cannot collide with those.
func ValidName(s string) bool {
	if s == "" || len(s) > maxNameLength || s[0] == '-' || s == "." || s == ".." {
		return false
	}
	for i := range len(s) {
		if !isAlnum(s[i]) && !strings.ContainsRune("+_.-", rune(s[i])) {
			return false
		}
	}
	return true
}

// ValidTag reports whether s can be a tag: 1 to 1024 of [A-Za-z0-9_+.-/=!:#&], not starting
// with a hyphen.
func ValidTag(s string) bool {
	if s == "" || len(s) > maxTagLength || s[0] == '-' {
		return false
	}
	for i := range len(s) {
		if !isTagByte(s[i]) {
			return false
		}
	}
	return true
}

// EscapeTag makes any string usable within a tag. It replaces '#', and bytes that a tag cannot
// hold, by '#' and two lower-case hexadecimal digits.
func EscapeTag(s string) string {
	const hex = "0123456789abcdef"
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; isTagByte(c) && c != '#' {
			b.WriteByte(c)
		} else {
			b.WriteByte('#')
			b.WriteByte(hex[c>>4])
			b.WriteByte(hex[c&15])
		}
	}
	return b.String()
}

// UnescapeTag reverses EscapeTag. It fails unless two lower-case hexadecimal digits follow each
// '#'.
func UnescapeTag(s string) (string, error) {
	if !strings.Contains(s, "#") {
		return s, nil
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '#' {
			b.WriteByte(s[i])
			continue
		}
		if i+2 >= len(s) || unhex(s[i+1]) < 0 || unhex(s[i+2]) < 0 {
			return "", fmt.Errorf("tag %q: malformed escape at byte %d", s, i)
		}
		b.WriteByte(byte(unhex(s[i+1])<<4 | unhex(s[i+2])))
		i += 2
	}
	return b.String(), nil
}

func isTagByte(c byte) bool {
	return isAlnum(c) || strings.IndexByte("_+.-/=!:#&", c) >= 0
}

func isAlnum(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

func unhex(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	}
	return -1
}
