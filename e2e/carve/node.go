package carve

import (
	"context"
	"encoding/json"
	"fmt"
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

// mapperName is a group's or a volume's name as a part of a device-mapper name.
func mapperName(name string) string { return strings.ReplaceAll(name, "-", "--") }

// Footprint is all that volumes leave on a node, one line a thing: logical
// volumes, device-mapper entries, mounts of our devices or below the kubelet's
// folder of CSI volumes. Tests compare it before and after.
func (c *Client) Footprint(ctx context.Context, node string) ([]string, error) {
	volumes, err := c.LogicalVolumes(ctx, node)
	if err != nil {
		return nil, err
	}
	var lines, pools []string
	for _, volume := range volumes {
		lines = append(lines, "logical volume "+volume.VolumeGroup+"/"+volume.Name)
		if slices.Contains(volume.Tags, "carve.pool") {
			// LVM renames the pool's entry when the first volume is made in it, puts one
			// with the pool's name above, and leaves it at that.
			name := mapperName(volume.VolumeGroup) + "-" + mapperName(volume.Name)
			pools = append(pools, name, name+"-tpool")
		}
	}
	entries, err := c.NodeExec(ctx, node, "dmsetup", "info", "--columns", "--noheadings", "-o", "name")
	if err != nil {
		return nil, err
	}
	for _, name := range strings.Fields(entries) {
		// With nothing there, dmsetup says "No devices found".
		if !strings.HasPrefix(entries, "No devices") && !slices.Contains(pools, name) {
			lines = append(lines, "device-mapper entry "+name)
		}
	}
	mounts, err := c.NodeExec(ctx, node, "cat", "/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	for _, line := range strings.Split(mounts, "\n") {
		if strings.Contains(line, "/dev/mapper/") || strings.Contains(line, "kubernetes.io~csi") || strings.Contains(line, "kubernetes.io/csi") {
			fields := strings.Fields(line)
			lines = append(lines, "mount at "+fields[4])
		}
	}
	sort.Strings(lines)
	return lines, nil
}
