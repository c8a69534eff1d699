package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/luks"
)

// encryption is what a StorageClass says about it.
type encryption struct {
	// kind is names.EncryptionEphemeral, names.EncryptionLUKS, or empty.
	kind string
	// discards go through to the disk.
	discards bool
}

// headerBytes is what a volume takes besides what its user gets.
func (e encryption) headerBytes() int64 {
	if e.kind == names.EncryptionLUKS {
		return luks.HeaderBytes
	}
	return 0
}

// parseEncryption reads the StorageClass parameters about encryption; errors are
// *InvalidError.
func parseEncryption(class *storagev1.StorageClass) (encryption, error) {
	var out encryption
	switch kind := class.Parameters[names.ParamEncryption]; kind {
	case "", names.EncryptionEphemeral, names.EncryptionLUKS:
		out.kind = kind
	default:
		return out, &InvalidError{Field: classField(class, names.ParamEncryption), Given: fmt.Sprintf("%q", kind), Allowed: names.EncryptionEphemeral + ", " + names.EncryptionLUKS}
	}
	switch discards := class.Parameters[names.ParamEncryptionDiscards]; discards {
	case "", "false":
	case "true":
		out.discards = true
	default:
		return out, &InvalidError{Field: classField(class, names.ParamEncryptionDiscards), Given: fmt.Sprintf("%q", discards), Allowed: "true, false"}
	}
	if out.discards && out.kind == "" {
		return out, &InvalidError{Field: classField(class, names.ParamEncryptionDiscards), Given: `"true"`,
			Allowed: "false, or unset, where " + names.ParamEncryption + " is not set"}
	}
	return out, nil
}

// suitsMount refuses a class whose file systems send discards that its encryption
// keeps back: the kernel would mount them and say nothing, and the space that
// the option is there for would never come back. Errors are *InvalidError.
func (e encryption) suitsMount(class *storagev1.StorageClass) error {
	option := filesystem.DiscardOption(class.MountOptions)
	if e.kind == "" || e.discards || option == "" {
		return nil
	}
	return &InvalidError{Field: fmt.Sprintf("StorageClass %s: mountOptions", class.Name),
		Given:   fmt.Sprintf("%q for encrypted volumes, which keep discards from the disk,", option),
		Allowed: fmt.Sprintf("it together with %s: \"true\", or nodiscard, or neither", names.ParamEncryptionDiscards)}
}

// suits refuses what an encrypted volume cannot be made of.
func (e encryption) suits(source *dataSource) error {
	if e.kind == "" || source == nil {
		return nil
	}
	return &InvalidError{Field: "spec.dataSource", Given: "a source",
		Allowed: "none: volumes of a StorageClass with " + names.ParamEncryption + " begin empty"}
}

// emptiedMemory is how long before an auditor began the Pod of an inline volume may
// have been told that the volume was emptied: as long as API servers usually keep
// Events.
const emptiedMemory = time.Hour

// announceEmptied tells those who use a volume that what it held is lost, with
// the key that it was encrypted with: once for each time.
func (a *auditor) announceEmptied(ctx context.Context, now *present, node string, vol *lvmdv1.Volume) {
	if vol.GetEmptiedAt() == nil {
		return
	}
	when := vol.GetEmptiedAt().AsTime()
	var tell []runtime.Object
	if vol.GetOwner().GetPodUid() != "" {
		if !a.inlineEmptied(held{node, vol.GetId()}, when) {
			return
		}
	} else {
		pv := a.noteEmptied(ctx, node, vol, when)
		if pv == nil {
			return
		}
		tell = append(tell, pv)
	}
	message := fmt.Sprintf("volume %s is empty since %s: node %s was restarted, and the key that the volume was encrypted with is gone with what it held",
		vol.GetId(), when.UTC().Format(time.RFC3339), node)
	a.log.Warn("an encrypted volume was emptied", "volume", vol.GetName(), "volume_id", vol.GetId(), "node", node, "emptied", when)
	for _, user := range append(tell, a.usersOfVolume(ctx, now, node, vol)...) {
		a.recorder.Event(user, v1.EventTypeWarning, reasonVolumeEmptied, message)
	}
}

// noteEmptied notes on a volume's PersistentVolume that it is told that the
// volume was emptied, whoever leads, and returns it; nil when that was told, or
// there is nobody to tell, or it cannot be noted now.
func (a *auditor) noteEmptied(ctx context.Context, node string, vol *lvmdv1.Volume, at time.Time) *v1.PersistentVolume {
	pv := a.volumeOn(node, vol.GetId())
	when := at.UTC().Format(time.RFC3339)
	if pv == nil || pv.DeletionTimestamp != nil || pv.Annotations[names.AnnotationEmptied] >= when {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"annotations": map[string]string{names.AnnotationEmptied: when}, "uid": pv.UID, "resourceVersion": pv.ResourceVersion,
	}})
	if err != nil {
		return nil
	}
	callCtx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	if _, err := a.client.CoreV1().PersistentVolumes().Patch(callCtx, pv.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		a.log.Info("that a volume was emptied is told later", "volume", pv.Name, "error", err)
		return nil
	}
	return pv
}

// inlineEmptied remembers that an inline volume was emptied, and tells whether its
// Pod does not know. The volume has no PersistentVolume to note it on: what
// happened before this auditor began was told by the one before it, unless that is
// so short ago that it may have ended with the same node.
func (a *auditor) inlineEmptied(vol held, at time.Time) bool {
	if !at.After(a.emptied[vol]) || at.Before(a.began.Add(-emptiedMemory)) {
		return false
	}
	a.emptied[vol] = at
	return true
}

// ownerPod is the Pod that a claim belongs to, if it is a generic ephemeral
// volume's: the claim says all that an Event about the Pod needs.
func ownerPod(claim *v1.PersistentVolumeClaim) *v1.ObjectReference {
	owner := metav1.GetControllerOf(claim)
	if owner == nil || owner.Kind != "Pod" || owner.APIVersion != "v1" {
		return nil
	}
	return &v1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: claim.Namespace, Name: owner.Name, UID: owner.UID}
}
