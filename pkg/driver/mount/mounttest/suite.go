// Package mounttest is the test suite for mount.Interface. Both the kernel and the
// fake pass it.
package mounttest

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/carve-csi/carve/pkg/driver/mount"
	"github.com/carve-csi/carve/pkg/must"
)

// Harness is an implementation with a device to mount.
type Harness struct {
	mount.Interface
	// Node is the path of Device's node. The device has Size bytes and an empty
	// file system of FSType ("ext4" or "btrfs").
	Node   string
	FSType string
	Device mount.Device
	Size   int64
	// Busy keeps the layer at path busy until release is called.
	Busy   func(t *testing.T, path string) (release func())
	Freeze func(t *testing.T, path string)
}

// Run runs the suite. Each case starts and ends without mounts.
func Run(t *testing.T, h Harness) {
	cases := []struct {
		name string
		run  func(*testing.T, Harness)
	}{
		{"a mounted file system is seen and unmounted", mountAndUnmount},
		{"a file system can be mounted read-only", mountReadOnly},
		{"a mount can be bound to further paths", bindMount},
		{"a bound mount can be read-only while others are not", bindReadOnly},
		{"a device node can be bound to a file", bindNode},
		{"unmount removes all layers", unmountRemovesAll},
		{"unmount of what is not mounted succeeds", unmountOfNothing},
		{"unmount of a busy layer fails", unmountOfBusy},
		{"what is mounted below a layer is unmounted before it", unmountBelow},
		{"a frozen file system is in use until it is thawed", thaw},
		{"what is not mounted is seen as such", nothingMounted},
		{"what cannot be mounted is an error and leaves nothing", cannotMount},
		{"a symbolic link is never followed", links},
		{"the table lists layers below a directory only", below},
		{"usage is plausible", usage},
		{"a node is distinguished from what is none", node},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { c.run(t, h) })
	}
}

func mountAndUnmount(t *testing.T, h Harness) {
	dir := h.dir(t, "a")
	must.Succeed(t, h.Mount(mount.Source{Node: h.Node}, dir, h.FSType, []string{"noatime"}))
	h.wantAt(t, dir, mount.State{Mounted: true, Device: h.Device})
	points := must.Get(h.Below(filepath.Dir(dir)))(t)
	if len(points) != 1 || points[0].Path != dir || points[0].Device != h.Device || points[0].Root != "/" ||
		points[0].FSType != h.FSType || !slices.Contains(points[0].Options, "rw") {
		t.Errorf("got %+v", points)
	}
	must.Succeed(t, h.Unmount(dir))
	h.wantAt(t, dir, mount.State{})
}

func mountReadOnly(t *testing.T, h Harness) {
	dir := h.dir(t, "a")
	must.Succeed(t, h.Mount(mount.Source{Node: h.Node}, dir, h.FSType, []string{"ro", "nosuid"}))
	h.wantAt(t, dir, mount.State{Mounted: true, Device: h.Device, ReadOnly: true})
	must.Succeed(t, h.Unmount(dir))
}

func bindMount(t *testing.T, h Harness) {
	a, b := h.dir(t, "a"), h.dir(t, "b")
	must.Succeed(t, h.Mount(mount.Source{Node: h.Node}, a, h.FSType, nil))
	must.Succeed(t, h.Bind(a, b, false))
	h.wantAt(t, b, mount.State{Mounted: true, Device: h.Device})
	must.Succeed(t, h.Unmount(a))
	h.wantAt(t, a, mount.State{})
	h.wantAt(t, b, mount.State{Mounted: true, Device: h.Device})
	must.Succeed(t, h.Unmount(b))
}

func bindReadOnly(t *testing.T, h Harness) {
	a, b, c := h.dir(t, "a"), h.dir(t, "b"), h.dir(t, "c")
	must.Succeed(t, h.Mount(mount.Source{Node: h.Node}, a, h.FSType, nil))
	must.Succeed(t, h.Bind(a, b, true))
	h.wantAt(t, a, mount.State{Mounted: true, Device: h.Device})
	h.wantAt(t, b, mount.State{Mounted: true, Device: h.Device, ReadOnly: true})
	must.Succeed(t, h.Bind(b, c, false))
	h.wantAt(t, c, mount.State{Mounted: true, Device: h.Device, ReadOnly: true})
	for _, dir := range []string{c, b, a} {
		must.Succeed(t, h.Unmount(dir))
	}
}

func bindNode(t *testing.T, h Harness) {
	for _, readOnly := range []bool{false, true} {
		file := filepath.Join(t.TempDir(), "node")
		must.Succeed(t, os.WriteFile(file, nil, 0o600))
		must.Succeed(t, h.Bind(h.Node, file, readOnly))
		h.wantAt(t, file, mount.State{Mounted: true, Device: h.Device, Node: true, ReadOnly: readOnly})
		size, err := h.NodeSize(file)
		if err != nil || size != h.Size {
			t.Errorf("size %d, %v, want %d", size, err, h.Size)
		}
		points, err := h.Below(filepath.Dir(file))
		must.Succeed(t, err)
		if len(points) != 1 || points[0].FSType != "devtmpfs" || points[0].Device == h.Device {
			t.Errorf("got %+v", points)
		}
		must.Succeed(t, h.Unmount(file))
		h.wantAt(t, file, mount.State{})
	}
}

func unmountRemovesAll(t *testing.T, h Harness) {
	a, b := h.dir(t, "a"), h.dir(t, "b")
	must.Succeed(t, h.Mount(mount.Source{Node: h.Node}, a, h.FSType, nil))
	must.Succeed(t, h.Bind(a, b, false))
	must.Succeed(t, h.Bind(a, b, true))
	must.Succeed(t, h.Bind(a, a, false))
	must.Succeed(t, h.Unmount(b))
	must.Succeed(t, h.Unmount(a))
	h.wantAt(t, a, mount.State{})
	h.wantAt(t, b, mount.State{})
}

func unmountOfNothing(t *testing.T, h Harness) {
	dir := h.dir(t, "a")
	file := filepath.Join(dir, "file")
	must.Succeed(t, os.WriteFile(file, nil, 0o600))
	for _, path := range []string{dir, file, filepath.Join(dir, "missing"), filepath.Join(file, "below")} {
		must.Succeed(t, h.Unmount(path))
	}
}

func unmountOfBusy(t *testing.T, h Harness) {
	dir := h.dir(t, "a")
	must.Succeed(t, h.Mount(mount.Source{Node: h.Node}, dir, h.FSType, nil))
	release := h.Busy(t, dir)
	if err := h.Unmount(dir); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("got %v, want busy", err)
	}
	h.wantAt(t, dir, mount.State{Mounted: true, Device: h.Device})
	release()
	must.Succeed(t, h.Unmount(dir))
}

func unmountBelow(t *testing.T, h Harness) {
	dir, user := h.dir(t, "a"), h.dir(t, "b")
	must.Succeed(t, h.Mount(mount.Source{Node: h.Node}, dir, h.FSType, nil))
	inside := filepath.Join(dir, "node")
	// The fake's files are all in one directory; a mount's own are gone by
	// then.
	t.Cleanup(func() { _ = os.Remove(inside) })
	must.Succeed(t, os.WriteFile(inside, nil, 0o600))
	must.Succeed(t, h.Bind(h.Node, inside, false))
	if err := h.Unmount(dir); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("with a mount below: %v, want EBUSY", err)
	}
	// A mount that is visible at another user's path is left.
	must.Succeed(t, os.WriteFile(filepath.Join(user, "node"), nil, 0o600))
	must.Succeed(t, h.Bind(h.Node, filepath.Join(user, "node"), false))
	var left *mount.BelowError
	if removed, err := h.UnmountBelow(dir, []string{user}); !errors.As(err, &left) || left.Path != inside || len(removed) > 0 {
		t.Errorf("got %v, %v", removed, err)
	}
	must.Succeed(t, h.Unmount(filepath.Join(user, "node")))
	removed, err := h.UnmountBelow(dir, []string{user})
	if err != nil || len(removed) != 1 || removed[0].Path != inside {
		t.Errorf("got %v, %v", removed, err)
	}
	if removed, err := h.UnmountBelow(dir, nil); err != nil || len(removed) > 0 {
		t.Errorf("where nothing is mounted below: %v, %v", removed, err)
	}
	must.Succeed(t, h.Unmount(dir))
	h.wantAt(t, dir, mount.State{})
}

func thaw(t *testing.T, h Harness) {
	dir := h.dir(t, "a")
	must.Succeed(t, h.Mount(mount.Source{Node: h.Node}, dir, h.FSType, nil))
	if was, err := h.Thaw(dir); was || err != nil {
		t.Errorf("a file system that is not frozen: %t, %v", was, err)
	}
	h.Freeze(t, dir)
	must.Succeed(t, h.Unmount(dir))
	if inUse, err := h.InUse(h.Device); !inUse || err != nil {
		t.Errorf("frozen and unmounted, in use: %t, %v", inUse, err)
	}
	must.Succeed(t, h.Mount(mount.Source{Node: h.Node}, dir, h.FSType, nil))
	if was, err := h.Thaw(dir); !was || err != nil {
		t.Errorf("a frozen file system: %t, %v", was, err)
	}
	must.Succeed(t, h.Unmount(dir))
	if inUse, err := h.InUse(h.Device); inUse || err != nil {
		t.Errorf("thawed and unmounted, in use: %t, %v", inUse, err)
	}
}

func nothingMounted(t *testing.T, h Harness) {
	dir := h.dir(t, "a")
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	must.Succeed(t, os.WriteFile(file, nil, 0o600))
	must.Succeed(t, os.Symlink("/proc", link))
	for _, path := range []string{dir, file, link, filepath.Join(dir, "missing"), filepath.Join(file, "below")} {
		h.wantAt(t, path, mount.State{})
	}
}

func cannotMount(t *testing.T, h Harness) {
	dir := h.dir(t, "a")
	file := filepath.Join(dir, "file")
	must.Succeed(t, os.WriteFile(file, nil, 0o600))
	mounted := h.dir(t, "b")
	must.Succeed(t, h.Mount(mount.Source{Node: h.Node}, mounted, h.FSType, nil))
	for name, err := range map[string]error{
		"the same a second time":    h.Mount(mount.Source{Node: h.Node}, mounted, h.FSType, nil),
		"a missing device":          h.Mount(mount.Source{Node: "/dev/carve-no-such"}, dir, h.FSType, nil),
		"a missing directory":       h.Mount(mount.Source{Node: h.Node}, filepath.Join(dir, "missing"), h.FSType, nil),
		"a file as mount point":     h.Mount(mount.Source{Node: h.Node}, file, h.FSType, nil),
		"a node over a directory":   h.Bind(h.Node, dir, false),
		"a bind to what is missing": h.Bind(h.Node, filepath.Join(dir, "missing"), false),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	must.Succeed(t, h.Unmount(mounted))
	h.wantAt(t, mounted, mount.State{})
	h.wantAt(t, dir, mount.State{})
	points, err := h.Below(filepath.Dir(dir))
	if err != nil || len(points) != 0 {
		t.Errorf("left: %+v, %v", points, err)
	}
}

func links(t *testing.T, h Harness) {
	source, outside := h.dir(t, "a"), h.dir(t, "outside")
	link := filepath.Join(t.TempDir(), "link")
	must.Succeed(t, os.Symlink(filepath.Dir(outside), link))
	must.Succeed(t, os.WriteFile(filepath.Join(filepath.Dir(outside), "file"), nil, 0o600))
	must.Succeed(t, h.Mount(mount.Source{Node: h.Node}, source, h.FSType, nil))
	through := filepath.Join(link, "outside")
	for name, err := range map[string]error{
		"mount on the way":       h.Mount(mount.Source{Node: h.Node}, through, h.FSType, nil),
		"bind on the way":        h.Bind(source, through, false),
		"bind a node on the way": h.Bind(h.Node, filepath.Join(link, "file"), false),
	} {
		if !errors.Is(err, syscall.ELOOP) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if err := h.Bind(source, link, false); err == nil {
		t.Error("bound to a link")
	}
	// Unmount does not follow a link to a mount.
	must.Succeed(t, h.Bind(source, outside, false))
	if err := h.Unmount(through); !errors.Is(err, syscall.ELOOP) {
		t.Errorf("unmount on the way: got %v", err)
	}
	if at, err := h.At(outside); err != nil || !at.Mounted {
		t.Errorf("got %+v, %v", at, err)
	}
	must.Succeed(t, h.Unmount(outside))
	must.Succeed(t, h.Unmount(source))
	h.wantAt(t, outside, mount.State{})
}

func below(t *testing.T, h Harness) {
	a := h.dir(t, "a")
	neighbour := a + "-neighbour"
	must.Succeed(t, os.Mkdir(neighbour, 0o700))
	must.Succeed(t, h.Mount(mount.Source{Node: h.Node}, a, h.FSType, nil))
	must.Succeed(t, h.Bind(a, neighbour, true))
	points, err := h.Below(a)
	if err != nil || len(points) != 0 {
		t.Errorf("below the mount itself: %+v, %v", points, err)
	}
	points, err = h.Below(filepath.Dir(a))
	must.Succeed(t, err)
	if len(points) != 2 || points[0].Path != a || points[1].Path != neighbour ||
		slices.Contains(points[0].Options, "ro") || !slices.Contains(points[1].Options, "ro") || slices.Contains(points[1].FSOptions, "ro") {
		t.Errorf("got %+v", points)
	}
	must.Succeed(t, h.Unmount(neighbour))
	must.Succeed(t, h.Unmount(a))
}

func usage(t *testing.T, h Harness) {
	dir := h.dir(t, "a")
	must.Succeed(t, h.Mount(mount.Source{Node: h.Node}, dir, h.FSType, nil))
	u := must.Get(h.Usage(dir))(t)
	if u.TotalBytes <= h.Size/2 || u.TotalBytes > h.Size || u.AvailableBytes <= 0 || u.UsedBytes < 0 ||
		u.UsedBytes+u.AvailableBytes > u.TotalBytes || (u.TotalInodes > 0) != (h.FSType != "btrfs") || u.UsedInodes+u.FreeInodes != u.TotalInodes {
		t.Errorf("got %+v", u)
	}
	must.Succeed(t, h.Unmount(dir))
}

func node(t *testing.T, h Harness) {
	if got, err := h.Interface.Node(h.Node); err != nil || got != h.Device {
		t.Errorf("got %v, %v, want %v", got, err, h.Device)
	}
	if size, err := h.NodeSize(h.Node); err != nil || size != h.Size {
		t.Errorf("size %d, %v, want %d", size, err, h.Size)
	}
	for _, path := range []string{"/dev/carve-no-such", t.TempDir(), "/dev/null"} {
		if got, err := h.Interface.Node(path); err == nil {
			t.Errorf("%s: got %v", path, got)
		}
	}
}

func (h Harness) dir(t *testing.T, name string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	must.Succeed(t, os.Mkdir(dir, 0o700))
	return dir
}

func (h Harness) wantAt(t *testing.T, path string, want mount.State) {
	t.Helper()
	if got, err := h.At(path); err != nil || got != want {
		t.Errorf("%s: got %+v, %v, want %+v", filepath.Base(path), got, err, want)
	}
}
