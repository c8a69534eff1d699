package carve

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"sort"
	"strconv"
	"strings"
)

// LogicalVolume is one row of `lvs` on a node.
type LogicalVolume struct {
	Name        string
	VolumeGroup string
	SizeBytes   int64
	Tags        []string
}

// LogicalVolumes lists every logical volume of a node, by name.
func (c *Client) LogicalVolumes(ctx context.Context, node string) ([]LogicalVolume, error) {
	output, err := c.NodeExec(ctx, node, "lvs", "--reportformat", "json", "--units", "b", "--nosuffix",
		"-o", "lv_name,vg_name,lv_size,lv_tags")
	if err != nil {
		return nil, err
	}
	var report struct {
		Report []struct {
			LV []struct {
				Name string `json:"lv_name"`
				VG   string `json:"vg_name"`
				Size string `json:"lv_size"`
				Tags string `json:"lv_tags"`
			} `json:"lv"`
		} `json:"report"`
	}
	if err := json.Unmarshal([]byte(output), &report); err != nil {
		return nil, fmt.Errorf("parse what lvs said on %s: %w", node, err)
	}
	var volumes []LogicalVolume
	for _, part := range report.Report {
		for _, row := range part.LV {
			size, err := strconv.ParseInt(row.Size, 10, 64)
			if err != nil {
				return nil, fmt.Errorf("parse the size of %s on %s: %w", row.Name, node, err)
			}
			volumes = append(volumes, LogicalVolume{
				Name: row.Name, VolumeGroup: row.VG, SizeBytes: size, Tags: strings.Split(row.Tags, ","),
			})
		}
	}
	sort.Slice(volumes, func(i, j int) bool { return volumes[i].Name < volumes[j].Name })
	return volumes, nil
}

// Footprint is all that volumes leave on a node, one line a thing: logical
// volumes, device-mapper entries, stale names in /dev, loop devices, mounts of our devices or below the
// kubelet's folder of CSI volumes, and programs that only tests bring about. Tests compare it before
// and after.
func (c *Client) Footprint(ctx context.Context, node string) ([]string, error) {
	snapshot, err := c.Cluster.Snapshot(ctx, node)
	if err != nil {
		return nil, err
	}
	var lines []string
	add := func(what string, names []string) {
		for _, name := range names {
			lines = append(lines, what+" "+name)
		}
	}
	add("logical volume", snapshot.Volumes)
	add("device-mapper entry", snapshot.DeviceMapper)
	add("stale name", snapshot.Stale)
	add("loop device", snapshot.Loops)
	add("mount at", slices.DeleteFunc(snapshot.Mounts, func(mount string) bool {
		return !strings.Contains(mount, "/dev/mapper/") && !strings.Contains(mount, "kubernetes.io~csi") && !strings.Contains(mount, "kubernetes.io/csi")
	}))
	add("program", programs(snapshot.Processes))
	return lines, nil
}

// watched are the programs that only a volume or a Pod of a test brings about: the tools
// of file systems and encryption, and what the tests' containers run. Whatever else runs
// on a node starts and ends with Kubernetes' own work.
var watched = []string{
	"mkfs*", "mke2fs", "*fsck*", "resize2fs", "tune2fs", "xfs_*", "btrfs*", "cryptsetup", "blkid", "mount", "umount", "dd",
	"sh", "sleep", "busybox", "memcached",
}

// programs returns the names of the watched programs that run, each once: how many
// processes a program has says nothing while a Pod of it goes.
func programs(processes []string) []string {
	var names []string
	for _, process := range processes {
		name := path.Base(strings.Fields(process)[0])
		if slices.ContainsFunc(watched, func(pattern string) bool {
			matches, err := path.Match(pattern, name)
			return err == nil && matches
		}) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
