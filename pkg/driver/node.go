package driver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/driver/inline"
	"github.com/carve-csi/carve/pkg/driver/kubelet"
	"github.com/carve-csi/carve/pkg/driver/lvmdclient"
	"github.com/carve-csi/carve/pkg/driver/mount"
	"github.com/carve-csi/carve/pkg/luks"
	"github.com/carve-csi/carve/pkg/quantity"
)

// maxNodeID is the CSI specification's limit for a node id, in bytes.
const maxNodeID = 256

// Options configure a Node. All fields are required but MaxVolumes,
// SmallestVolume, InlineVolumes, InlineMaxBytes, CheckMemory, IOLimits and
// Registration.
type Options struct {
	// NodeName is the node's name in Kubernetes, used as CSI node id and
	// topology value.
	NodeName string
	// MaxVolumes limits the volumes that the scheduler places on the node. Zero
	// means as many as the metadata of the volume groups could hold.
	MaxVolumes int64
	// SmallestVolume is the smallest size that Pods claim, in bytes. If no
	// device class has space for it, the scheduler may place no more volumes on
	// the node. Zero ignores free space.
	SmallestVolume int64
	// InlineVolumes allows Pods to define volumes in their own specification.
	// Existing ones are removed with their Pods in any case.
	InlineVolumes bool
	// InlineMaxBytes is the largest size of new inline volumes; zero means no
	// limit.
	InlineMaxBytes int64
	// CheckMemory limits the memory of one file system check, in bytes. Zero
	// means DefaultCheckMemory.
	CheckMemory int64
	IOLimits    IOLimitDirs
	// Registration makes the kubelet ask again once a missing answer is known.
	// It is nil if the plugin is not registered.
	Registration *Registration
	// KubeletDir is the kubelet's root directory. Paths in requests must lie
	// below it.
	KubeletDir  string
	LVMD        lvmdv1.LVMDClient
	Mounts      mount.Interface
	FileSystems FileSystems
	LUKS        luks.Interface
	Metrics     *Metrics
	Log         *slog.Logger
}

// Node is the CSI node service. Its methods may be called concurrently.
type Node struct {
	csi.UnimplementedNodeServer

	info       *nodeInfo
	kubelet    kubelet.Dir
	volumes    lvmdclient.Client
	locks      locks
	devices    *devices
	unmounter  *unmounter
	encryption *encryption
	stager     *stager
	publisher  *publisher
	grower     *grower
	sweeper    *sweeper
	monitor    *monitor
	ioLimits   *ioLimits
	inline     *inline.Volumes
}

// New returns the node service. Background work ends when ctx is done. Repairs
// and file system growth outlive the call that started them, as e2fsck may take
// longer than the kubelet waits, but not the plugin.
func New(ctx context.Context, o Options) (*Node, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	n := &Node{kubelet: kubelet.Dir(o.KubeletDir), volumes: lvmdclient.Client{LVMDClient: o.LVMD}}
	n.info = &nodeInfo{name: o.NodeName, background: ctx, configured: o.MaxVolumes, smallest: o.SmallestVolume, volumes: n.volumes,
		registration: o.Registration, log: o.Log}
	n.devices = &devices{mounts: o.Mounts, kubelet: n.kubelet, log: o.Log}
	n.unmounter = &unmounter{mounts: o.Mounts, kubelet: n.kubelet, devices: n.devices, log: o.Log}
	n.encryption = &encryption{background: ctx, luks: o.LUKS, mounts: o.Mounts, fileSystems: o.FileSystems,
		volumes: n.volumes, devices: n.devices, log: o.Log}
	n.stager = &stager{background: ctx, mounts: o.Mounts, fileSystems: o.FileSystems, checker: newChecker(o.FileSystems, n.devices, o.CheckMemory),
		devices: n.devices, unmounter: n.unmounter, metrics: o.Metrics, log: o.Log}
	n.publisher = &publisher{mounts: o.Mounts, kubelet: n.kubelet, devices: n.devices, encryption: n.encryption, stager: n.stager}
	n.grower = &grower{background: ctx, fileSystems: o.FileSystems, devices: n.devices}
	n.sweeper = &sweeper{mounts: o.Mounts, luks: o.LUKS, kubelet: n.kubelet, locks: &n.locks, devices: n.devices, unmounter: n.unmounter,
		encryption: n.encryption, metrics: o.Metrics, log: o.Log}
	n.ioLimits = &ioLimits{dirs: o.IOLimits, mounts: o.Mounts, kubelet: n.kubelet, volumes: n.volumes, devices: n.devices,
		encryption: n.encryption, log: o.Log, began: time.Now(), now: time.Now, wake: make(chan struct{}, 1)}
	n.monitor = &monitor{mounts: o.Mounts, kubelet: n.kubelet, volumes: n.volumes, devices: n.devices,
		encryption: n.encryption, unmounter: n.unmounter, limits: n.ioLimits, metrics: o.Metrics, log: o.Log}
	n.inline = inline.New(inline.Options{Enabled: o.InlineVolumes, MaxBytes: o.InlineMaxBytes, Kubelet: n.kubelet, LVMD: n.volumes,
		Lock: n.locks.take, Explain: func(err error, v *lvmdv1.Volume) error { return n.devices.withHolders(err, deviceOf(v)) },
		Count: o.Metrics.inline, Log: o.Log})
	return n, nil
}

func (o Options) validate() error {
	switch {
	case o.NodeName == "":
		return errors.New("the node's name is required")
	case len(o.NodeName) > maxNodeID:
		return fmt.Errorf("the node's name has %d bytes: allowed are %d", len(o.NodeName), maxNodeID)
	case o.MaxVolumes < 0:
		return fmt.Errorf("maximum number of volumes %d: allowed is 0 (no limit) or more", o.MaxVolumes)
	case o.SmallestVolume < 0:
		return fmt.Errorf("smallest volume %s: allowed is 0 (free space does not count) or more", quantity.Bytes(o.SmallestVolume))
	case o.InlineMaxBytes < 0:
		return fmt.Errorf("largest size of inline volumes %s: allowed is 0 (no limit) or more", quantity.Bytes(o.InlineMaxBytes))
	case o.CheckMemory < 0:
		return fmt.Errorf("memory for checks of file systems %s: allowed is 0 (%s) or more", quantity.Bytes(o.CheckMemory), quantity.Bytes(DefaultCheckMemory))
	case (o.IOLimits.Requests == "") != (o.IOLimits.Reports == ""):
		return fmt.Errorf("directories for I/O limits %q and %q: both or none must be given", o.IOLimits.Requests, o.IOLimits.Reports)
	case !filepath.IsAbs(o.KubeletDir) || filepath.Clean(o.KubeletDir) != o.KubeletDir || o.KubeletDir == "/":
		return fmt.Errorf("kubelet directory %q: allowed is an absolute, clean path other than /", o.KubeletDir)
	}
	return nil
}

// MountDirs returns the kubelet's directories that contain volume mounts: of
// Pods, and of staged and raw block volumes.
func (n *Node) MountDirs() []string { return n.kubelet.MountDirs() }

// Sweep unmounts and closes leftovers of a previous run, once.
func (n *Node) Sweep(ctx context.Context) { n.sweeper.sweepAll(ctx) }

// SweepRepeatedly sweeps at once and every few minutes, until ctx is done.
func (n *Node) SweepRepeatedly(ctx context.Context) { n.sweeper.run(ctx) }

// CheckHealth checks every volume once and returns the conditions. before is
// the previous result.
func (n *Node) CheckHealth(ctx context.Context, before Conditions) Conditions {
	return n.monitor.check(ctx, before)
}

// Monitor checks the health of volumes until ctx is done.
func (n *Node) Monitor(ctx context.Context) { n.monitor.run(ctx) }

// RequestIOLimits keeps the I/O limit request current until ctx is done.
func (n *Node) RequestIOLimits(ctx context.Context) { n.ioLimits.run(ctx) }

// ReclaimInline removes inline volumes that the kubelet has forgotten, once.
// before is the previous result.
func (n *Node) ReclaimInline(ctx context.Context, before inline.Abandoned, now time.Time) inline.Abandoned {
	return n.inline.ReclaimOnce(ctx, before, now)
}

// Reclaim removes inline volumes that the kubelet has forgotten, until ctx is
// done.
func (n *Node) Reclaim(ctx context.Context) { n.inline.Reclaim(ctx) }
