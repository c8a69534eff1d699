package controller

import (
	"fmt"
	"math"
	"strings"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/scheduler"
)

// maximumRequest bounds a claim's size so that rounding it up cannot overflow.
const maximumRequest = math.MaxInt64 / 2

// InvalidError says what is wrong with a claim or its StorageClass, in words
// for the user.
type InvalidError struct {
	// Field is where the mistake is, Given what was found there and Allowed
	// what may stand there.
	Field, Given, Allowed string
}

func (e *InvalidError) Error() string {
	return fmt.Sprintf("%s: %s is not allowed, allowed: %s", e.Field, e.Given, e.Allowed)
}

// classParameters are a StorageClass's parameters, understood.
type classParameters struct {
	// deviceClass is empty for each node's default class.
	deviceClass string
	// fsType is the type of fileSystem, empty for raw block volumes.
	fsType string
	// fileSystem is what volumes carry that are not raw block devices.
	fileSystem fileSystem
	// onNodeLoss is names.NodeLossKeep or names.NodeLossRecreate.
	onNodeLoss string
	// placement says which of the nodes that have room is preferred.
	placement scheduler.Policy
	// encryption says whether and how volumes are encrypted.
	encryption encryption
}

// parseClass reads the parameters of a StorageClass; errors are *InvalidError.
func parseClass(class *storagev1.StorageClass) (classParameters, error) {
	out := classParameters{onNodeLoss: names.NodeLossKeep, placement: scheduler.Policies[0]}
	known := []string{names.ParamDeviceClass, names.ParamOnNodeLoss, names.ParamPlacement, names.ParamEncryption, names.ParamEncryptionDiscards,
		names.ParamStageSecretName, names.ParamStageSecretNamespace}
	known = append(known, fileSystemParameters()...)
	for _, key := range sortedKeys(class.Parameters) {
		value := class.Parameters[key]
		if isFileSystemParameter(key) || isStageSecret(key) {
			continue
		}
		switch key {
		case names.ParamDeviceClass:
			out.deviceClass = value
		case names.ParamOnNodeLoss:
			if value != names.NodeLossKeep && value != names.NodeLossRecreate {
				return out, &InvalidError{Field: classField(class, key), Given: fmt.Sprintf("%q", value),
					Allowed: names.NodeLossKeep + ", " + names.NodeLossRecreate}
			}
			out.onNodeLoss = value
		case names.ParamPlacement:
			policy, err := scheduler.ParsePolicy(value)
			if err != nil {
				return out, &InvalidError{Field: classField(class, key), Given: fmt.Sprintf("%q", value), Allowed: scheduler.PolicyNames()}
			}
			out.placement = policy
		case names.ParamEncryption, names.ParamEncryptionDiscards:
			var err error
			if out.encryption, err = parseEncryption(class); err != nil {
				return out, err
			}
		default:
			return out, &InvalidError{Field: fmt.Sprintf("StorageClass %s: parameters", class.Name),
				Given: fmt.Sprintf("key %q", key), Allowed: strings.Join(known, ", ")}
		}
	}
	var err error
	if out.fileSystem, err = parseFileSystem(class); err != nil {
		return out, err
	}
	out.fsType = string(out.fileSystem.Type)
	if out.encryption.kind == names.EncryptionLUKS && out.fileSystem.Profile != filesystem.Usual {
		return out, &InvalidError{Field: classField(class, names.ParamProfile), Given: fmt.Sprintf("%q", out.fileSystem.Profile),
			Allowed: fmt.Sprintf("none with %s: %s, which is for data that outlive a restart", names.ParamEncryption, names.EncryptionLUKS)}
	}
	return out, out.encryption.suitsMount(class)
}

func classField(class *storagev1.StorageClass, key string) string {
	return fmt.Sprintf("StorageClass %s: parameters[%s]", class.Name, key)
}

// request is what a claim asks for, checked.
type request struct {
	classParameters
	bytes int64
	mode  lvmdv1.VolumeMode
	// source is what the volume is to be made of, nil for an empty one, and
	// from the same once it was found.
	source *dataSource
	from   *origin
}

// parseClaim checks a claim against its StorageClass; errors are *InvalidError.
func parseClaim(claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass) (request, error) {
	params, err := parseClass(class)
	if err != nil {
		return request{}, err
	}
	out := request{classParameters: params, mode: lvmdv1.VolumeMode_VOLUME_MODE_FILESYSTEM}
	if claim.Spec.VolumeMode != nil && *claim.Spec.VolumeMode == v1.PersistentVolumeBlock {
		out.mode, out.fsType = lvmdv1.VolumeMode_VOLUME_MODE_BLOCK, ""
	} else if err := params.fileSystem.suitsClaim(claim, class); err != nil {
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
	if size.Sign() <= 0 || size.CmpInt64(maximumRequest) > 0 {
		return out, &InvalidError{Field: "spec.resources.requests.storage", Given: size.String(),
			Allowed: fmt.Sprintf("1 to %d bytes", int64(maximumRequest))}
	}
	out.bytes = size.Value()
	if out.mode == lvmdv1.VolumeMode_VOLUME_MODE_FILESYSTEM {
		out.bytes = max(out.bytes, filesystem.MinimumSize(params.fileSystem.Type, false))
	}
	switch {
	case claim.Spec.Selector != nil:
		return out, &InvalidError{Field: "spec.selector", Given: "a selector", Allowed: "none: the volume is made for the claim"}
	case claim.Spec.VolumeAttributesClassName != nil && *claim.Spec.VolumeAttributesClassName != "":
		return out, &InvalidError{Field: "spec.volumeAttributesClassName",
			Given: fmt.Sprintf("%q", *claim.Spec.VolumeAttributesClassName), Allowed: "none"}
	}
	if out.source, _, err = sourceOf(claim); err != nil {
		return out, err
	}
	if err := out.encryption.checkStageSecret(class); err != nil {
		return out, err
	}
	if _, err := stageSecret(class, claim); err != nil {
		return out, err
	}
	return out, out.encryption.suits(out.source)
}

// room is what the volume takes of a node's room: its header comes on top of
// what the claim asks for.
func (r request) room() int64 { return r.bytes + r.encryption.headerBytes() }

// create is the request as lvmd wants it.
func (r request) create(claim *v1.PersistentVolumeClaim, clusterID string) *lvmdv1.CreateVolumeRequest {
	var source *lvmdv1.VolumeSource
	if r.from != nil {
		source = r.from.source
	}
	ask := &lvmdv1.CreateVolumeRequest{
		Name: volumeName(claim), DeviceClass: r.deviceClass, RequiredBytes: r.bytes, Mode: r.mode, FsType: r.fsType, Source: source,
		Encryption: r.encryption.kind, EncryptionDiscards: r.encryption.discards,
		Owner: &lvmdv1.Owner{
			ClusterId: clusterID, ClaimNamespace: claim.Namespace, ClaimName: claim.Name, ClaimUid: string(claim.UID),
		},
	}
	if fs := r.fileSystem; r.mode == lvmdv1.VolumeMode_VOLUME_MODE_FILESYSTEM {
		ask.Profile, ask.FsSettings = string(fs.Profile), fs.settings.Map()
	}
	return ask
}
