package lvm

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// systemConfig must be in lvm.conf because LVM acts on it before it reads
// --config. A command reads few blocks, so asynchronous I/O does not help,
// and destroying its context (io_destroy) waits for the kernel's RCU: most of
// the time that an LVM command takes on real hardware.
const systemConfig = "global { use_aio=0 }\n"

// MakeSystemDir creates a directory for Runner.SystemDir. Losing its contents
// only costs time: commands get everything essential on their command lines.
func MakeSystemDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("LVM's system directory: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "lvm.conf"), []byte(systemConfig), 0o600); err != nil {
		return fmt.Errorf("LVM's system directory: %w", err)
	}
	return nil
}

// baseConfig makes LVM work without udev, without lvm.conf, without files
// outside the lock directory, and blind to the contents of logical volumes.
const baseConfig = `activation { udev_sync=0 udev_rules=0 verify_udev_operations=0 monitoring=0 error_when_full=1 } ` +
	`backup { backup=0 archive=0 } ` +
	`global { event_activation=0 notify_dbus=0 } ` +
	`devices { scan_lvs=0 use_devicesfile=0 obtain_device_list_from_udev=0 ` +
	`external_device_info_source="none" hints="none" `

// lvmConfig returns the argument of --config for a command that sees only the
// given devices. The option --devices crashes the lvm shell of 2.03.16.
func lvmConfig(devices []string) string {
	return baseConfig + "global_filter=[" + accept(devices) + `"r|.*|"] }`
}

func accept(devices []string) string {
	var b strings.Builder
	for _, d := range devices {
		// A regular expression between '|', in a quoted string.
		b.WriteString(`"a|^`)
		b.WriteString(strings.NewReplacer(`\`, `\\`, `"`, `\"`, `|`, `\\|`).Replace(regexp.QuoteMeta(d)))
		b.WriteString(`$|",`)
	}
	return b.String()
}
