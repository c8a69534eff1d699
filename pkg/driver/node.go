package driver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/driver/mount"
	"github.com/carve-csi/carve/pkg/luks"
)

// maxNodeID is the CSI specification's bound for a node id, in bytes.
const maxNodeID = 256

// Options configure a Node. All fields but
// MaxVolumes, InlineVolumes and InlineMaxBytes are required.
type Options struct {
	// NodeName is the node's name in Kubernetes: the CSI node id, and the value
	// of its topology key.
	NodeName string
	// MaxVolumes is how many volumes the scheduler may place on the node; zero
	// means as many as the metadata of the volume groups could hold.
	MaxVolumes int64
	// InlineVolumes lets Pods define volumes in their own specification. Those
	// that exist are removed with their Pods in any case.
	InlineVolumes bool
	// InlineMaxBytes is the largest size that a Pod may ask for in its own
	// specification; zero means no limit. Those that exist are not concerned.
	InlineMaxBytes int64
	// CheckMemory is what the check of one file system may take, in bytes, of which one
	// that takes more than a few runs at a time; zero means DefaultCheckMemory.
	CheckMemory int64
	// KubeletDir is the kubelet's root directory. Paths in requests must lie
	// below it.
	KubeletDir string
	// LVMD is asked about volumes.
	LVMD lvmdv1.LVMDClient
	// Mounts is the kernel's mount table.
	Mounts mount.Interface
	// FileSystems does what needs a superblock or a tool.
	FileSystems FileSystems
	// LUKS opens and closes encrypted volumes whose keys are kept.
	LUKS    luks.Interface
	Metrics *Metrics
	Log     *slog.Logger
}

// Node is the CSI node service. Its methods may be called concurrently.
type Node struct {
	csi.UnimplementedNodeServer

	options Options
	// life ends with the process. A repair or a growing file system outlives
	// the call that began it, as the kubelet's patience is shorter than e2fsck,
	// but not the plugin.
	life    context.Context
	locks   locks
	checker *checker
}

// New makes the node service. Long work under way is given up when ctx is
// done.
func New(ctx context.Context, o Options) (*Node, error) {
	switch {
	case o.NodeName == "":
		return nil, errors.New("the node's name is required")
	case len(o.NodeName) > maxNodeID:
		return nil, fmt.Errorf("the node's name has %d bytes: allowed are %d", len(o.NodeName), maxNodeID)
	case o.MaxVolumes < 0:
		return nil, fmt.Errorf("maximum number of volumes %d: allowed is 0 (no limit) or more", o.MaxVolumes)
	case o.InlineMaxBytes < 0:
		return nil, fmt.Errorf("largest size of inline volumes %d bytes: allowed is 0 (no limit) or more", o.InlineMaxBytes)
	case o.CheckMemory < 0:
		return nil, fmt.Errorf("memory for checks of file systems %d bytes: allowed is 0 (%d bytes) or more", o.CheckMemory, DefaultCheckMemory)
	case !filepath.IsAbs(o.KubeletDir) || filepath.Clean(o.KubeletDir) != o.KubeletDir || o.KubeletDir == "/":
		return nil, fmt.Errorf("kubelet directory %q: allowed is an absolute, clean path other than /", o.KubeletDir)
	}
	return &Node{options: o, life: ctx, checker: newChecker(o.FileSystems, o.CheckMemory)}, nil
}

// MountDirs returns the directories of the kubelet below which volumes are mounted:
// those of Pods, and that of staged and raw block volumes.
func (n *Node) MountDirs() []string {
	return []string{filepath.Join(n.options.KubeletDir, "pods"), filepath.Join(n.options.KubeletDir, "plugins/kubernetes.io/csi")}
}
