// Package mountfake is an in-memory mount table for tests. Paths must exist in
// the real file system, devices need not.
package mountfake

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/carve-csi/carve/pkg/driver/mount"
	"github.com/carve-csi/carve/pkg/driver/nofollow"
)

// Table implements mount.Interface. The zero value is empty and ready to use.
type Table struct {
	mu        sync.Mutex
	nodes     map[string]node
	mapped    map[mount.Device]mapping
	busy      map[string]bool
	dead      map[mount.Device]bool
	layers    []layer
	errors    map[mount.Device]int64
	frozen    map[mount.Device]bool
	warned    map[mount.Device]int64
	hidden    map[mount.Device]error
	forced    error
	groupUUID string
	// held are mounts in other namespaces; unseen makes Holders fail.
	held   map[mount.Device][]mount.Holder
	unseen bool
	// ignore lists options that Mount drops, once those that only the next
	// Mount drops.
	ignore, once []string
}

type node struct {
	device mount.Device
	size   int64
}

type mapping struct{ name, uuid string }

type layer struct {
	mount.Point
	source   string
	node     bool
	device   mount.Device
	readOnly bool
	failed   bool
}

var _ mount.Interface = (*Table)(nil)

// AddNode adds or replaces a device node; size is in bytes. At a path of LVM or
// cryptsetup it also names the device for Mapped.
func (t *Table) AddNode(path string, device mount.Device, size int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.nodes == nil {
		t.nodes = map[string]node{}
	}
	t.nodes[path] = node{device, size}
	if m := t.mappingAt(path); m != (mapping{}) {
		if t.mapped == nil {
			t.mapped = map[mount.Device]mapping{}
		}
		t.mapped[device] = m
	}
}

// mappingAt returns device-mapper's names for the node's path: /dev/carve/NAME
// is logical volume NAME of group carve.
func (t *Table) mappingAt(path string) mapping {
	if base, ok := strings.CutPrefix(path, "/dev/carve/"); ok {
		return mapping{"carve-" + base, "LVM-" + t.groupUUID + base}
	}
	base, ok := strings.CutPrefix(path, "/dev/mapper/")
	switch {
	case !ok:
		return mapping{}
	case strings.HasPrefix(base, "carve.luks."):
		return mapping{base, "CRYPT-LUKS2-0-" + base}
	}
	return mapping{base, "CARVE-CRYPT-" + base}
}

// SetGroupUUID sets the UUID of volume group carve, initially empty. Existing
// nodes keep theirs.
func (t *Table) SetGroupUUID(uuid string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.groupUUID = strings.ReplaceAll(uuid, "-", "")
}

// RemoveNode removes the node at path, but not its mounts.
func (t *Table) RemoveNode(path string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.nodes, path)
}

// SetBusy makes Unmount of path fail with EBUSY, or stops that.
func (t *Table) SetBusy(path string, busy bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.busy == nil {
		t.busy = map[string]bool{}
	}
	t.busy[path] = busy
}

// Kill makes the device's file systems fail with EIO. They can still be
// unmounted.
func (t *Table) Kill(device mount.Device) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.dead == nil {
		t.dead = map[mount.Device]bool{}
	}
	t.dead[device] = true
}

// SetErrors sets the result of Errors.
func (t *Table) SetErrors(device mount.Device, n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.errors == nil {
		t.errors = map[mount.Device]int64{}
	}
	t.errors[device] = n
}

// HideErrors sets the error of Errors, or clears it with nil.
func (t *Table) HideErrors(device mount.Device, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.hidden == nil {
		t.hidden = map[mount.Device]error{}
	}
	t.hidden[device] = err
}

// SetWarnings sets the result of Warnings.
func (t *Table) SetWarnings(device mount.Device, n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.warned == nil {
		t.warned = map[mount.Device]int64{}
	}
	t.warned[device] = n
}

// Freeze freezes the file system on the device until it is thawed.
func (t *Table) Freeze(device mount.Device) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.frozen == nil {
		t.frozen = map[mount.Device]bool{}
	}
	t.frozen[device] = true
}

// Thaw implements mount.Interface.
func (t *Table) Thaw(path string) (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l, ok := t.top(path)
	was := ok && t.frozen[l.device]
	if was {
		delete(t.frozen, l.device)
	}
	return was, nil
}

// TurnReadOnly makes the device's file systems read-only as older kernels do
// after an error: in the options of the file system, not of its layers.
func (t *Table) TurnReadOnly(device mount.Device) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.layers {
		if l := &t.layers[i]; l.device == device && !l.node {
			l.readOnly = true
			l.FSOptions = append([]string{"ro"}, l.FSOptions[1:]...)
		}
	}
}

// FailMounts makes Mount and Bind fail with err, until called with nil.
func (t *Table) FailMounts(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forced = err
}

// DropOption makes Mount silently drop an option, as some file systems do.
func (t *Table) DropOption(option string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ignore = append(t.ignore, option)
}

// DropOptionOnce is DropOption for the next mount only.
func (t *Table) DropOptionOnce(option string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.once = append(t.once, option)
}

// Hold replaces the device's mounts in other mount namespaces.
func (t *Table) Hold(device mount.Device, holders ...mount.Holder) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.held == nil {
		t.held = map[mount.Device][]mount.Holder{}
	}
	t.held[device] = holders
}

// HideHost makes Holders fail, as without the host's /proc.
func (t *Table) HideHost() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.unseen = true
}

// InUse implements mount.Interface.
func (t *Table) InUse(device mount.Device) (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	mounted := slices.ContainsFunc(t.layers, func(l layer) bool { return l.device == device && !l.node })
	return mounted || len(t.held[device]) > 0 || t.frozen[device], nil
}

// Holders implements mount.Interface with the argument of Hold.
func (t *Table) Holders(device mount.Device, _ string) ([]mount.Holder, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.unseen {
		return nil, mount.ErrHostUnseen
	}
	return t.held[device], nil
}

// Mount implements mount.Interface.
func (t *Table) Mount(source mount.Source, path, fsType string, options []string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	n, ok := t.nodes[source.Node]
	switch {
	case t.forced != nil:
		return fmt.Errorf("mount at %s: %w", path, t.forced)
	case !ok:
		return pathError("stat", source.Node, unix.ENOENT)
	case t.dead[n.device] || t.failed(n.device):
		return fmt.Errorf("mount at %s: %w", path, &mount.KernelError{Step: "read the file system", Err: unix.EIO})
	case source.Device != mount.Device{} && source.Device != n.device:
		return fmt.Errorf("mount at %s: %w: it lies on device %v instead of %v", path, mount.ErrUnverified, n.device, source.Device)
	}
	dir, err := nofollow.Directory("", path)
	if err != nil {
		return err
	}
	dir.Close()
	if top, mounted := t.top(path); mounted && top.device == n.device {
		return pathError("mount", path, unix.EBUSY)
	}
	readOnly := slices.Contains(options, "ro")
	options = slices.DeleteFunc(slices.Clone(options), func(o string) bool {
		return slices.Contains(t.ignore, o) || slices.Contains(t.once, o)
	})
	t.once = nil
	t.layers = append(t.layers, layer{
		Point: mount.Point{
			Path: path, Device: n.device, Root: "/", FSType: fsType,
			Options: access(readOnly), FSOptions: append(access(readOnly), options...),
		},
		source: source.Node, device: n.device, readOnly: readOnly,
	})
	return nil
}

// Bind implements mount.Interface.
func (t *Table) Bind(source, path string, readOnly bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.forced != nil {
		return pathError("bind", path, t.forced)
	}
	info, err := lstat(path)
	if err != nil {
		return err
	}
	if n, ok := t.nodes[source]; ok {
		if !info.Mode().IsRegular() {
			return pathError("bind", path, unix.ENOTDIR)
		}
		t.layers = append(t.layers, layer{
			Point: mount.Point{
				Path: path, Device: mount.Device{Minor: 6}, Root: source, FSType: "devtmpfs",
				Options: access(readOnly), FSOptions: access(false),
			},
			source: source, node: true, device: n.device, readOnly: readOnly,
		})
		return nil
	}
	top, ok := t.top(source)
	if !ok {
		return pathError("bind", source, unix.EINVAL)
	}
	if !info.IsDir() {
		return pathError("bind", path, unix.ENOTDIR)
	}
	top.Path, top.readOnly = path, top.readOnly || readOnly
	top.Options = access(top.readOnly)
	t.layers = append(t.layers, top)
	return nil
}

// Unmount implements mount.Interface.
func (t *Table) Unmount(path string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	below := func(l layer) bool { return strings.HasPrefix(l.Path, path+"/") }
	if _, ok := t.top(path); ok && (t.busy[path] || slices.ContainsFunc(t.layers, below)) {
		return pathError("umount", path, unix.EBUSY)
	}
	if _, err := lstat(path); errors.Is(err, unix.ELOOP) {
		return err
	}
	t.layers = slices.DeleteFunc(t.layers, func(l layer) bool { return l.Path == path })
	return nil
}

// UnmountBelow implements mount.Interface. The fake has no propagation.
func (t *Table) UnmountBelow(path string, users []string) (removed []mount.Point, _ error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := len(t.layers) - 1; i >= 0; i-- {
		l := t.layers[i]
		relative, below := strings.CutPrefix(l.Path, path+"/")
		if !below {
			continue
		}
		for _, user := range users {
			if _, seen := t.top(user + "/" + relative); seen {
				return removed, &mount.BelowError{Point: l.Point, Reason: "it is seen at " + user + "/" + relative + " too"}
			}
		}
		if t.busy[l.Path] {
			return removed, &mount.BelowError{Point: l.Point, Reason: "it is in use"}
		}
		t.layers = slices.Delete(t.layers, i, i+1)
		removed = append(removed, l.Point)
	}
	return removed, nil
}

// At implements mount.Interface.
func (t *Table) At(path string) (mount.State, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return mount.State{}, nil
	} else if err != nil {
		return mount.State{}, err
	}
	l, ok := t.top(path)
	if !ok {
		return mount.State{}, nil
	}
	if !l.node && (t.dead[l.device] || l.failed) {
		return mount.State{}, pathError("statx", path, unix.EIO)
	}
	return mount.State{Mounted: true, Device: l.device, Node: l.node, ReadOnly: l.readOnly}, nil
}

// Below implements mount.Interface.
func (t *Table) Below(dir string) ([]mount.Point, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var points []mount.Point
	for _, l := range t.layers {
		if strings.HasPrefix(l.Path, strings.TrimSuffix(dir, "/")+"/") {
			points = append(points, l.Point)
		}
	}
	slices.SortStableFunc(points, func(a, b mount.Point) int { return cmp.Compare(a.Path, b.Path) })
	return points, nil
}

// Node implements mount.Interface.
func (t *Table) Node(path string) (mount.Device, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n, ok := t.nodes[path]
	if !ok {
		return mount.Device{}, pathError("stat", path, unix.ENOENT)
	}
	return n.device, nil
}

// Usage implements mount.Interface: a quarter is used.
func (t *Table) Usage(path string) (mount.Usage, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l, ok := t.top(path)
	switch {
	case !ok:
		return mount.Usage{}, pathError("statfs", path, unix.ENOENT)
	case t.dead[l.device]:
		return mount.Usage{}, pathError("statfs", path, unix.EIO)
	}
	size := t.nodes[l.source].size
	inodes := size >> 14
	return mount.Usage{
		TotalBytes: size, UsedBytes: size / 4, AvailableBytes: size - size/4,
		TotalInodes: inodes, UsedInodes: inodes / 4, FreeInodes: inodes - inodes/4,
	}, nil
}

// Errors implements mount.Interface.
func (t *Table) Errors(device mount.Device) (int64, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.errors[device], t.hidden[device]
}

// Warnings implements mount.Interface.
func (t *Table) Warnings(device mount.Device) (int64, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.warned[device], nil
}

// Revive makes the device work again. Failed file systems stay so until their
// last unmount.
func (t *Table) Revive(device mount.Device) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.dead, device)
	for i := range t.layers {
		t.layers[i].failed = t.layers[i].failed || t.layers[i].device == device
	}
}

// Shows reports whether any layer shows a device.
func (t *Table) Shows(device mount.Device) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.ContainsFunc(t.layers, func(l layer) bool { return l.device == device })
}

// Mapped implements mount.Interface with the names from AddNode.
func (t *Table) Mapped(device mount.Device) (name, uuid string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.mapped[device]
	return m.name, m.uuid, nil
}

// NodeSize implements mount.Interface.
func (t *Table) NodeSize(path string) (int64, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n, ok := t.nodes[path]; ok {
		return n.size, nil
	}
	if l, ok := t.top(path); ok && l.node {
		return t.nodes[l.source].size, nil
	}
	return 0, pathError("open", path, unix.ENOENT)
}

// failed reports whether a failed file system of the device is still mounted.
// The kernel has one superblock per device, so a further mount would show it.
func (t *Table) failed(device mount.Device) bool {
	return slices.ContainsFunc(t.layers, func(l layer) bool { return l.device == device && l.failed })
}

func (t *Table) top(path string) (layer, bool) {
	for _, l := range slices.Backward(t.layers) {
		if l.Path == path {
			return l, true
		}
	}
	return layer{}, false
}

// lstat rejects links on the way to path.
func lstat(path string) (os.FileInfo, error) {
	dir, _, err := nofollow.Parent("", path)
	if err != nil {
		return nil, err
	}
	dir.Close()
	return os.Lstat(path)
}

func access(readOnly bool) []string {
	if readOnly {
		return []string{"ro"}
	}
	return []string{"rw"}
}

func pathError(op, path string, err error) error {
	return &os.PathError{Op: op, Path: path, Err: err}
}
