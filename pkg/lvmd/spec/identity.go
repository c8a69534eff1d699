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
	// DefaultClass is true when the request named no class.
	DefaultClass bool  `json:"defaultClass,omitempty"`
	Owner        Owner `json:"owner"`
	// Encryption is names.EncryptionEphemeral, or empty; Discards are let through
	// to the disk then.
	Encryption string `json:"encryption,omitempty"`
	Discards   bool   `json:"discards,omitempty"`
	// Source is the id of the volume or snapshot whose contents this one began
	// with, or empty.
	Source string `json:"source,omitempty"`
	// Snapshot is true for snapshots, whose Source is the volume they are of.
	Snapshot bool `json:"snapshot,omitempty"`
}

// Format is how a volume's file system is made; the zero value is that of a raw volume.
type Format struct {
	FSType filesystem.Type `json:"fsType,omitempty"`
	// FSUUID was chosen before mkfs ran, so that a probe can find out whether it
	// finished.
	FSUUID string `json:"fsUUID,omitempty"`
	// Profile and Settings are the request's.
	Profile  filesystem.Profile  `json:"profile,omitempty"`
	Settings filesystem.Settings `json:"fsSettings,omitempty"`
}

// Size is how large a volume is to be, in bytes.
type Size struct {
	// Required and Limit are the request's.
	Required int64 `json:"required"`
	Limit    int64 `json:"limit,omitempty"`
	// AtLeast is the source's size, as far as it is known. It is not stored.
	AtLeast int64 `json:"-"`
}

// Owner mirrors lvmdv1.Owner in a form that can be stored and compared.
type Owner struct {
	Cluster   string `json:"cluster,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Claim     string `json:"claim,omitempty"`
	ClaimUID  string `json:"claimUID,omitempty"`
	// The Pod's, of an inline volume.
	PodNamespace string `json:"podNamespace,omitempty"`
	Pod          string `json:"pod,omitempty"`
	PodUID       string `json:"podUID,omitempty"`
}

// OwnerFrom reads a message.
func OwnerFrom(o *lvmdv1.Owner) Owner {
	return Owner{
		Cluster: o.GetClusterId(), Namespace: o.GetClaimNamespace(),
		Claim: o.GetClaimName(), ClaimUID: o.GetClaimUid(),
		PodNamespace: o.GetPodNamespace(), Pod: o.GetPodName(), PodUID: o.GetPodUid(),
	}
}

// Proto is the reverse of OwnerFrom.
func (o Owner) Proto() *lvmdv1.Owner {
	return &lvmdv1.Owner{
		ClusterId: o.Cluster, ClaimNamespace: o.Namespace, ClaimName: o.Claim, ClaimUid: o.ClaimUID,
		PodNamespace: o.PodNamespace, PodName: o.Pod, PodUid: o.PodUID,
	}
}

// Difference says in which way two requests of the same name differ, or
// nothing. Who owns the volume is informative, except for the installation.
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

// quoted makes nothing visible in a message.
func quoted[T ~string](s T) string { return fmt.Sprintf("%q", s) }

// Key is what the model finds volumes and snapshots by: their names, which may
// be the same.
func (i Identity) Key() string {
	if i.Snapshot {
		return "snapshot/" + i.Name
	}
	return i.Name
}

// SnapshotDifference is Difference for requests for snapshots, which name
// nothing but the source.
func (i Identity) SnapshotDifference(o Identity) string {
	return Identity{Source: i.Source, Owner: i.Owner}.Difference(Identity{Source: o.Source, Owner: o.Owner})
}

// Check refuses strings that are too long for LVM's metadata.
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

// sourceOf reads a request's source.
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

// SourceProto is the source as the API has it; nil without one.
func (i Identity) SourceProto() *lvmdv1.VolumeSource {
	switch {
	case i.Source == "":
		return nil
	case SnapshotID.MatchString(i.Source):
		return &lvmdv1.VolumeSource{SnapshotId: i.Source}
	}
	return &lvmdv1.VolumeSource{VolumeId: i.Source}
}
