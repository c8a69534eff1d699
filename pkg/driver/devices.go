package driver

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/driver/csierror"
	"github.com/carve-csi/carve/pkg/driver/kubelet"
	"github.com/carve-csi/carve/pkg/driver/mount"
	"github.com/carve-csi/carve/pkg/luks"
)

type devices struct {
	mounts  mount.Interface
	kubelet kubelet.Dir
	log     *slog.Logger
}

func deviceOf(v *lvmdv1.Volume) mount.Device {
	return mount.Device{Major: v.GetDeviceMajor(), Minor: v.GetDeviceMinor()}
}

// node returns the path of a device node of the volume. If lvmd's path is
// stale, as udev lags behind, it uses the kernel's node. The number may be
// stale too if another program recreated the device, so check asks the kernel.
func (d *devices) node(v *lvmdv1.Volume) (string, error) {
	want := deviceOf(v)
	if err := d.check(v, want); err != nil {
		return "", err
	}
	found, err := d.mounts.Node(v.GetDevicePath())
	if err == nil && found == want {
		return v.GetDevicePath(), nil
	}
	kernels := fmt.Sprintf("/dev/dm-%d", want.Minor)
	if again, kernelsErr := d.mounts.Node(kernels); kernelsErr == nil && again == want {
		return kernels, nil
	}
	if err == nil {
		err = fmt.Errorf("%s stands for device %v", v.GetDevicePath(), found)
	}
	return "", csierror.New(codes.Unavailable, fmt.Errorf("no device node for volume %s, device %v: %w", v.GetId(), want, err))
}

// check rejects a device that the kernel does not know as the volume's. Its
// result holds while the device is in use.
func (d *devices) check(v *lvmdv1.Volume, device mount.Device) error {
	name, uuid, err := d.mounts.Mapped(device)
	if err != nil {
		return fmt.Errorf("volume %s: %w", v.GetId(), err)
	}
	if volumeOf(name, uuid) == v.GetId() && strings.HasPrefix(uuid, uuidPrefix(v)) {
		return nil
	}
	is := "no such device"
	if name != "" {
		is = fmt.Sprintf("%q", name)
	}
	return csierror.New(codes.Unavailable,
		fmt.Errorf("device %v is not volume %s any more, the kernel has %s there: lvmd will notice", device, v.GetId(), is))
}

// uuidPrefix returns the start of the device-mapper UUID of the volume's
// device. An encrypted volume has two devices.
func uuidPrefix(v *lvmdv1.Volume) string {
	switch {
	case v.GetDevicePath() == luks.Path(v.GetId()):
		return luks.UUIDPrefix
	case v.GetEncryption() == names.EncryptionEphemeral:
		return sealedUUID
	}
	// LVM joins the UUIDs of group and volume, without hyphens.
	return volumeUUID + strings.ReplaceAll(v.GetVgUuid(), "-", "")
}

// Device-mapper names: of a logical volume, "group-volume" with no hyphen in
// the id; of lvmd's encryption; of a LUKS mapping.
var (
	mountedVolume   = regexp.MustCompile(`-(cv[a-z0-9]{26})$`)
	encryptedVolume = regexp.MustCompile(`^carve\.crypt\.(cv[a-z0-9]{26})$`)
	openVolume      = regexp.MustCompile(`^` + regexp.QuoteMeta(luks.MappingPrefix) + `(cv[a-z0-9]{26})$`)
)

const (
	volumeUUID = "LVM-"
	sealedUUID = "CARVE-CRYPT-"
)

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

// layersOf returns the paths below the kubelet's directory that show a whole
// device: its file system from the root, or a device node. It ignores subpaths,
// which come and go with a target path.
func (d *devices) layersOf(device mount.Device) ([]string, error) {
	points, err := d.mounts.Below(string(d.kubelet))
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, p := range points {
		if shown, whole := d.deviceShown(p); whole && shown == device {
			paths = append(paths, p.Path)
		}
	}
	return paths, nil
}

// shownAt returns the device shown at a path, or false if no layer is there, or
// not only the whole of one device.
func (d *devices) shownAt(path string) (mount.Device, bool, error) {
	points, err := d.mounts.Below(filepath.Dir(path))
	if err != nil {
		return mount.Device{}, false, err
	}
	var device mount.Device
	found := false
	for _, p := range points {
		if p.Path != path {
			continue
		}
		shown, whole := d.deviceShown(p)
		if !whole || found && shown != device {
			return mount.Device{}, false, nil
		}
		device, found = shown, true
	}
	return device, found, nil
}

// deviceShown returns false if the layer shows only a part of a file system.
func (d *devices) deviceShown(p mount.Point) (mount.Device, bool) {
	if memory(p) {
		at, err := d.mounts.At(p.Path)
		return at.Device, err == nil && at.Node
	}
	return p.Device, p.Root == "/"
}

// memory reports whether a layer belongs to an in-memory file system that may
// hold device nodes. Such a file system always answers.
func memory(p mount.Point) bool { return p.FSType == "devtmpfs" || p.FSType == "tmpfs" }

// fsOptions returns the superblock options of the topmost mount at a path.
func (d *devices) fsOptions(path string) ([]string, error) {
	points, err := d.mounts.Below(string(d.kubelet))
	if err != nil {
		return nil, err
	}
	for _, p := range slices.Backward(points) {
		if p.Path == path {
			return p.FSOptions, nil
		}
	}
	return nil, nil
}

// shown returns the state of a path at which a volume should be staged or
// published, or else NotFound, as the CSI specification requires.
func (d *devices) shown(field, path, id string) (mount.State, error) {
	if path == "" {
		return mount.State{}, csierror.Invalid(field, "a value is required")
	}
	notFound := csierror.New(codes.NotFound, fmt.Errorf("volume %s is neither staged nor published at %q", id, path))
	if !d.kubelet.Contains(path) {
		return mount.State{}, notFound
	}
	if err := d.kubelet.CheckPath(field, path); err != nil {
		return mount.State{}, err
	}
	at, err := d.mounts.At(path)
	if err != nil {
		return mount.State{}, fmt.Errorf("volume %s does not answer: %w", id, err)
	}
	if !at.Mounted {
		return mount.State{}, notFound
	}
	return at, nil
}
