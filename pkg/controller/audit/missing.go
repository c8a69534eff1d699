package audit

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/controller/objects"
	"github.com/carve-csi/carve/pkg/controller/spec"
	"github.com/carve-csi/carve/pkg/fleet"
)

// learnPerPass limits the PersistentVolumes that get the annotation of their volume group in
// one pass. New ones are created with it.
const learnPerPass = 100

// Causes, values of the label "cause" of carve_controller_missing_volumes.
const (
	CauseRemoved  = "removed"  // its volume group exists
	CauseReplaced = "replaced" // another group has the name: the node has other disks
	CauseNoGroup  = "no_group" // its volume group does not exist
	CauseMoved    = "moved"    // another node has it: its disks were moved
	CauseUnknown  = "unknown"  // its volume group was never recorded
)

// groupsOf returns UUIDs of volume groups by name, empty for configured groups that do not
// exist.
func groupsOf(view *fleet.View) map[string]string {
	out := map[string]string{}
	for _, class := range view.Classes {
		if len(class.GetGroups()) == 0 {
			out[class.GetVgName()] = class.GetVgUuid()
		}
		for _, group := range class.GetGroups() {
			out[group.GetVgName()] = group.GetVgUuid()
		}
	}
	return out
}

type held struct{ node, id string }

type present struct {
	nodes   map[string]*fleet.View
	away    map[string]bool   // not connected, or not reported
	holders map[string]string // node by volume id
	pods    cluster.PodLists
}

func newPresent() *present {
	return &present{nodes: map[string]*fleet.View{}, away: map[string]bool{}, holders: map[string]string{}, pods: cluster.PodLists{}}
}

// mayHold assumes that nodes that are away hold their volumes.
func (p *present) mayHold(vol held) bool {
	if view := p.nodes[vol.node]; view != nil && view.Volumes[vol.id] != nil {
		return true
	}
	return p.away[vol.node]
}

func (p *present) add(view *fleet.View) {
	p.nodes[view.Node] = view
	for id := range view.Volumes {
		p.holders[id] = view.Node
	}
}

type absence struct {
	cause string
	// node should have the volume; elsewhere has it.
	node, elsewhere string
	// The recorded volume group, and the UUID now; empty if unknown.
	was cluster.VolumeGroup
	is  string
}

// absent returns the reason why a PersistentVolume's node lacks the volume, or the volume.
// known is false if neither can be said now.
func (a *Auditor) absent(pv *v1.PersistentVolume, now *present) (why *absence, vol *lvmdv1.Volume, known bool) {
	if !objects.IsOurs(pv) || pv.DeletionTimestamp != nil || cluster.IsReleased(pv) || a.Now().Sub(pv.CreationTimestamp.Time) < cmp.Or(a.MissingGrace, time.Minute) {
		return nil, nil, false
	}
	node, ok := objects.NodeOf(pv)
	if !ok {
		return nil, nil, false
	}
	view, ok := now.nodes[node]
	if !ok {
		return nil, nil, false
	}
	if vol, there := view.Volumes[pv.Spec.CSI.VolumeHandle]; there {
		return nil, vol, true
	}
	why = &absence{node: node, elsewhere: now.holders[pv.Spec.CSI.VolumeHandle], was: cluster.NotedGroup(pv)}
	groups := groupsOf(view)
	why.is = groups[why.was.Name]
	switch {
	case why.elsewhere != "":
		why.cause = CauseMoved
	case !why.was.Known():
		why.cause = CauseUnknown
	case hasUUID(groups, why.was.UUID):
		why.cause = CauseRemoved
	case why.is != "":
		why.cause = CauseReplaced
	default:
		why.cause = CauseNoGroup
	}
	return why, nil, true
}

func hasUUID(groups map[string]string, uuid string) bool {
	for _, have := range groups {
		if have == uuid {
			return true
		}
	}
	return false
}

func (w *absence) message(volumeID string, givesUp, ephemeral bool) string {
	what := fmt.Sprintf("volume %s is not on node %s any more", volumeID, w.node)
	const giveUp = "Delete the claim only if its data is not needed: that gives it up"
	const pods = "Pods that wait for the volume are deleted where a controller makes them again; others have to be deleted"
	switch {
	case w.cause == CauseMoved:
		return fmt.Sprintf("%s but on node %s, as when disks are moved. "+
			"Move them back, or write a PersistentVolume that names the volume there", what, w.elsewhere)
	case w.cause == CauseNoGroup:
		return fmt.Sprintf("%s: volume group %s (%s) is not there. The volume is served again when its disks are back. %s",
			what, w.was.Name, w.was.UUID, giveUp)
	case w.cause == CauseReplaced && givesUp:
		return fmt.Sprintf("%s: its volume group %s is another one (%s, it was %s), as on other disks. The claim is to be deleted, "+
			"so that it can be made again. %s", what, w.was.Name, w.is, w.was.UUID, pods)
	case w.cause == CauseReplaced && ephemeral:
		return fmt.Sprintf("%s: its volume group %s is another one (%s, it was %s), as on other disks. "+
			"The volume goes with its Pod. %s", what, w.was.Name, w.is, w.was.UUID, pods)
	case w.cause == CauseReplaced:
		return fmt.Sprintf("%s: its volume group %s is another one (%s, it was %s), as on other disks. "+
			"The claim is kept for the old ones, should they come back: `pvs -o +vg_name,vg_uuid` on the node lists what is there. %s", what, w.was.Name, w.is, w.was.UUID, giveUp)
	}
	return fmt.Sprintf("%s: its volume group is there without it, as after a removal by hand, or with metadata that others wrote. Whether its data is lost is not known. "+
		"Look on the node first: `lvs --all`, what the group was before (/etc/lvm/archive, `vgcfgrestore --list`), and make no volume in the group meanwhile, "+
		"which may overwrite the data. Delete the claim only if the volume was removed on purpose, or its data is not needed", what)
}

// compare returns the number of absent volumes by cause.
func (a *Auditor) compare(ctx context.Context, now *present) map[string]int {
	count := map[string]int{CauseRemoved: 0, CauseReplaced: 0, CauseNoGroup: 0, CauseMoved: 0, CauseUnknown: 0}
	reported, learned := map[string]absence{}, 0
	for _, obj := range a.Volumes.GetStore().List() {
		pv, ok := obj.(*v1.PersistentVolume)
		if !ok {
			continue
		}
		why, vol, known := a.absent(pv, now)
		before, reportedBefore := a.reported[pv.Name]
		switch {
		case !known:
			if reportedBefore {
				reported[pv.Name] = before
			}
			continue
		case why == nil:
			if note := cluster.GroupOf(vol); note.Known() && cluster.NotedGroup(pv) != note && learned < learnPerPass {
				learned++
				a.noteGroup(ctx, pv, note)
			}
			a.found(ctx, pv, now)
			continue
		}
		count[why.cause]++
		reported[pv.Name] = *why
		a.report(ctx, pv, why, now, reportedBefore && before == *why)
	}
	a.reported = reported
	return count
}

func (a *Auditor) noteGroup(ctx context.Context, pv *v1.PersistentVolume, note cluster.VolumeGroup) {
	err := a.patchVolume(ctx, pv, func(pv *v1.PersistentVolume) {
		metav1.SetMetaDataAnnotation(&pv.ObjectMeta, names.AnnotationVolumeGroup, note.String())
	})
	if err != nil && ctx.Err() == nil {
		a.Log.Info("a volume's group is noted later", "volume", pv.Name, "error", err)
	}
}

// report sets conditions, which last, and the first time writes Events. If the node has other
// disks, a later pass abandons the volume like one of a lost node: by deleting its claim if
// its class asks for that, or the Pod that waits for an ephemeral volume.
func (a *Auditor) report(ctx context.Context, pv *v1.PersistentVolume, why *absence, now *present, again bool) {
	var claim *v1.PersistentVolumeClaim
	if pv.Spec.ClaimRef != nil {
		claim = a.Claim(string(pv.Spec.ClaimRef.UID))
	}
	givesUp, ephemeral := claim != nil && a.GivesUp(pv, claim), claim != nil && spec.OwnerPod(claim) != nil
	message := why.message(pv.Spec.CSI.VolumeHandle, givesUp, ephemeral)
	a.setConditions(ctx, pv, claim, message)
	if !again {
		a.Log.Error("a volume is gone from its node", "volume", pv.Name, "volume_id", pv.Spec.CSI.VolumeHandle, "node", why.node, "cause", why.cause)
		a.notify(ctx, now, pv, claim, v1.EventTypeWarning, cluster.ReasonVolumeMissing, message)
		return
	}
	if why.cause != CauseReplaced || claim == nil || pv.Status.Phase != v1.VolumeBound || !givesUp && !ephemeral {
		return
	}
	if givesUp && claim.DeletionTimestamp == nil {
		a.DeleteLostClaim(ctx, pv, claim, fmt.Sprintf("node %s, which held the volume, has other disks", why.node))
	}
	_, err := a.DeleteWaiting(ctx, now.pods, claim, why.node, cluster.Why{Reason: cluster.ReasonNodeLost,
		Words: fmt.Sprintf("whose volume is lost: node %s has other disks", why.node)})
	if err != nil && ctx.Err() == nil {
		a.Log.Warn("Pods that wait for a volume that is given up are not deleted yet", "claim", claim.Namespace+"/"+claim.Name, "node", why.node, "error", err)
	}
}

func (a *Auditor) found(ctx context.Context, pv *v1.PersistentVolume, now *present) {
	var claim *v1.PersistentVolumeClaim
	if pv.Spec.ClaimRef != nil {
		claim = a.Claim(string(pv.Spec.ClaimRef.UID))
	}
	if !a.setConditions(ctx, pv, claim, "") {
		return
	}
	node, _ := objects.NodeOf(pv)
	a.Log.Info("a volume is back on its node", "volume", pv.Name, "volume_id", pv.Spec.CSI.VolumeHandle, "node", node)
	a.notify(ctx, now, pv, claim, v1.EventTypeNormal, cluster.ReasonVolumeRecovered, fmt.Sprintf("volume %s on node %s recovered from: %s", pv.Spec.CSI.VolumeHandle, node, cluster.ReasonVolumeMissing))
}

func (a *Auditor) notify(ctx context.Context, now *present, pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim, kind, reason, message string) {
	a.Recorder.Event(pv, kind, reason, message)
	node, ok := objects.NodeOf(pv)
	if claim == nil || !ok {
		return
	}
	for _, user := range a.UsersOf(ctx, now.pods, claim, node) {
		a.Recorder.Event(user, kind, reason, message)
	}
}

// An empty message clears the PersistentVolume's reason and the claim's condition.
// setConditions reports whether it changed the former. The next pass retries failures.
func (a *Auditor) setConditions(ctx context.Context, pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim, message string) bool {
	if claim != nil {
		if err := a.setClaimCondition(ctx, claim, message); err != nil && ctx.Err() == nil {
			a.Log.Info("a claim's condition is set later", "claim", claim.Namespace+"/"+claim.Name, "error", err)
		}
	}
	reason := cluster.ReasonVolumeMissing
	if message == "" {
		reason = ""
	}
	ours := pv.Status.Reason == cluster.ReasonVolumeMissing
	if ours && pv.Status.Message == message || !ours && message == "" {
		return false
	}
	err := a.patchVolume(ctx, pv, func(pv *v1.PersistentVolume) { pv.Status.Reason, pv.Status.Message = reason, message }, "status")
	if err != nil && ctx.Err() == nil {
		a.Log.Info("a volume's condition is set later", "volume", pv.Name, "error", err)
	}
	return err == nil
}

func (a *Auditor) setClaimCondition(ctx context.Context, claim *v1.PersistentVolumeClaim, message string) error {
	i := slices.IndexFunc(claim.Status.Conditions, func(c v1.PersistentVolumeClaimCondition) bool { return c.Type == names.ConditionVolumeMissing })
	if i < 0 && message == "" || i >= 0 && claim.Status.Conditions[i].Message == message {
		return nil
	}
	patch, err := cluster.Patch(claim, cluster.SameObject, func(claim *v1.PersistentVolumeClaim) {
		conditions := &claim.Status.Conditions
		switch {
		case message == "":
			*conditions = slices.Delete(*conditions, i, i+1)
		case i < 0:
			*conditions = append(*conditions, v1.PersistentVolumeClaimCondition{Type: names.ConditionVolumeMissing, Status: v1.ConditionTrue,
				Reason: cluster.ReasonVolumeMissing, Message: message, LastTransitionTime: metav1.NewTime(a.Now())})
		default:
			(*conditions)[i].Message = message
		}
	})
	if err != nil {
		return fmt.Errorf("write condition: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, cluster.APITimeout)
	defer cancel()
	_, err = a.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Patch(ctx, claim.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("write condition: %w", err)
	}
	return nil
}

func (a *Auditor) patchVolume(ctx context.Context, pv *v1.PersistentVolume, change func(*v1.PersistentVolume), subresources ...string) error {
	patch, err := cluster.Patch(pv, cluster.SameObject, change)
	if err != nil {
		return fmt.Errorf("change PersistentVolume: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, cluster.APITimeout)
	defer cancel()
	_, err = a.Client.CoreV1().PersistentVolumes().Patch(ctx, pv.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, subresources...)
	if err != nil {
		return fmt.Errorf("change PersistentVolume: %w", err)
	}
	return nil
}
