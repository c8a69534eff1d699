package luks

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/carve-csi/carve/pkg/devmapper"
)

const cryptTarget = "crypt"

// harmless are dm-crypt options that change neither the data nor their place.
// cryptsetup takes some from the header's flags.
var harmless = []string{"allow_discards", "same_cpu_crypt", "submit_from_crypt_cpus", "no_read_workqueue", "no_write_workqueue", "high_priority"}

// Verify implements Interface. The mapping's table contains the key, which is
// in this process's memory while Verify reads the table.
func (c *Cryptsetup) Verify(device, volume string) error {
	var below unix.Stat_t
	if err := unix.Stat(device, &below); err != nil {
		return &os.PathError{Op: "stat", Path: device, Err: err}
	}
	table := make([]byte, os.Getpagesize())
	defer clear(table)
	n, err := devmapper.ReadSecret(MappingPrefix+volume, cryptTarget, table)
	if err != nil {
		return fmt.Errorf("verify the encrypted volume %s: %w: %w", volume, ErrForeign, err)
	}
	params := table[devmapper.ParamsOffset : devmapper.ParamsOffset+n-1]
	if err := verifyParams(params, unix.Major(below.Rdev), unix.Minor(below.Rdev)); err != nil {
		return fmt.Errorf("verify the encrypted volume %s: %w: %w", volume, ErrForeign, err)
	}
	return nil
}

// verifyParams compares dm-crypt parameters with those of a volume on the given
// device (kernel's admin-guide/device-mapper/dm-crypt):
//
//	CIPHER KEY IV_OFFSET DEVICE OFFSET [NUMBER OPTION...]
//
// No error contains the key.
func verifyParams(params []byte, major, minor uint32) error {
	fields := strings.Fields(string(params))
	if len(fields) < 5 {
		return fmt.Errorf("its mapping has %d parameters, want 5 at least", len(fields))
	}
	key, options := fields[1], fields[5:]
	for _, c := range []struct{ what, got, want string }{
		{"cipher", fields[0], cipher},
		{"first initialization vector", fields[2], "0"},
		{"device", fields[3], fmt.Sprintf("%d:%d", major, minor)},
		{"first sector", fields[4], fmt.Sprint(headerSectors)},
	} {
		if c.got != c.want {
			return fmt.Errorf("the %s of its mapping is %.64q, want %q", c.what, c.got, c.want)
		}
	}
	if len(key) != keyBits/4 || strings.Trim(key, "0123456789abcdef") != "" {
		return fmt.Errorf("the key of its mapping is not one of %d bits in the table", keyBits)
	}
	for i, option := range options {
		if i > 0 && !slices.Contains(harmless, option) {
			return fmt.Errorf("its mapping has the option %.64q, want only %q", option, harmless)
		}
	}
	return nil
}
