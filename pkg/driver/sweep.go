package driver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/driver/mount"
	"github.com/carve-csi/carve/pkg/driver/nofollow"
	"github.com/carve-csi/carve/pkg/luks"
)

// mountedVolume finds a volume's id in the name that device-mapper has for a
// logical volume: group and volume joined by a hyphen, of which an id has none.
// encryptedVolume and openVolume find it in the name of the device that shows an
// encrypted volume's plain text.
var (
	mountedVolume   = regexp.MustCompile(`-(cv[a-z0-9]{26})$`)
	encryptedVolume = regexp.MustCompile(`^carve\.crypt\.(cv[a-z0-9]{26})$`)
	openVolume      = regexp.MustCompile(`^` + regexp.QuoteMeta(luks.MappingPrefix) + `(cv[a-z0-9]{26})$`)
)

// How device-mapper's UUIDs begin of logical volumes, and of the devices through
// which lvmd encrypts.
const (
	volumeUUID = "LVM-"
	sealedUUID = "CARVE-CRYPT-"
)

// volumeOf returns the id of the volume of ours that a device-mapper device is,
// or "".
func volumeOf(name, uuid string) string {
	pattern := mountedVolume
	switch {
	case strings.HasPrefix(uuid, sealedUUID):
		pattern = encryptedVolume
	case strings.HasPrefix(uuid, luks.UUIDPrefix):
		pattern = openVolume
	case !strings.HasPrefix(uuid, volumeUUID):
		return ""
	}
	if match := pattern.FindStringSubmatch(name); match != nil {
		return match[1]
	}
	return ""
}

// record is the file in which the kubelet notes what it has asked, or is about
// to ask, a CSI driver for. It writes it before the call and removes it when
// the mount is gone, so without it no call will ever come for the path.
const record = "vol_data.json"

// sweepInterval is how often it is looked for what leaked.
const sweepInterval = 5 * time.Minute

// leak is a path at which only an earlier life can have left something.
type leak struct {
	path string
	// kind is "published" or "staged".
	kind string
	// record is where the kubelet's note on the path would be.
	record string
	// users is the directory below which layers of the same device mean that
	// the path is in use.
	users string
	// order: what is published goes before what is staged.
	order int
}

// Sweep takes off what an earlier life left mounted. A layer is removed only if
// it is certainly ours and certainly unused, which is when all of this holds:
//
//   - it is at a path of the form that the kubelet gives to CSI drivers: a
//     Pod's volume, the publish path of a raw block volume, or a staging path
//     with this driver's name in it;
//   - it shows the whole of a volume with an id of ours;
//   - the kubelet has no record beside the path. It has one from before the
//     first call until after the last, restarts included; it takes off by
//     itself what it has a record of;
//   - the kubelet's records are where they are looked for: there is a Pod, at least
//     one record of whatever driver, and nothing unknown beside the path;
//   - nothing else uses it: no container's subpath of a Pod's volume, no layer of
//     any kind for a staging path, and no mount in another mount namespace, such as
//     a container's, that would stay;
//   - no call for the volume runs, and the kernel does not find it busy.
//
// Then it closes encrypted volumes that nothing has open and the kubelet has no
// record of, see sweepMappings.
//
// It asks nobody, so it can run whatever state lvmd is in, at the same time as
// calls are served. A volume that was deleted in the meantime is free for
// wiping afterwards.
func (n *Node) Sweep(ctx context.Context) {
	points, err := n.options.Mounts.Below(n.options.KubeletDir)
	if err != nil {
		n.options.Log.Error("cannot look for mounts that leaked", "error", err)
		return
	}
	var leaks []leak
	seen := map[string]bool{}
	for _, p := range points {
		if l, ok := n.leakAt(p.Path); ok && !seen[p.Path] {
			seen[p.Path] = true
			leaks = append(leaks, l)
		}
	}
	slices.SortStableFunc(leaks, func(a, b leak) int { return a.order - b.order })
	n.sweepMounts(ctx, leaks)
	n.sweepMappings(ctx)
}

// SweepRepeatedly sweeps at once, and again and again until ctx is done: what
// could not be judged, or was in use, may have become certain.
func (n *Node) SweepRepeatedly(ctx context.Context) {
	ticker := time.NewTicker(sweepInterval)
	defer ticker.Stop()
	for {
		n.Sweep(ctx)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (n *Node) sweepMounts(ctx context.Context, leaks []leak) {
	for _, l := range leaks {
		if ctx.Err() != nil {
			return
		}
		id, removed, err := n.sweep(l)
		switch {
		case err != nil:
			n.options.Metrics.swept(l.kind, "kept")
			n.options.Log.Warn("a mount that leaked is left alone", "volume", id, "path", l.path, "error", err)
		case removed:
			n.options.Metrics.swept(l.kind, "removed")
			n.options.Log.Info("removed a mount that leaked", "volume", id, "path", l.path)
		}
	}
}

// leakAt tells from a path's form and the kubelet's record whether it may have
// leaked.
func (n *Node) leakAt(path string) (leak, bool) {
	relative, below := strings.CutPrefix(path, n.options.KubeletDir+"/")
	if !below {
		return leak{}, false
	}
	dir := n.options.KubeletDir
	part := strings.Split(relative, "/")
	l := leak{path: path, kind: "published", record: filepath.Join(filepath.Dir(path), record)}
	switch {
	case len(part) == 6 && part[0] == "pods" && part[2] == "volumes" && part[3] == "kubernetes.io~csi" && part[5] == "mount":
		l.users = filepath.Join(dir, "pods", part[1], "volume-subpaths")
	case len(part) == 7 && strings.HasPrefix(relative, "plugins/kubernetes.io/csi/volumeDevices/publish/"):
		l.users = dir
		l.record = filepath.Join(dir, "plugins/kubernetes.io/csi/volumeDevices", part[5], "data", record)
	case len(part) == 6 && strings.HasPrefix(relative, "plugins/kubernetes.io/csi/"+names.Driver+"/") && part[5] == "globalmount":
		l.kind, l.users, l.order = "staged", dir, 1
	default:
		return leak{}, false
	}
	_, err := os.Lstat(l.record)
	return l, errors.Is(err, fs.ErrNotExist)
}

// sweep takes one leak off, unless it turns out to be none; then it changes
// nothing and returns false.
func (n *Node) sweep(l leak) (id string, removed bool, err error) {
	device, ok, err := n.shownAt(l.path)
	if err != nil || !ok {
		return "", false, err
	}
	name, uuid, err := n.options.Mounts.Mapped(device)
	if err != nil {
		return "", false, err
	}
	if id = volumeOf(name, uuid); id == "" {
		return "", false, nil
	}
	release, err := n.lock(id)
	if err != nil {
		return id, false, err
	}
	defer release()
	// Under the lock once more: a call may have come meanwhile. One that comes
	// from now on is answered with Aborted, and comes again.
	if _, still := n.leakAt(l.path); !still {
		return id, false, nil
	}
	if again, ok, err := n.shownAt(l.path); err != nil || !ok || again != device {
		return id, false, err
	}
	if err := n.believeAbsence(l); err != nil {
		return id, false, err
	}
	if err := n.refuseUsed(device, l); err != nil {
		return id, false, err
	}
	if err := n.options.Mounts.Off(l.path); err != nil {
		return id, false, err
	}
	if l.kind == "published" {
		if err := nofollow.Remove(n.options.KubeletDir, l.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return id, false, fmt.Errorf("it is off, but its path is left: %w", err)
		}
	}
	return id, true, nil
}

// shownAt returns the device of the layers at a path. False: nothing is there,
// or not only the whole of one device.
func (n *Node) shownAt(path string) (mount.Device, bool, error) {
	points, err := n.options.Mounts.Below(filepath.Dir(path))
	if err != nil {
		return mount.Device{}, false, err
	}
	var device mount.Device
	found := false
	for _, p := range points {
		if p.Path != path {
			continue
		}
		shown, whole := n.deviceShown(p)
		if !whole || found && shown != device {
			return mount.Device{}, false, nil
		}
		device, found = shown, true
	}
	return device, found, nil
}

// deviceShown returns the device behind a layer. False: it shows a part of a
// file system.
func (n *Node) deviceShown(p mount.Point) (mount.Device, bool) {
	if memory(p) {
		at, err := n.options.Mounts.At(p.Path)
		return at.Device, err == nil && at.Node
	}
	return p.Device, p.Root == "/"
}

// memory tells whether a layer is of a file system of the kernel's memory, in
// which device nodes lie. It answers always.
func memory(p mount.Point) bool { return p.FSType == "devtmpfs" || p.FSType == "tmpfs" }

// refuseUsed fails if a leak's device is in use otherwise, here or in another mount
// namespace. A device node holds nothing in another one.
func (n *Node) refuseUsed(device mount.Device, l leak) error {
	user, err := n.userOf(device, l)
	if err == nil && user != "" {
		err = fmt.Errorf("it is in use at %s", user)
	}
	if err != nil {
		return err
	}
	inUse, err := n.options.Mounts.InUse(device)
	if err != nil || !inUse {
		return err
	}
	holders, err := n.options.Mounts.Holders(device, l.path)
	switch {
	case err != nil:
		return fmt.Errorf("it is not known whether a container uses it: %w", err)
	case len(holders) > 0:
		return fmt.Errorf("it is in use: %s", holders[0])
	}
	return nil
}

// userOf returns a path at which a leak's device is in use otherwise, or "".
func (n *Node) userOf(device mount.Device, l leak) (string, error) {
	points, err := n.options.Mounts.Below(l.users)
	if err != nil {
		return "", err
	}
	for _, p := range points {
		if p.Path == l.path {
			continue
		}
		if shown, whole := n.deviceShown(p); shown == device && (whole || !memory(p)) {
			return p.Path, nil
		}
	}
	return "", nil
}
