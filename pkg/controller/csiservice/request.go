package csiservice

import (
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/spec"
	"github.com/carve-csi/carve/pkg/quantity"
)

// defaultBytes is the size of a volume for which none is asked.
const defaultBytes = 1 << 30

// checkCapability says what is wrong with a capability, or nil.
func checkCapability(c *csi.VolumeCapability) error {
	const field = "volume_capabilities"
	switch mode := c.GetAccessMode().GetMode(); mode {
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER, csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY:
	default:
		return invalid(field+".access_mode", "%s is not allowed: the volume is on one node's disk, ReadWriteOnce and ReadWriteOncePod are", mode)
	}
	if c.GetBlock() == nil && c.GetMount() == nil {
		return invalid(field+".access_type", "a value is required: block or mount")
	}
	return nil
}

// desiredOf reads a CreateVolume, but for where the volume is to be.
func desiredOf(r *csi.CreateVolumeRequest) (Desired, error) {
	w := Desired{Name: r.GetName(), Parameters: r.GetParameters()}
	capabilities := r.GetVolumeCapabilities()
	switch {
	case w.Name == "":
		return w, invalid("name", "a value is required")
	case len(capabilities) == 0:
		return w, invalid("volume_capabilities", "a value is required")
	}
	w.Block = capabilities[0].GetBlock() != nil
	for _, c := range capabilities {
		if err := checkCapability(c); err != nil {
			return w, err
		}
		w.MountFlags = append(w.MountFlags, c.GetMount().GetMountFlags()...)
		fsType := c.GetMount().GetFsType()
		switch {
		case w.Block != (c.GetBlock() != nil):
			return w, invalid("volume_capabilities", "a volume is either block or mount")
		case fsType != "" && w.FSType != "" && fsType != w.FSType:
			return w, invalid("volume_capabilities.mount.fs_type", "a volume has one file system, not %s and %s", w.FSType, fsType)
		case fsType != "":
			w.FSType = fsType
		}
	}
	least, most := r.GetCapacityRange().GetRequiredBytes(), r.GetCapacityRange().GetLimitBytes()
	if err := checkRange(least, most); err != nil {
		return w, err
	}
	if least == 0 {
		if least = defaultBytes; most > 0 {
			least = min(least, most)
		}
	}
	w.Bytes, w.LimitBytes = least, most
	if len(r.GetMutableParameters()) > 0 {
		limits, err := mutable(r.GetMutableParameters())
		if err != nil {
			return w, err
		}
		w.IOLimits = &limits
	}
	return w, nil
}

func checkRange(least, most int64) error {
	if least < 0 || most < 0 || most > 0 && most < least {
		return invalid("capacity_range", "%s to %s is no range", quantity.Bytes(least), quantity.Bytes(most))
	}
	return nil
}

// nodesOf returns the nodes that topologies name, in their order, once each.
func nodesOf(field string, topologies []*csi.Topology) ([]string, error) {
	var out []string
	for _, t := range topologies {
		node, ok := t.GetSegments()[names.TopologyNode]
		if !ok || len(t.GetSegments()) != 1 {
			return nil, invalid(field, "segments %v are not allowed: %s is", t.GetSegments(), names.TopologyNode)
		}
		if !slices.Contains(out, node) {
			out = append(out, node)
		}
	}
	return out, nil
}

// place is where a new volume may be: on any of the requisite nodes, of which
// the preferred ones come first; on any node when none are named.
type place struct{ requisite, preferred []string }

func placeOf(r *csi.TopologyRequirement) (place, error) {
	requisite, err := nodesOf("accessibility_requirements.requisite", r.GetRequisite())
	if err != nil {
		return place{}, err
	}
	preferred, err := nodesOf("accessibility_requirements.preferred", r.GetPreferred())
	if err != nil {
		return place{}, err
	}
	if len(requisite) == 0 {
		requisite = preferred
	}
	for _, node := range preferred {
		if !slices.Contains(requisite, node) {
			return place{}, invalid("accessibility_requirements.preferred", "node %s is not among the requisite ones", node)
		}
	}
	return place{requisite, preferred}, nil
}

func (p place) allows(node string) bool {
	return len(p.requisite) == 0 || slices.Contains(p.requisite, node)
}

// fits says why a volume cannot be used as a capability says, or nil.
func fits(c *csi.VolumeCapability, vol *lvmdv1.Volume) error {
	if err := checkCapability(c); err != nil {
		return err
	}
	block := vol.GetMode() == lvmdv1.VolumeMode_VOLUME_MODE_BLOCK
	fsType := c.GetMount().GetFsType()
	switch {
	case block != (c.GetBlock() != nil):
		return fail(codes.InvalidArgument, "volume %s has mode %s", vol.GetId(), vol.GetMode())
	case fsType != "" && fsType != vol.GetFsType():
		return fail(codes.InvalidArgument, "volume %s has file system %s, not %s", vol.GetId(), vol.GetFsType(), fsType)
	}
	return nil
}

// volumeOf describes a volume.
func volumeOf(node string, vol *lvmdv1.Volume) *csi.Volume {
	out := &csi.Volume{
		VolumeId: vol.GetId(), CapacityBytes: vol.GetSizeBytes(),
		VolumeContext:      map[string]string{names.ContextDeviceClass: vol.GetDeviceClass()},
		AccessibleTopology: []*csi.Topology{{Segments: map[string]string{names.TopologyNode: node}}},
	}
	switch source := vol.GetSource(); {
	case source.GetSnapshotId() != "":
		out.ContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
			Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: spec.SnapshotHandle(node, source.GetSnapshotId())}}}
	case source.GetVolumeId() != "":
		out.ContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
			Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: source.GetVolumeId()}}}
	}
	return out
}
