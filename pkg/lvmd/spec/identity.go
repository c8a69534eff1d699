package spec

import (
	"fmt"
	"strings"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
)

// Identity is what a volume was created as. It never changes.
type Identity struct {
	Name  string `json:"name"`
	Class string `json:"class"`
	Block bool   `json:"block,omitempty"`
	Format
	DAX bool `json:"dax,omitempty"`
	Size
	// DefaultClass is true if the request named no class.
	DefaultClass bool  `json:"defaultClass,omitempty"`
	Owner        Owner `json:"owner"`
	// Encryption is a name of api/names, or empty. Discards lets discards through to the disk.
	Encryption string `json:"encryption,omitempty"`
	Discards   bool   `json:"discards,omitempty"`
	// Source is the id of the volume or snapshot with the initial contents, or empty.
	Source string `json:"source,omitempty"`
	// Snapshot is true for snapshots, whose Source is the origin.
	Snapshot bool `json:"snapshot,omitempty"`
}

// Format has the parameters of the file system; the zero value is for a raw volume.
type Format struct {
	FSType filesystem.Type `json:"fsType,omitempty"`
	// FSUUID is chosen before mkfs runs, so that a probe can find out whether it finished.
	FSUUID   string              `json:"fsUUID,omitempty"`
	Profile  filesystem.Profile  `json:"profile,omitempty"`
	Settings filesystem.Settings `json:"fsSettings,omitempty"`
}

// Size is a requested size, in bytes.
type Size struct {
	Required int64 `json:"required"`
	Limit    int64 `json:"limit,omitempty"`
	// AtLeast is the source's size, if known. It is not stored.
	AtLeast int64 `json:"-"`
}

// Owner mirrors lvmdv1.Owner for storage and comparison.
type Owner struct {
	Cluster   string `json:"cluster,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Claim     string `json:"claim,omitempty"`
	ClaimUID  string `json:"claimUID,omitempty"`
	// The Pod's fields are set for inline volumes.
	PodNamespace string `json:"podNamespace,omitempty"`
	Pod          string `json:"pod,omitempty"`
	PodUID       string `json:"podUID,omitempty"`
}

// OwnerFrom converts the message of the API.
func OwnerFrom(o *lvmdv1.Owner) Owner {
	return Owner{
		Cluster: o.GetClusterId(), Namespace: o.GetClaimNamespace(),
		Claim: o.GetClaimName(), ClaimUID: o.GetClaimUid(),
		PodNamespace: o.GetPodNamespace(), Pod: o.GetPodName(), PodUID: o.GetPodUid(),
	}
}

// Proto reverses OwnerFrom.
func (o Owner) Proto() *lvmdv1.Owner {
	return &lvmdv1.Owner{
		ClusterId: o.Cluster, ClaimNamespace: o.Namespace, ClaimName: o.Claim, ClaimUid: o.ClaimUID,
		PodNamespace: o.PodNamespace, PodName: o.Pod, PodUid: o.PodUID,
	}
}

// Difference describes how two requests of the same name differ, or returns "". Of the owner, only
// the cluster counts.
func (i Identity) Difference(o Identity) string {
	mode := func(i Identity) lvmdv1.VolumeMode {
		if i.Block {
			return lvmdv1.VolumeMode_VOLUME_MODE_BLOCK
		}
		return lvmdv1.VolumeMode_VOLUME_MODE_FILESYSTEM
	}
	var d []string
	add := func(field string, a, b any) {
		if a != b {
			d = append(d, fmt.Sprintf("%s is %v, asked for %v", field, a, b))
		}
	}
	if !i.DefaultClass || !o.DefaultClass {
		// Two requests for the default agree, whatever the default is now.
		add("device_class", i.Class, o.Class)
	}
	add("mode", mode(i), mode(o))
	add("fs_type", i.FSType, o.FSType)
	add("profile", quoted(i.Profile), quoted(o.Profile))
	add("fs_settings", quoted(i.Settings), quoted(o.Settings))
	add("required_bytes", i.Required, o.Required)
	add("limit_bytes", i.Limit, o.Limit)
	add("owner.cluster_id", i.Owner.Cluster, o.Owner.Cluster)
	add("source", i.Source, o.Source)
	add("encryption", i.Encryption, o.Encryption)
	add("encryption_discards", i.Discards, o.Discards)
	return strings.Join(d, "; ")
}

func quoted[T ~string](s T) string { return fmt.Sprintf("%q", s) }

// Key returns the volume's name, or the snapshot's with a prefix: the two may share a name.
func (i Identity) Key() string {
	if i.Snapshot {
		return "snapshot/" + i.Name
	}
	return i.Name
}

// SnapshotDifference is Difference for snapshots, whose requests have only a source and an owner.
func (i Identity) SnapshotDifference(o Identity) string {
	return Identity{Source: i.Source, Owner: i.Owner}.Difference(Identity{Source: o.Source, Owner: o.Owner})
}

// Check rejects strings that are too long for LVM's metadata.
func (o Owner) Check() error {
	for _, f := range []struct{ field, value string }{
		{"owner.cluster_id", o.Cluster}, {"owner.claim_namespace", o.Namespace},
		{"owner.claim_name", o.Claim}, {"owner.claim_uid", o.ClaimUID},
		{"owner.pod_namespace", o.PodNamespace}, {"owner.pod_name", o.Pod}, {"owner.pod_uid", o.PodUID},
	} {
		if len(f.value) > maxOwnerLength {
			return apierror.InvalidField(f.field, "it has %d bytes; at most %d are allowed", len(f.value), maxOwnerLength)
		}
	}
	return nil
}

func sourceOf(r *lvmdv1.VolumeSource) (string, error) {
	snapshot, volume := r.GetSnapshotId(), r.GetVolumeId()
	switch {
	case (snapshot == "") == (volume == ""):
		return "", apierror.InvalidField("source", "exactly one of snapshot_id and volume_id must be set")
	case snapshot != "" && !SnapshotID.MatchString(snapshot):
		return "", apierror.InvalidField("source.snapshot_id", "%q is not a snapshot's id", snapshot)
	case volume != "" && !VolumeID.MatchString(volume):
		return "", apierror.InvalidField("source.volume_id", "%q is not a volume's id", volume)
	}
	return snapshot + volume, nil
}

// SourceProto returns the source for the API; nil without one.
func (i Identity) SourceProto() *lvmdv1.VolumeSource {
	switch {
	case i.Source == "":
		return nil
	case SnapshotID.MatchString(i.Source):
		return &lvmdv1.VolumeSource{SnapshotId: i.Source}
	}
	return &lvmdv1.VolumeSource{VolumeId: i.Source}
}
