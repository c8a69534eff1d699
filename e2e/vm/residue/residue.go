// Package residue finds what storage code leaves behind in a machine: it takes
// snapshots of the volume groups, logical volumes, device-mapper entries, loop
// devices and mounts, and compares two of them. It only looks, with the
// administrator's commands, and never cleans up.
package residue

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Runner runs a command in the machine and returns what it wrote to stdout; an
// exit code other than 0 is an error. An agent's Client is one.
type Runner interface {
	Output(ctx context.Context, argv ...string) (string, error)
}

// Snapshot is what there was in a machine at one time. Each list is sorted.
type Snapshot struct {
	// VolumeGroups has "VG on PV", an entry per physical volume; a physical volume
	// without a group is " on PV".
	VolumeGroups []string
	// Volumes has "VG/LV".
	Volumes []string
	// DeviceMapper has the names of all device-mapper entries.
	DeviceMapper []string
	// Loops has "DEVICE on FILE".
	Loops []string
	// Mounts has "TARGET (TYPE of SOURCE)"; mounts stacked on one target are
	// entries each.
	Mounts []string
}

// lvmConfig makes LVM look at the disks themselves and leave no trace of it.
const lvmConfig = `activation{udev_sync=0 udev_rules=0} devices{use_devicesfile=0 obtain_device_list_from_udev=0 external_device_info_source="none" scan_lvs=0} backup{backup=0 archive=0}`

// Take takes a snapshot. Mounts are those at or below one of the folders below,
// all where none is given.
func Take(ctx context.Context, run Runner, below ...string) (Snapshot, error) {
	var s Snapshot
	groups, err := run.Output(ctx, "pvs", "--noheadings", "--separator", " on ", "-o", "vg_name,pv_name", "--config", lvmConfig)
	if err != nil {
		return s, fmt.Errorf("list the physical volumes: %w", err)
	}
	volumes, err := run.Output(ctx, "lvs", "--noheadings", "--separator", "/", "-o", "vg_name,lv_name", "--config", lvmConfig)
	if err != nil {
		return s, fmt.Errorf("list the logical volumes: %w", err)
	}
	entries, err := run.Output(ctx, "dmsetup", "info", "-c", "--noheadings", "-o", "name")
	if err != nil {
		return s, fmt.Errorf("list the device-mapper entries: %w", err)
	}
	loops, err := run.Output(ctx, "losetup", "--noheadings", "--raw", "-O", "NAME,BACK-FILE")
	if err != nil {
		return s, fmt.Errorf("list the loop devices: %w", err)
	}
	mounts, err := run.Output(ctx, "cat", "/proc/self/mountinfo")
	if err != nil {
		return s, fmt.Errorf("list the mounts: %w", err)
	}
	s.VolumeGroups = lines(groups)
	s.Volumes = lines(volumes)
	s.DeviceMapper = slices.DeleteFunc(lines(entries), func(name string) bool { return name == "No devices found" })
	for _, line := range lines(loops) {
		s.Loops = append(s.Loops, strings.Replace(line, " ", " on ", 1))
	}
	s.Mounts, err = parseMounts(mounts, below)
	return s, err
}

// lines returns the trimmed, sorted lines that are not empty.
func lines(text string) []string {
	var result []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			result = append(result, line)
		}
	}
	slices.Sort(result)
	return result
}

// parseMounts reads the format of /proc/self/mountinfo, see proc(5).
func parseMounts(text string, below []string) ([]string, error) {
	var mounts []string
	for scanner := bufio.NewScanner(strings.NewReader(text)); scanner.Scan(); {
		left, right, ok := strings.Cut(scanner.Text(), " - ")
		before, after := strings.Fields(left), strings.Fields(right)
		if !ok || len(before) < 5 || len(after) < 2 {
			return nil, fmt.Errorf("mountinfo: a line that cannot be read: %q", scanner.Text())
		}
		if target := before[4]; isBelow(target, below) {
			mounts = append(mounts, fmt.Sprintf("%s (%s of %s)", target, after[0], after[1]))
		}
	}
	slices.Sort(mounts)
	return mounts, nil
}

func isBelow(target string, folders []string) bool {
	for _, folder := range folders {
		if target == folder || strings.HasPrefix(target, strings.TrimSuffix(folder, "/")+"/") {
			return true
		}
	}
	return len(folders) == 0
}

// Compare says, a line each, what is there after that was not before and what is
// gone. Nothing means that the two are alike.
func Compare(before, after Snapshot) []string {
	var differences []string
	compare := func(what string, before, after []string) {
		was, is := count(before), count(after)
		for _, name := range slices.Sorted(maps.Keys(is)) {
			if is[name] > was[name] {
				differences = append(differences, fmt.Sprintf("left behind: %s %s", what, name))
			}
		}
		for _, name := range slices.Sorted(maps.Keys(was)) {
			if was[name] > is[name] {
				differences = append(differences, fmt.Sprintf("gone: %s %s", what, name))
			}
		}
	}
	compare("physical volume", before.VolumeGroups, after.VolumeGroups)
	compare("logical volume", before.Volumes, after.Volumes)
	compare("device-mapper entry", before.DeviceMapper, after.DeviceMapper)
	compare("loop device", before.Loops, after.Loops)
	compare("mount", before.Mounts, after.Mounts)
	return differences
}

func count(names []string) map[string]int {
	counts := make(map[string]int, len(names))
	for _, name := range names {
		counts[name]++
	}
	return counts
}
