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

// Holder is a mount of a device in another mount namespace, with a process
// there.
type Holder struct {
	// PID is as seen in Proc.
	PID     int
	Process string
	// The Pod's UID and the container's id, or empty if the control group does
	// not show them.
	Pod, Container string
	// Path is the mount point as the process sees it.
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

// ErrHostUnseen means that only processes of our own container are visible.
var ErrHostUnseen = errors.New("no process of the host is seen")

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

// Holders implements Interface by reading one mount table per mount namespace.
// It identifies a namespace by the id of its first mount, which is unique:
// comparing the namespaces themselves needs more privileges than reading their
// tables.
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
			continue // it has ended, or its namespace is known
		}
		seen[id] = true
		if _, mounts, err := readTable(table); err == nil {
			others = append(others, namespace{pid, mounts})
		}
	}
	return own, others, nil
}

// seesHost fails if Proc shows only our own container. A process seen from
// outside has several numbers in NSpid, one per level of namespaces; on the
// host itself kthreadd is visible.
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

// place is where a mount is attached: a path in a file system, and the peer
// groups of the mount there.
type place struct {
	device       Device
	path         string
	shared, from string
}

// placeOf returns the place of m, or of the lowest layer of its stack.
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

// group returns the id of the peer group that tag names, or "".
func group(m *mountinfo.Info, tag string) string {
	for _, field := range strings.Fields(m.Optional) {
		if number, ok := strings.CutPrefix(field, tag); ok {
			return number
		}
	}
	return ""
}

// goingWith returns a test for mounts in other namespaces that vanish when ours
// at leaving is unmounted. Those have the same place, in a mount that receives
// events from our parent mount.
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

// receiversOf returns the peer groups that receive events of one, directly or
// through others.
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

// Parts of a control group's path, with the cgroupfs and the systemd driver.
var (
	podGroup       = regexp.MustCompile(`pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})`)
	containerGroup = regexp.MustCompile(`[0-9a-f]{64}`)
)

// holder omits whatever cannot be read: the process may have ended.
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

// ParseGroup returns the Pod's UID and the container's id from a
// /proc/PID/cgroup file, or empty strings.
func ParseGroup(content string) (pod, container string) {
	if match := podGroup.FindStringSubmatch(content); match != nil {
		pod = strings.ReplaceAll(match[1], "_", "-")
	}
	return pod, containerGroup.FindString(content)
}
