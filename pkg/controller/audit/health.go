package audit

import (
	"context"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/controller/cluster"
)

// healthPerPass limits the reports of one pass: a lost disk may have a thousand volumes.
const healthPerPass = 100

// transient condition types come and go with LVM's work; they are reported if two passes see
// them.
var transient = []string{"Suspended", "Inactive"}

// harmless condition types get no Events.
var harmless = []string{"OutOfSync"}

// health has condition messages by volume and condition type.
type health struct {
	// seen is from the last pass; users were notified of reported.
	seen, reported map[held]map[string]string
}

// conditionsOf includes the conditions that the node plugin found.
func conditionsOf(vol *lvmdv1.Volume) map[string]string {
	found := map[string]string{}
	for _, c := range slices.Concat(vol.GetConditions(), vol.GetFound()) {
		if !slices.Contains(harmless, c.GetType()) {
			found[c.GetType()] = c.GetMessage()
		}
	}
	return found
}

// reportHealth keeps the conditions of volumes on nodes that are not connected.
func (a *Auditor) reportHealth(ctx context.Context, now *present) {
	seen, reported, changed := map[held]map[string]string{}, map[held]map[string]string{}, 0
	for vol, before := range a.health.reported {
		if now.away[vol.node] {
			reported[vol] = before
		}
	}
	for _, node := range slices.Sorted(maps.Keys(now.nodes)) {
		for id, vol := range now.nodes[node].Volumes {
			at := held{node, id}
			found, before := conditionsOf(vol), a.health.reported[at]
			if len(found) == 0 && len(before) == 0 {
				continue
			}
			seen[at] = maps.Clone(found)
			for kind := range found {
				_, reportedBefore := before[kind]
				if _, seenBefore := a.health.seen[at][kind]; !reportedBefore && !seenBefore && slices.Contains(transient, kind) {
					delete(found, kind)
				}
			}
			if maps.EqualFunc(found, before, func(string, string) bool { return true }) {
				reported[at] = before
				continue
			}
			if changed++; changed > healthPerPass {
				reported[at] = before // at the next pass
				continue
			}
			reported[at] = found
			a.notifyHealth(ctx, now, node, vol, before, found)
		}
	}
	a.health = health{seen: seen, reported: reported}
}

func (a *Auditor) notifyHealth(ctx context.Context, now *present, node string, vol *lvmdv1.Volume, before, found map[string]string) {
	users := a.usersOfVolume(ctx, now, node, vol)
	log := a.Log.With("volume", vol.GetName(), "volume_id", vol.GetId(), "node", node,
		"claim", vol.GetOwner().GetClaimNamespace()+"/"+vol.GetOwner().GetClaimName())
	for _, kind := range onlyIn(found, before) {
		log.Warn("a volume is not healthy", "condition", kind, "message", found[kind])
		for _, user := range users {
			a.Recorder.Eventf(user, v1.EventTypeWarning, cluster.ReasonVolumeUnhealthy, "volume %s on node %s is not healthy: %s: %s", vol.GetId(), node, kind, found[kind])
		}
	}
	over := onlyIn(before, found)
	if len(over) == 0 {
		return
	}
	log.Info("conditions of a volume are over", "conditions", over)
	for _, user := range users {
		a.Recorder.Eventf(user, v1.EventTypeNormal, cluster.ReasonVolumeRecovered, "volume %s on node %s recovered from: %s", vol.GetId(), node, strings.Join(over, ", "))
	}
}

// onlyIn returns the keys of m missing in other, sorted.
func onlyIn[V any](m, other map[string]V) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(m)), func(key string) bool { _, is := other[key]; return is })
}

func (a *Auditor) usersOfVolume(ctx context.Context, now *present, node string, vol *lvmdv1.Volume) []runtime.Object {
	owner := vol.GetOwner()
	if owner.GetPodUid() != "" {
		return []runtime.Object{&v1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: owner.GetPodNamespace(), Name: owner.GetPodName(), UID: types.UID(owner.GetPodUid()),
		}}}
	}
	pv := a.VolumeOn(node, vol.GetId())
	if pv == nil || pv.Spec.ClaimRef == nil {
		return nil
	}
	claim := a.Claim(string(pv.Spec.ClaimRef.UID))
	if claim == nil {
		return nil
	}
	return a.UsersOf(ctx, now.pods, claim, node)
}
