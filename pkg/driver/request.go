package driver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/filesystem"
)

// maxPath is Linux' PATH_MAX without the terminator.
const maxPath = 4095

// volumeIDs are wider than what lvmd mints, so that an unknown volume is
// answered with NotFound and only what could do harm with InvalidArgument.
var volumeIDs = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

func invalid(field, format string, args ...any) error {
	return &failure{codes.InvalidArgument, fmt.Errorf("%s: %w", field, fmt.Errorf(format, args...))}
}

func checkVolumeID(id string) error {
	switch {
	case id == "":
		return invalid("volume_id", "a value is required")
	case !volumeIDs.MatchString(id):
		return invalid("volume_id", "%.140q is not allowed: 1 to 128 characters of [A-Za-z0-9._-] are", id)
	}
	return nil
}

// checkPath accepts paths strictly below the kubelet's directory without
// symbolic links on the way: a mount, or worse the removal after it, shall
// never land anywhere else. It is here to say clearly what is wrong; that a
// link which appears later is not followed either is the doing of package
// nofollow.
func (n *Node) checkPath(field, path string) error {
	dir := n.options.KubeletDir
	switch {
	case path == "":
		return invalid(field, "a value is required")
	case len(path) > maxPath:
		return invalid(field, "the path has %d bytes: allowed are %d", len(path), maxPath)
	case strings.ContainsFunc(path, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return invalid(field, "%q has control characters", path)
	case !filepath.IsAbs(path) || filepath.Clean(path) != path:
		return invalid(field, "%q is not allowed: an absolute path without . and .. is", path)
	case !strings.HasPrefix(path, dir+"/"):
		return invalid(field, "%q is not allowed: paths below %s are", path, dir)
	}
	// The last component is left out: it may be a mount whose device is dead,
	// and is never followed by what we do with it.
	for at := len(dir) + 1; ; {
		slash := strings.IndexByte(path[at:], '/')
		if slash < 0 {
			return nil
		}
		at += slash
		info, err := os.Lstat(path[:at])
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return fmt.Errorf("%s: %w", field, err)
		case info.Mode()&fs.ModeSymlink != 0:
			return invalid(field, "%q is not allowed: %s is a symbolic link", path, path[:at])
		case !info.IsDir():
			return invalid(field, "%q is not allowed: %s is not a directory", path, path[:at])
		}
		at++
	}
}

// capability is a checked CSI volume capability.
type capability struct {
	block bool
	// readOnly: nobody writes, by access mode or by mount option.
	readOnly bool
	// exclusive: one target path at a time.
	exclusive bool
	// fsType is empty when any will do.
	fsType string
	flags  []string
}

func checkCapability(c *csi.VolumeCapability) (capability, error) {
	const field = "volume_capability"
	if c == nil {
		return capability{}, invalid(field, "a value is required")
	}
	var k capability
	switch c.GetAccessMode().GetMode() {
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER:
		k.exclusive = true
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY:
		k.readOnly = true
	default:
		return capability{}, invalid(field+".access_mode", "%s is not supported: a volume is used on one node, "+
			"ReadWriteOnce and ReadWriteOncePod are", c.GetAccessMode().GetMode())
	}
	switch {
	case c.GetBlock() != nil:
		k.block = true
	case c.GetMount() != nil:
		m := c.GetMount()
		k.fsType, k.flags = m.GetFsType(), m.GetMountFlags()
		k.readOnly = k.readOnly || readOnlyFlags(k.flags)
		if m.GetVolumeMountGroup() != "" {
			return capability{}, invalid(field+".mount.volume_mount_group", "it is left to the kubelet: no value is allowed")
		}
		if k.fsType != "" {
			if _, err := filesystem.ParseType(k.fsType); err != nil {
				return capability{}, invalid(field+".mount.fs_type", "%w", err)
			}
		}
	default:
		return capability{}, invalid(field+".access_type", "a value is required: block or mount")
	}
	return k, nil
}

// readOnlyFlags tells whether mount flags mount read-only; the last one counts.
func readOnlyFlags(flags []string) bool {
	for _, o := range slices.Backward(filesystem.SplitOptions(strings.Join(flags, ","))) {
		if o == "ro" || o == "rw" {
			return o == "ro"
		}
	}
	return false
}

// fits checks the capability against the volume.
func (k capability) fits(v *lvmdv1.Volume) error {
	const field = "volume_capability"
	block := v.GetMode() == lvmdv1.VolumeMode_VOLUME_MODE_BLOCK
	switch {
	case k.block && !block:
		return invalid(field, "block access to volume %s is not allowed: it was created with a file system", v.GetId())
	case !k.block && block:
		return invalid(field, "mount access to volume %s is not allowed: it was created as a raw block device", v.GetId())
	case k.fsType != "" && k.fsType != v.GetFsType():
		return invalid(field+".mount.fs_type", "%q is not allowed: volume %s has %s", k.fsType, v.GetId(), v.GetFsType())
	}
	return nil
}
