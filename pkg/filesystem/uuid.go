package filesystem

import (
	"encoding/hex"
	"fmt"
	"strings"
)

// validateUUID accepts only the 8-4-4-4-12 form, which Probe reports: the tools
// also understand words such as "random".
func validateUUID(s string) error {
	fail := fmt.Errorf("file system UUID %q: allowed is the form 01234567-89ab-cdef-0123-456789abcdef", s)
	if len(s) != 36 {
		return fail
	}
	for i, c := range []byte(s) {
		switch {
		case i == 8 || i == 13 || i == 18 || i == 23:
			if c != '-' {
				return fail
			}
		case c >= '0' && c <= '9', c >= 'a' && c <= 'f', c >= 'A' && c <= 'F':
		default:
			return fail
		}
	}
	return nil
}

func parseUUID(s string) (uuid [16]byte, err error) {
	if err := validateUUID(s); err != nil {
		return uuid, err
	}
	_, err = hex.Decode(uuid[:], []byte(strings.ReplaceAll(s, "-", "")))
	return uuid, err
}

func formatUUID(b []byte) string {
	h := hex.EncodeToString(b)
	return h[0:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:32]
}
