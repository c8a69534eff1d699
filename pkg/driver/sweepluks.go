package driver

import (
	"context"
	"path/filepath"

	"github.com/carve-csi/carve/api/names"
)

// leakedMapping is the kind of a leak, beside those of mounts.
const leakedMapping = "mapping"

// sweepMappings closes the encrypted volumes that an earlier life left open: those
// of ours that the kubelet has no record of having staged, while no call for the
// volume runs and the kernel finds nobody that has the mapping open. The kubelet
// writes its record before it has a volume staged, and removes it when it was
// unstaged.
func (n *Node) sweepMappings(ctx context.Context) {
	volumes, err := n.options.LUKS.Mappings()
	if err != nil {
		n.options.Log.Error("cannot look for encrypted volumes that were left open", "error", err)
		return
	}
	for _, id := range volumes {
		if ctx.Err() != nil {
			return
		}
		closed, err := n.sweepMapping(id)
		switch {
		case err != nil:
			n.options.Metrics.swept(leakedMapping, "kept")
			n.options.Log.Warn("an encrypted volume stays open", "volume", id, "error", err)
		case closed:
			n.options.Metrics.swept(leakedMapping, "removed")
			n.options.Log.Info("closed an encrypted volume that was left open", "volume", id)
		}
	}
}

// sweepMapping closes one, unless the kubelet has a record of it.
func (n *Node) sweepMapping(id string) (closed bool, err error) {
	release, err := n.lock(id)
	if err != nil {
		return false, err
	}
	defer release()
	// Under the lock: a call that comes from now on is answered with Aborted.
	if err := n.believeRecords(); err != nil {
		return false, err
	}
	if staged, err := n.recorded(id); err != nil || staged {
		return false, err
	}
	return true, n.shut(id)
}

// recorded tells whether the kubelet has a record of a volume that is staged on
// this node, with a file system or as a raw block volume. What cannot be read may
// be one.
func (n *Node) recorded(id string) (bool, error) {
	plugins := filepath.Join(n.options.KubeletDir, "plugins/kubernetes.io/csi")
	for _, pattern := range []string{
		filepath.Join(plugins, names.Driver, "*", record),
		filepath.Join(plugins, "volumeDevices", "*", "data", record),
	} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			return false, err
		}
		for _, file := range files {
			noted, err := readRecord(file)
			if err != nil || noted.Handle == id && (noted.Driver == "" || noted.Driver == names.Driver) {
				return true, err
			}
		}
	}
	return false, nil
}
