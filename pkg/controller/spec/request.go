package spec

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/iolimit"
	"github.com/carve-csi/carve/pkg/quantity"
	"github.com/carve-csi/carve/pkg/scheduler"
)

// MaximumRequest limits a claim's size, in bytes, so that rounding it up cannot overflow.
const MaximumRequest = math.MaxInt64 / 2

// InvalidError describes a mistake in a claim or its StorageClass, for users.
type InvalidError struct {
	// Field is the location, Given what was found there and Allowed what may stand there.
	Field, Given, Allowed string
}

// Error implements error.
func (e *InvalidError) Error() string {
	return fmt.Sprintf("%s: %s is not allowed, allowed: %s", e.Field, e.Given, e.Allowed)
}

// Class holds the parsed parameters of a StorageClass.
type Class struct {
	// DeviceClass is empty for each node's default class.
	DeviceClass string
	// ephemeral means that only generic ephemeral volumes are provisioned.
	ephemeral bool
	// FSType is the type of FileSystem, empty for raw block volumes.
	FSType string
	// FileSystem applies to volumes that are not raw block devices.
	FileSystem FileSystem
	// Placement ranks the nodes with enough free space.
	Placement  scheduler.Policy
	Encryption Encryption
	// IOLimits are the initial limits of volumes.
	IOLimits iolimit.Limits
}

// ParseClass parses the parameters of a StorageClass; errors are *InvalidError.
func ParseClass(class *storagev1.StorageClass) (Class, error) {
	out := Class{Placement: scheduler.Policies[0]}
	for _, key := range slices.Sorted(maps.Keys(class.Parameters)) {
		value := class.Parameters[key]
		if isFileSystemParameter(key) || isStageSecret(key) || isIOLimit(key) {
			continue
		}
		switch key {
		case names.ParamDeviceClass:
			out.DeviceClass = value
		case names.ParamOnNodeLoss:
			if value != names.NodeLossKeep && value != names.NodeLossRecreate {
				return out, &InvalidError{Field: ClassField(class, key), Given: fmt.Sprintf("%q", value),
					Allowed: names.NodeLossKeep + ", " + names.NodeLossRecreate}
			}
		case names.ParamPodVolumes:
			if value != names.PodVolumesPinned && value != names.PodVolumesMovable {
				return out, &InvalidError{Field: ClassField(class, key), Given: fmt.Sprintf("%q", value),
					Allowed: names.PodVolumesPinned + ", " + names.PodVolumesMovable}
			}
		case names.ParamClaims:
			if value != names.ClaimsEphemeral && value != names.ClaimsAny {
				return out, &InvalidError{Field: ClassField(class, key), Given: fmt.Sprintf("%q", value), Allowed: names.ClaimsEphemeral + ", " + names.ClaimsAny}
			}
		case names.ParamPlacement:
			policy, err := scheduler.ParsePolicy(value)
			if err != nil {
				return out, &InvalidError{Field: ClassField(class, key), Given: fmt.Sprintf("%q", value), Allowed: scheduler.PolicyNames()}
			}
			out.Placement = policy
		case names.ParamEncryption, names.ParamEncryptionDiscards:
			var err error
			if out.Encryption, err = parseEncryption(class); err != nil {
				return out, err
			}
		default:
			return out, &InvalidError{Field: fmt.Sprintf("StorageClass %s: parameters", class.Name),
				Given: fmt.Sprintf("key %q", key), Allowed: strings.Join(parameterKeys(), ", ")}
		}
	}
	var err error
	if out.FileSystem, err = parseFileSystem(class); err != nil {
		return out, err
	}
	if out.IOLimits, err = parseIOLimits(class.Parameters, func(key string) string { return ClassField(class, key) }); err != nil {
		return out, err
	}
	out.FSType = string(out.FileSystem.Type)
	claims := class.Parameters[names.ParamClaims]
	out.ephemeral = claims == names.ClaimsEphemeral || claims == "" && out.FileSystem.Profile == filesystem.Scratch
	if out.Encryption.kind == names.EncryptionLUKS && out.FileSystem.Profile != filesystem.Usual {
		return out, &InvalidError{Field: ClassField(class, names.ParamProfile), Given: fmt.Sprintf("%q", out.FileSystem.Profile),
			Allowed: fmt.Sprintf("none with %s: %s, which is for data that outlive a restart", names.ParamEncryption, names.EncryptionLUKS)}
	}
	return out, out.Encryption.suitsMount(class)
}

// ClassField names a parameter of a StorageClass in an InvalidError.
func ClassField(class *storagev1.StorageClass, key string) string {
	return fmt.Sprintf("StorageClass %s: parameters[%s]", class.Name, key)
}

// Request is a checked claim.
type Request struct {
	Class
	Bytes int64
	Mode  lvmdv1.VolumeMode
	// Source is the data source, nil for an empty volume, and From the same source once it was
	// found.
	Source *DataSource
	From   *Origin
	// AttributesClass is the VolumeAttributesClass whose limits replace the StorageClass's, or "".
	AttributesClass string
}

// ParseClaim checks a claim against its StorageClass; errors are *InvalidError.
func ParseClaim(claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass) (Request, error) {
	params, err := ParseClass(class)
	if err != nil {
		return Request{}, err
	}
	if err := checkMovable(class); err != nil {
		return Request{}, err
	}
	if claim.Spec.VolumeName == "" && metav1.HasAnnotation(claim.ObjectMeta, volume.AnnBindCompleted) {
		return Request{}, &InvalidError{Field: "metadata.annotations[" + volume.AnnBindCompleted + "]",
			Given:   "a bound claim without spec.volumeName, which Kubernetes calls Lost,",
			Allowed: "kubectl annotate pvc " + claim.Name + " " + volume.AnnBindCompleted + "-"}
	}
	out := Request{Class: params, Mode: lvmdv1.VolumeMode_VOLUME_MODE_FILESYSTEM}
	if claim.Spec.VolumeMode != nil && *claim.Spec.VolumeMode == v1.PersistentVolumeBlock {
		out.Mode, out.FSType = lvmdv1.VolumeMode_VOLUME_MODE_BLOCK, ""
	}
	if err := out.suitsClaim(claim, class); err != nil {
		return out, err
	}
	if len(claim.Spec.AccessModes) == 0 {
		return out, &InvalidError{Field: "spec.accessModes", Given: "no access mode", Allowed: "ReadWriteOnce, ReadWriteOncePod"}
	}
	for _, mode := range claim.Spec.AccessModes {
		if mode != v1.ReadWriteOnce && mode != v1.ReadWriteOncePod {
			return out, &InvalidError{Field: "spec.accessModes", Given: string(mode) + " (the volume is on one node's disk)",
				Allowed: "ReadWriteOnce, ReadWriteOncePod"}
		}
	}
	size := claim.Spec.Resources.Requests[v1.ResourceStorage]
	if size.Sign() <= 0 || size.CmpInt64(MaximumRequest) > 0 {
		return out, &InvalidError{Field: "spec.resources.requests.storage", Given: size.String(),
			Allowed: "1 to " + quantity.Bytes(MaximumRequest)}
	}
	out.Bytes = size.Value()
	if out.Mode == lvmdv1.VolumeMode_VOLUME_MODE_FILESYSTEM {
		out.Bytes = max(out.Bytes, filesystem.MinimumSize(params.FileSystem.Type, false))
	}
	if claim.Spec.Selector != nil {
		return out, &InvalidError{Field: "spec.selector", Given: "a selector", Allowed: "none: the volume is made for the claim"}
	}
	if name := claim.Spec.VolumeAttributesClassName; name != nil {
		out.AttributesClass = *name
	}
	if out.Source, _, err = SourceOf(claim); err != nil {
		return out, err
	}
	if err := out.Encryption.checkStageSecret(class); err != nil {
		return out, err
	}
	if _, err := StageSecret(class, claim); err != nil {
		return out, err
	}
	return out, out.Encryption.suits(out.Source)
}

func (r Request) suitsClaim(claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass) error {
	if r.ephemeral && OwnerPod(claim) == nil {
		given := fmt.Sprintf("%q", names.ClaimsEphemeral)
		if r.FileSystem.Profile == filesystem.Scratch {
			given += fmt.Sprintf(", with %s: %s, which loses data in a crash,", names.ParamProfile, r.FileSystem.Profile)
		}
		return &InvalidError{Field: ClassField(class, names.ParamClaims), Given: given + " for a claim that no Pod owns",
			Allowed: fmt.Sprintf("generic ephemeral volumes (spec.volumes[].ephemeral of a Pod); any other claim needs another StorageClass, or one with %s: %s", names.ParamClaims, names.ClaimsAny)}
	}
	if r.Mode == lvmdv1.VolumeMode_VOLUME_MODE_BLOCK {
		return r.FileSystem.suitsBlock(class)
	}
	return r.FileSystem.suitsClaim(claim)
}

// Footprint returns the free space in bytes that the volume takes: the claim's size plus the
// encryption header.
func (r Request) Footprint() int64 { return r.Bytes + r.Encryption.HeaderBytes() }

// CreateVolume returns lvmd's request for a claim of the cluster with the given id.
func (r Request) CreateVolume(claim *v1.PersistentVolumeClaim, clusterID string) *lvmdv1.CreateVolumeRequest {
	var source *lvmdv1.VolumeSource
	if r.From != nil {
		source = r.From.Source
	}
	ask := &lvmdv1.CreateVolumeRequest{
		Name: VolumeName(claim), DeviceClass: r.DeviceClass, RequiredBytes: r.Bytes, Mode: r.Mode, FsType: r.FSType, Source: source,
		Encryption: r.Encryption.kind, EncryptionDiscards: r.Encryption.discards, IoLimits: r.IOLimits.Proto(),
		Owner: &lvmdv1.Owner{
			ClusterId: clusterID, ClaimNamespace: claim.Namespace, ClaimName: claim.Name, ClaimUid: string(claim.UID),
		},
	}
	if fs := r.FileSystem; r.Mode == lvmdv1.VolumeMode_VOLUME_MODE_FILESYSTEM {
		ask.Profile, ask.FsSettings = string(fs.Profile), fs.settings.Map()
	}
	return ask
}
