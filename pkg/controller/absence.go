package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/fleet"
)

// learnPerPass bounds how many PersistentVolumes one pass notes the volume
// group of. New ones are made with the note.
const learnPerPass = 100

// Causes of a volume's absence from its node, and the label "cause" of
// carve_controller_missing_volumes.
const (
	causeRemoved  = "removed"  // its volume group is there
	causeReplaced = "replaced" // the group of that name is another one: the node has other disks
	causeNoGroup  = "no_group" // its volume group is not there
	causeMoved    = "moved"    // it is on another node: its disks were moved
	causeUnknown  = "unknown"  // in which volume group it was was never noted
)

// groupNote is what the annotation names.AnnotationVolumeGroup says: a volume
// group by name and UUID. A volume stays in its group for all its life; a group
// of the same name with another UUID was made anew, on other disks or on wiped
// ones.
type groupNote struct{ name, uuid string }

func noteOf(vol *lvmdv1.Volume) groupNote { return groupNote{vol.GetVgName(), vol.GetVgUuid()} }

func (n groupNote) String() string { return n.name + "/" + n.uuid }

// known tells whether there is anything to note.
func (n groupNote) known() bool { return n.name != "" && n.uuid != "" }

// notedGroup returns what a PersistentVolume has noted.
func notedGroup(pv *v1.PersistentVolume) groupNote {
	name, uuid, _ := strings.Cut(pv.Annotations[names.AnnotationVolumeGroup], "/") // neither has a slash
	return groupNote{name, uuid}
}

// groupsOf returns the UUIDs of a node's volume groups by their names; those that
// its configuration names and that do not exist have an empty one.
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

// held names a volume on the node that reported it.
type held struct{ node, id string }

// present is what the connected nodes hold, at one pass.
type present struct {
	nodes   map[string]*fleet.View
	away    map[string]bool   // nodes that are not connected or have not reported
	holders map[string]string // nodes by volume id
	pods    podLists
}

func newPresent() *present {
	return &present{nodes: map[string]*fleet.View{}, away: map[string]bool{}, holders: map[string]string{}, pods: podLists{}}
}

// mayHold reports whether a volume is on its node, as far as is known.
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

// absence is that of a volume from its node, which is connected.
type absence struct {
	cause string
	// node is where the volume is missing, elsewhere where it is.
	node, elsewhere string
	// was and is are the volume group, where those are known.
	was groupNote
	is  string
}

// absent tells whether, and why, a node does not have a volume that a
// PersistentVolume names. judged is false where nobody can tell now.
func (a *auditor) absent(pv *v1.PersistentVolume, now *present) (why *absence, vol *lvmdv1.Volume, judged bool) {
	if !isOurs(pv) || pv.DeletionTimestamp != nil || isReleased(pv) || a.now().Sub(pv.CreationTimestamp.Time) < a.missing {
		return nil, nil, false
	}
	node, ok := nodeOf(pv)
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
	why = &absence{node: node, elsewhere: now.holders[pv.Spec.CSI.VolumeHandle], was: notedGroup(pv)}
	groups := groupsOf(view)
	why.is = groups[why.was.name]
	switch {
	case why.elsewhere != "":
		why.cause = causeMoved
	case !why.was.known():
		why.cause = causeUnknown
	case hasUUID(groups, why.was.uuid):
		why.cause = causeRemoved
	case why.is != "":
		why.cause = causeReplaced
	default:
		why.cause = causeNoGroup
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

// message says what is wrong, where, and what to do.
func (w *absence) message(volumeID string, recreate, ephemeral bool) string {
	what := fmt.Sprintf("volume %s is not on node %s any more", volumeID, w.node)
	const giveUp = "Delete the claim to give the data up"
	const pods = "Pods that wait for the volume are deleted where a controller makes them again; others have to be deleted"
	switch {
	case w.cause == causeMoved:
		return fmt.Sprintf("%s but on node %s, as when disks are moved. "+
			"Move them back, or write a PersistentVolume that names the volume there", what, w.elsewhere)
	case w.cause == causeNoGroup:
		return fmt.Sprintf("%s: volume group %s (%s) is not there. The volume is served again when its disks are back. %s",
			what, w.was.name, w.was.uuid, giveUp)
	case w.cause == causeReplaced && ephemeral:
		return fmt.Sprintf("%s: its volume group %s is another one (%s, it was %s), as on other disks. "+
			"The volume goes with its Pod. %s", what, w.was.name, w.is, w.was.uuid, pods)
	case w.cause == causeReplaced && recreate:
		return fmt.Sprintf("%s: its volume group %s is another one (%s, it was %s), as on other disks. The claim is to be deleted, "+
			"as its class asks for, so that it can be made again. %s", what, w.was.name, w.is, w.was.uuid, pods)
	case w.cause == causeReplaced:
		return fmt.Sprintf("%s: its volume group %s is another one (%s, it was %s), as on other disks. "+
			"The claim is kept for the old ones, should they come back. %s", what, w.was.name, w.is, w.was.uuid, giveUp)
	}
	return what + "; its data is lost. Delete the claim to have it made anew"
}

// compare looks at every PersistentVolume of ours once, and returns how many
// volumes are absent, by cause.
func (a *auditor) compare(ctx context.Context, now *present) map[string]int {
	count := map[string]int{causeRemoved: 0, causeReplaced: 0, causeNoGroup: 0, causeMoved: 0, causeUnknown: 0}
	told, learned := map[string]absence{}, 0
	for _, obj := range a.volumes.GetStore().List() {
		pv, ok := obj.(*v1.PersistentVolume)
		if !ok {
			continue
		}
		why, vol, judged := a.absent(pv, now)
		before, toldBefore := a.told[pv.Name]
		switch {
		case !judged:
			if toldBefore {
				told[pv.Name] = before
			}
			continue
		case why == nil:
			if note := noteOf(vol); note.known() && notedGroup(pv) != note && learned < learnPerPass {
				learned++
				a.learn(ctx, pv, note)
			}
			a.found(ctx, pv, now)
			continue
		}
		count[why.cause]++
		told[pv.Name] = *why
		a.announce(ctx, pv, why, now, toldBefore && before == *why)
	}
	a.told = told
	return count
}

// learn notes the volume group of a volume.
func (a *auditor) learn(ctx context.Context, pv *v1.PersistentVolume, note groupNote) {
	err := a.patchVolume(ctx, pv, map[string]any{"metadata": map[string]any{
		"uid": pv.UID, "annotations": map[string]string{names.AnnotationVolumeGroup: note.String()}}})
	if err != nil && ctx.Err() == nil {
		a.log.Info("a volume's group is noted later", "volume", pv.Name, "error", err)
	}
}

// announce tells whoever uses a volume that it is absent: by conditions, which
// last, and, unless that was done, by Events. Where the node has other disks, the
// volume is given up as that of a lost node is, though not at first sight: by its
// claim, if the class asks for that, or with its Pod, if it is ephemeral.
func (a *auditor) announce(ctx context.Context, pv *v1.PersistentVolume, why *absence, now *present, told bool) {
	recreate := pv.Annotations[names.ParamOnNodeLoss] == names.NodeLossRecreate
	var claim *v1.PersistentVolumeClaim
	if pv.Spec.ClaimRef != nil {
		claim = a.claim(string(pv.Spec.ClaimRef.UID))
	}
	ephemeral := claim != nil && ownerPod(claim) != nil
	message := why.message(pv.Spec.CSI.VolumeHandle, recreate, ephemeral)
	a.setConditions(ctx, pv, claim, message)
	if !told {
		a.log.Error("a volume is gone from its node", "volume", pv.Name, "volume_id", pv.Spec.CSI.VolumeHandle, "node", why.node, "cause", why.cause)
		a.tell(ctx, now, pv, claim, v1.EventTypeWarning, reasonVolumeMissing, message)
		return
	}
	if why.cause != causeReplaced || claim == nil || pv.Status.Phase != v1.VolumeBound || !recreate && !ephemeral {
		return
	}
	if !ephemeral && claim.DeletionTimestamp == nil {
		a.giveUp(ctx, pv, claim, fmt.Sprintf("node %s, which held the volume, has other disks", why.node))
	}
	a.endWaiting(ctx, claim, now, why.node)
}

// found takes back what was said about a volume that is there again.
func (a *auditor) found(ctx context.Context, pv *v1.PersistentVolume, now *present) {
	var claim *v1.PersistentVolumeClaim
	if pv.Spec.ClaimRef != nil {
		claim = a.claim(string(pv.Spec.ClaimRef.UID))
	}
	if !a.setConditions(ctx, pv, claim, "") {
		return
	}
	node, _ := nodeOf(pv)
	a.log.Info("a volume is back on its node", "volume", pv.Name, "volume_id", pv.Spec.CSI.VolumeHandle, "node", node)
	a.tell(ctx, now, pv, claim, v1.EventTypeNormal, reasonVolumeFound, fmt.Sprintf("volume %s is on node %s again", pv.Spec.CSI.VolumeHandle, node))
}

// tell writes an Event on a volume, its claim, and the Pods that use the claim.
func (a *auditor) tell(ctx context.Context, now *present, pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim, kind, reason, message string) {
	a.recorder.Event(pv, kind, reason, message)
	node, ok := nodeOf(pv)
	if claim == nil || !ok {
		return
	}
	for _, user := range a.usersOf(ctx, now.pods, claim, node) {
		a.recorder.Event(user, kind, reason, message)
	}
}

// setConditions makes reason and message of the volume's status, and the
// condition of its claim, say what is wrong, or nothing where message is empty.
// It tells whether the volume's was changed. What fails is done at the next pass.
func (a *auditor) setConditions(ctx context.Context, pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim, message string) bool {
	if claim != nil {
		if err := a.setClaimCondition(ctx, claim, message); err != nil && ctx.Err() == nil {
			a.log.Info("a claim's condition is set later", "claim", claim.Namespace+"/"+claim.Name, "error", err)
		}
	}
	reason := reasonVolumeMissing
	if message == "" {
		reason = ""
	}
	ours := pv.Status.Reason == reasonVolumeMissing
	if ours && pv.Status.Message == message || !ours && message == "" {
		return false
	}
	err := a.patchVolume(ctx, pv, map[string]any{"metadata": map[string]any{"uid": pv.UID},
		"status": map[string]any{"reason": reason, "message": message}}, "status")
	if err != nil && ctx.Err() == nil {
		a.log.Info("a volume's condition is set later", "volume", pv.Name, "error", err)
	}
	return err == nil
}

func (a *auditor) setClaimCondition(ctx context.Context, claim *v1.PersistentVolumeClaim, message string) error {
	i := slices.IndexFunc(claim.Status.Conditions, func(c v1.PersistentVolumeClaimCondition) bool { return c.Type == names.ConditionVolumeMissing })
	if i < 0 && message == "" || i >= 0 && claim.Status.Conditions[i].Message == message {
		return nil
	}
	condition := map[string]any{"type": names.ConditionVolumeMissing, "$patch": "delete"}
	if message != "" {
		condition = map[string]any{"type": names.ConditionVolumeMissing, "status": v1.ConditionTrue, "reason": reasonVolumeMissing, "message": message}
		if i < 0 {
			condition["lastTransitionTime"] = metav1.NewTime(a.now())
		}
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": claim.UID},
		"status": map[string]any{"conditions": []any{condition}}})
	if err != nil {
		return fmt.Errorf("write condition: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	_, err = a.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Patch(ctx, claim.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("write condition: %w", err)
	}
	return nil
}

func (a *auditor) patchVolume(ctx context.Context, pv *v1.PersistentVolume, change map[string]any, subresources ...string) error {
	patch, err := json.Marshal(change)
	if err != nil {
		return fmt.Errorf("change PersistentVolume: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	_, err = a.client.CoreV1().PersistentVolumes().Patch(ctx, pv.Name, types.MergePatchType, patch, metav1.PatchOptions{}, subresources...)
	if err != nil {
		return fmt.Errorf("change PersistentVolume: %w", err)
	}
	return nil
}
