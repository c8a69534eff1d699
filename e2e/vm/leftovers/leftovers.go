// Package leftovers finds what storage code leaves behind in a machine: it takes
// snapshots of the volume groups, logical volumes, device-mapper entries, stale names
// in /dev, loop devices, mounts and processes, and compares two of them. It only looks, with the
// administrator's commands, and never cleans up.
package leftovers

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"
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
	// DeviceMapper has the names of device-mapper entries. Those of a thin pool that is
	// among the volumes are left out: LVM renames the pool's entry when the first volume
	// is made in it, puts one with the pool's name above, and keeps both.
	DeviceMapper []string
	// Stale has the names in /dev that lead to no device-mapper device: nodes and links of volumes
	// that are gone, and empty directories. LVM makes no volume group of the name of a directory.
	Stale []string
	// Loops has "DEVICE on FILE".
	Loops []string
	// Mounts has "TARGET (TYPE of SOURCE)"; mounts stacked on one target are
	// entries each.
	Mounts []string
	// Processes has the arguments of all processes but the kernel's own.
	Processes []string
}

// lvmConfig makes LVM look at the disks themselves and leave no trace of it.
const lvmConfig = `activation{udev_sync=0 udev_rules=0} devices{use_devicesfile=0 obtain_device_list_from_udev=0 external_device_info_source="none" scan_lvs=0} backup{backup=0 archive=0}`

// marker begins the line before the output of each of the script's commands.
const marker = "==== "

// look is one script for all, because a machine may take longer to start a command than
// to run it. Its own processes are those whose parent is the script or that are it.
const look = `set -e
echo "` + marker + `pvs"; pvs --noheadings --separator " on " -o vg_name,pv_name --config "$1"
echo "` + marker + `lvs"; lvs --noheadings --separator / -o vg_name,lv_name,lv_attr --config "$1"
echo "` + marker + `dmsetup"; dmsetup info -c --noheadings -o name
echo "` + marker + `dev"; find /dev -maxdepth 2 -path "/dev/mapper/*" ! -name control -printf "node %p\n" \
	-o -type l -lname "/dev/mapper/*" -printf "link %p %l\n" -o -type l -lname "../dm-*" -xtype l -printf "dangling %p\n" \
	-o -type d -empty -printf "empty %p\n" || true # what goes meanwhile
echo "` + marker + `losetup"; losetup --noheadings --raw -O NAME,BACK-FILE
echo "` + marker + `mountinfo"; cat /proc/self/mountinfo
echo "` + marker + `ps $$"; ps -ww -e -o pid=,ppid=,stat=,args=`

// Take takes a snapshot. Mounts are those at or below one of the folders below,
// all where none is given.
func Take(ctx context.Context, run Runner, below ...string) (Snapshot, error) {
	var s Snapshot
	output, err := run.Output(ctx, "sh", "-c", look, "sh", lvmConfig)
	if err != nil {
		return s, fmt.Errorf("look at the machine: %w", err)
	}
	parts := map[string]string{}
	var script string
	for _, part := range strings.Split("\n"+output, "\n"+marker)[1:] {
		title, content, _ := strings.Cut(part, "\n")
		name, pid, _ := strings.Cut(title, " ")
		parts[name], script = content, pid
	}
	for _, name := range []string{"pvs", "lvs", "dmsetup", "dev", "losetup", "mountinfo", "ps"} {
		if _, ok := parts[name]; !ok {
			return s, fmt.Errorf("look at the machine: there is no output of %s in %q", name, output)
		}
	}
	s.VolumeGroups = lines(parts["pvs"])
	pools := s.readVolumes(parts["lvs"])
	mapped := lines(parts["dmsetup"])
	if s.Stale, err = readStale(parts["dev"], mapped, parts["mountinfo"]); err != nil {
		return s, err
	}
	s.DeviceMapper = slices.DeleteFunc(mapped, func(name string) bool {
		return name == "No devices found" || slices.Contains(pools, strings.TrimSuffix(name, "-tpool"))
	})
	for _, line := range lines(parts["losetup"]) {
		s.Loops = append(s.Loops, strings.Replace(line, " ", " on ", 1))
	}
	s.Processes = readProcesses(parts["ps"], script)
	s.Mounts, err = parseMounts(parts["mountinfo"], below)
	return s, err
}

// readVolumes reads lines of "VG/LV/ATTRIBUTES", and returns the device-mapper names of
// the thin pools among them.
func (s *Snapshot) readVolumes(text string) (pools []string) {
	escape := func(name string) string { return strings.ReplaceAll(name, "-", "--") }
	for _, line := range lines(text) {
		group, rest, _ := strings.Cut(line, "/")
		volume, attributes, _ := strings.Cut(rest, "/")
		s.Volumes = append(s.Volumes, group+"/"+volume)
		if strings.HasPrefix(attributes, "t") { // See lvs(8), lv_attr.
			pools = append(pools, escape(group)+"-"+escape(volume))
		}
	}
	return pools
}

// readStale reads lines of "KIND PATH [TARGET]" of names in /dev, and returns those that lead to none
// of the mapped devices. An empty directory may be the root of a mount, and counts only in /dev itself.
func readStale(text string, mapped []string, mountinfo string) ([]string, error) {
	mounts, err := parseMounts(mountinfo, []string{"/dev"})
	if err != nil {
		return nil, err
	}
	var stale []string
	for _, line := range lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			return nil, fmt.Errorf("names in /dev: a line that cannot be read: %q", line)
		}
		kind, name := fields[0], fields[1]
		var gone bool
		switch kind {
		case "node", "link":
			gone = !slices.Contains(mapped, path.Base(fields[len(fields)-1]))
		case "empty":
			gone = path.Dir(name) == "/dev" && !slices.ContainsFunc(mounts, func(m string) bool { return strings.HasPrefix(m, name+" ") })
		default: // dangling
			gone = true
		}
		if gone {
			stale = append(stale, name)
		}
	}
	return stale, nil
}

// readProcesses reads lines of "PID PARENT STATE ARGUMENTS". It leaves out the kernel's
// threads, the script with what it started, and processes that have ended.
func readProcesses(text, script string) []string {
	const kernel = "2" // kthreadd
	var processes []string
	for _, line := range lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 4 || strings.HasPrefix(fields[2], "Z") {
			continue
		}
		pid, parent := fields[0], fields[1]
		if pid != kernel && parent != kernel && pid != script && parent != script {
			processes = append(processes, strings.Join(fields[3:], " "))
		}
	}
	slices.Sort(processes)
	return processes
}

// leaving is how long Left waits for what is on its way out: a process that was killed is
// there until the kernel has freed its memory, which takes long on a busy host.
const leaving = time.Minute

// Left compares what there is in the machine with what there was before. Where they
// differ it looks again for a while, and returns the differences that stay. Where before
// has no processes, they are not compared: systemd and udevd start and end theirs at any
// time.
func Left(ctx context.Context, run Runner, before Snapshot, below ...string) ([]string, error) {
	for end := time.Now().Add(leaving); ; {
		after, err := Take(ctx, run, below...)
		if err != nil {
			return nil, err
		}
		if before.Processes == nil {
			after.Processes = nil
		}
		differences := Compare(before, after)
		if len(differences) == 0 || time.Now().After(end) {
			return differences, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(500 * time.Millisecond):
		}
	}
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
	compare("stale name", before.Stale, after.Stale)
	compare("loop device", before.Loops, after.Loops)
	compare("mount", before.Mounts, after.Mounts)
	compare("process", before.Processes, after.Processes)
	return differences
}

func count(names []string) map[string]int {
	counts := make(map[string]int, len(names))
	for _, name := range names {
		counts[name]++
	}
	return counts
}
