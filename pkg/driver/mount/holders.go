package mount

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// Holder is a mount of a device in another mount namespace, and a process that
// runs there.
type Holder struct {
	// PID is as Proc shows it, Process the name of the process.
	PID     int
	Process string
	// Pod is the UID of the process's Pod and Container the id of its container;
	// empty where the control group does not show them.
	Pod, Container string
	// Path is where the process sees the mount.
	Path string
}

// String names the process, its Pod and its container, and the path.
func (h Holder) String() string {
	of := ""
	if h.Pod != "" {
		of += " of Pod " + h.Pod
	}
	if h.Container != "" {
		of += " in container " + h.Container
	}
	return fmt.Sprintf("process %d (%s)%s has it mounted at %s", h.PID, h.Process, of, h.Path)
}

// ErrHostUnseen says that only processes of our own container are seen.
var ErrHostUnseen = errors.New("no process of the host is seen")

// namespace is one mount namespace, by a process that runs in it.
type namespace struct {
	pid    int
	mounts []*mountinfo.Info
}

// InUse implements Interface by reading sysfs.
func (System) InUse(device Device) (bool, error) {
	name, err := blockName(device)
	if err != nil || name == "" {
		return false, err
	}
	for _, pattern := range []string{"/sys/fs/ext4/", "/sys/fs/xfs/", "/sys/fs/btrfs/*/devices/"} {
		found, err := filepath.Glob(pattern + name)
		if err != nil {
			return false, err
		}
		if len(found) > 0 {
			return true, nil
		}
	}
	return false, nil
}

// Holders implements Interface by reading the mount table of each mount namespace
// that a process runs in. A namespace is known by the number of its first mount,
// which the kernel gives to one mount only: comparing the namespaces themselves
// needs more rights than reading their tables.
func (s System) Holders(device Device, leaving string) ([]Holder, error) {
	own, others, err := s.namespaces()
	if err != nil {
		return nil, err
	}
	goes := goingWith(own, others, leaving)
	var holders []Holder
	for _, other := range others {
		for _, m := range other.mounts {
			if shows(m, device) && !goes(other.mounts, m) {
				holders = append(holders, s.holder(other.pid, m.Mountpoint))
			}
		}
	}
	return holders, nil
}

// shows reports whether a mount shows a file system that lies on the device.
func shows(m *mountinfo.Info, device Device) bool {
	has := Device{uint32(m.Major), uint32(m.Minor)}
	if m.FSType == "btrfs" {
		has = btrfsSource(m.Source, has)
	}
	return has == device
}

func (s System) proc() string {
	if s.Proc == "" {
		return "/proc"
	}
	return s.Proc
}

// namespaces returns our own mount namespace and all others.
func (s System) namespaces() (own []*mountinfo.Info, others []namespace, err error) {
	if err := s.seesHost(); err != nil {
		return nil, nil, err
	}
	ownID, own, err := readTable("/proc/self/mountinfo")
	if err != nil {
		return nil, nil, err
	}
	entries, err := os.ReadDir(s.proc())
	if err != nil {
		return nil, nil, err
	}
	seen := map[string]bool{ownID: true}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue // not a process
		}
		table := filepath.Join(s.proc(), e.Name(), "mountinfo")
		id, err := firstMount(table)
		if err != nil || id == "" || seen[id] {
			continue // It ended meanwhile, or its namespace is known.
		}
		seen[id] = true
		if _, mounts, err := readTable(table); err == nil {
			others = append(others, namespace{pid, mounts})
		}
	}
	return own, others, nil
}

// seesHost fails where Proc shows the processes of our own container only. A
// process that Proc shows from the outside has a number for each level of
// namespaces; on the host itself the kernel's own processes are seen.
func (s System) seesHost() error {
	status, err := os.ReadFile(filepath.Join(s.proc(), "self/status"))
	if err != nil {
		return fmt.Errorf("%w in %s: %w", ErrHostUnseen, s.proc(), err)
	}
	for line := range strings.Lines(string(status)) {
		if numbers, ok := strings.CutPrefix(line, "NSpid:"); ok && len(strings.Fields(numbers)) > 1 {
			return nil
		}
	}
	if comm, err := os.ReadFile(filepath.Join(s.proc(), "2/comm")); err == nil && strings.TrimSpace(string(comm)) == "kthreadd" {
		return nil
	}
	return fmt.Errorf("%w in %s", ErrHostUnseen, s.proc())
}

// firstMount returns the number of the first mount in a table.
func firstMount(table string) (string, error) {
	f, err := os.Open(table)
	if err != nil {
		return "", err
	}
	defer f.Close()
	line, err := bufio.NewReader(f).ReadString('\n')
	id, _, _ := strings.Cut(line, " ")
	return id, err
}

// readTable returns the number of the first mount in a table, and all mounts.
func readTable(table string) (first string, mounts []*mountinfo.Info, err error) {
	f, err := os.Open(table)
	if err != nil {
		return "", nil, err
	}
	defer f.Close()
	mounts, err = mountinfo.GetMountsFromReader(f, nil)
	if err != nil {
		return "", nil, fmt.Errorf("%s: %w", table, err)
	}
	if len(mounts) > 0 {
		first = strconv.Itoa(mounts[0].ID)
	}
	return first, mounts, nil
}

// place is where a mount is attached: a path of a file system, in the mounts that
// propagate to each other there.
type place struct {
	device       Device
	path         string
	shared, from string
}

// placeOf returns where a mount is attached. Of a stack it is the place of the
// lowest layer.
func placeOf(mounts []*mountinfo.Info, m *mountinfo.Info) (place, bool) {
	for range len(mounts) {
		i := slices.IndexFunc(mounts, func(p *mountinfo.Info) bool { return p.ID == m.Parent })
		if i < 0 || mounts[i] == m {
			return place{}, false
		}
		parent := mounts[i]
		if parent.Mountpoint == m.Mountpoint {
			m = parent
			continue
		}
		below := strings.TrimPrefix(m.Mountpoint, strings.TrimSuffix(parent.Mountpoint, "/"))
		return place{
			device: Device{uint32(parent.Major), uint32(parent.Minor)}, path: path.Join(parent.Root, below),
			shared: group(parent, "shared:"), from: group(parent, "master:"),
		}, true
	}
	return place{}, false
}

// group returns the number of a mount's peer group, or of that which it receives
// from; "" if there is none.
func group(m *mountinfo.Info, tag string) string {
	for _, field := range strings.Fields(m.Optional) {
		if number, ok := strings.CutPrefix(field, tag); ok {
			return number
		}
	}
	return ""
}

// goingWith returns a function that reports whether a mount in another namespace goes when ours
// at the path leaving is unmounted: it is attached to the same place of a mount
// that receives what happens to the one below ours.
func goingWith(own []*mountinfo.Info, others []namespace, leaving string) func([]*mountinfo.Info, *mountinfo.Info) bool {
	none := func([]*mountinfo.Info, *mountinfo.Info) bool { return false }
	i := slices.IndexFunc(own, func(m *mountinfo.Info) bool { return m.Mountpoint == leaving })
	if i < 0 {
		return none
	}
	at, ok := placeOf(own, own[i])
	if !ok || at.shared == "" {
		return none
	}
	receivers := receiversOf(at.shared, others)
	return func(mounts []*mountinfo.Info, m *mountinfo.Info) bool {
		its, ok := placeOf(mounts, m)
		return ok && its.device == at.device && its.path == at.path && (receivers[its.shared] || receivers[its.from])
	}
}

// receiversOf returns the peer groups that receive, directly or through others,
// what happens in one.
func receiversOf(shared string, others []namespace) map[string]bool {
	receivers := map[string]bool{shared: true}
	for grown := true; grown; {
		grown = false
		for _, other := range others {
			for _, m := range other.mounts {
				to, from := group(m, "shared:"), group(m, "master:")
				if to != "" && receivers[from] && !receivers[to] {
					receivers[to], grown = true, true
				}
			}
		}
	}
	return receivers
}

// The parts of a control group's path that name a Pod and a container, with the
// cgroupfs and the systemd driver.
var (
	podGroup       = regexp.MustCompile(`pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})`)
	containerGroup = regexp.MustCompile(`[0-9a-f]{64}`)
)

// holder names a process. What cannot be read is left out: it may have ended.
func (s System) holder(pid int, at string) Holder {
	dir := filepath.Join(s.proc(), strconv.Itoa(pid))
	h := Holder{PID: pid, Process: "unknown", Path: at}
	if comm, err := os.ReadFile(filepath.Join(dir, "comm")); err == nil {
		h.Process = strings.TrimSpace(string(comm))
	}
	groups, err := os.ReadFile(filepath.Join(dir, "cgroup"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return h
	}
	h.Pod, h.Container = ParseGroup(string(groups))
	return h
}

// ParseGroup returns the Pod's UID and the container's id from the content of a
// process's file cgroup; empty where there are none.
func ParseGroup(content string) (pod, container string) {
	if match := podGroup.FindStringSubmatch(content); match != nil {
		pod = strings.ReplaceAll(match[1], "_", "-")
	}
	return pod, containerGroup.FindString(content)
}
