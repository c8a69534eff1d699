package controller

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
)

// ailingPerPass bounds of how many volumes one pass tells that their health changed:
// a lost disk may have a thousand.
const ailingPerPass = 100

// fleeting are condition types that come and go with what LVM does. A volume that
// has one is told of if it still has it a pass later.
var fleeting = []string{"Suspended", "Inactive"}

// harmless are condition types that are a part of a volume's ordinary life.
var harmless = []string{"OutOfSync"}

// ailments are what is wrong with volumes, by volume and condition type.
type ailments struct {
	// seen is what the last pass saw, told what users were told of.
	seen, told map[held]map[string]string
}

// ailmentsOf are the conditions that a volume has, of lvmd and of the node plugin.
func ailmentsOf(vol *lvmdv1.Volume) map[string]string {
	found := map[string]string{}
	for _, c := range slices.Concat(vol.GetConditions(), vol.GetFound()) {
		if !slices.Contains(harmless, c.GetType()) {
			found[c.GetType()] = c.GetMessage()
		}
	}
	return found
}

// announceAilments tells those who use volumes what came to be wrong with them, and
// what is over. Volumes of nodes that are not connected are as they were.
func (a *auditor) announceAilments(ctx context.Context, now *present) {
	seen, told, changed := map[held]map[string]string{}, map[held]map[string]string{}, 0
	for vol, before := range a.ailing.told {
		if now.away[vol.node] {
			told[vol] = before
		}
	}
	for _, node := range slices.Sorted(maps.Keys(now.nodes)) {
		for id, vol := range now.nodes[node].Volumes {
			at := held{node, id}
			found, before := ailmentsOf(vol), a.ailing.told[at]
			if len(found) == 0 && len(before) == 0 {
				continue
			}
			seen[at] = maps.Clone(found)
			for kind := range found {
				_, toldBefore := before[kind]
				if _, seenBefore := a.ailing.seen[at][kind]; !toldBefore && !seenBefore && slices.Contains(fleeting, kind) {
					delete(found, kind)
				}
			}
			if maps.EqualFunc(found, before, func(string, string) bool { return true }) {
				told[at] = before
				continue
			}
			if changed++; changed > ailingPerPass {
				told[at] = before // at the next pass
				continue
			}
			told[at] = found
			a.tellOfAilments(ctx, now, node, vol, before, found)
		}
	}
	a.ailing = ailments{seen: seen, told: told}
}

// tellOfAilments writes Events on a volume's claim and on the Pods on the node that use
// it; of an inline volume, on its Pod.
func (a *auditor) tellOfAilments(ctx context.Context, now *present, node string, vol *lvmdv1.Volume, before, found map[string]string) {
	users := a.usersOfVolume(ctx, now, node, vol)
	log := a.log.With("volume", vol.GetName(), "volume_id", vol.GetId(), "node", node,
		"claim", vol.GetOwner().GetClaimNamespace()+"/"+vol.GetOwner().GetClaimName())
	for _, kind := range slices.Sorted(maps.Keys(found)) {
		if _, known := before[kind]; known {
			continue
		}
		log.Warn("a volume is not healthy", "condition", kind, "message", found[kind])
		for _, user := range users {
			a.recorder.Eventf(user, v1.EventTypeWarning, reasonVolumeUnhealthy, "volume %s on node %s is not healthy: %s: %s", vol.GetId(), node, kind, found[kind])
		}
	}
	var over []string
	for _, kind := range slices.Sorted(maps.Keys(before)) {
		if _, still := found[kind]; !still {
			over = append(over, kind)
		}
	}
	if len(over) == 0 {
		return
	}
	log.Info("a volume is rid of what was wrong with it", "conditions", over)
	for _, user := range users {
		a.recorder.Eventf(user, v1.EventTypeNormal, reasonVolumeRecovered, "volume %s on node %s has this no more: %s", vol.GetId(), node, strings.Join(over, ", "))
	}
}

// usersOfVolume are those who use a volume's claim, or the Pod that an inline volume
// is a part of.
func (a *auditor) usersOfVolume(ctx context.Context, now *present, node string, vol *lvmdv1.Volume) []runtime.Object {
	owner := vol.GetOwner()
	if owner.GetPodUid() != "" {
		return []runtime.Object{&v1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: owner.GetPodNamespace(), Name: owner.GetPodName(), UID: types.UID(owner.GetPodUid()),
		}}}
	}
	pv := a.volumeOn(node, vol.GetId())
	if pv == nil || pv.Spec.ClaimRef == nil {
		return nil
	}
	claim := a.claim(string(pv.Spec.ClaimRef.UID))
	if claim == nil {
		return nil
	}
	return a.usersOf(ctx, now.pods, claim, node)
}
