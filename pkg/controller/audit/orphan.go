package audit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/pager"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/fleet"
	"github.com/carve-csi/carve/pkg/quantity"
)

const (
	// OrphansPerPass bounds the removals tried in one pass: each asks the API server for the
	// claim, and the pass waits for their nodes.
	OrphansPerPass = 20
	// OrphansNamed bounds the volumes named in an Event: a node that returns with its old
	// disks may have a thousand orphans. The log names all.
	OrphansNamed = 5
	// keepTimeout bounds keep in all, nodeKeepTimeout for one node, nodesKeeping its
	// concurrency.
	keepTimeout, nodeKeepTimeout = 10 * time.Second, 2 * time.Second
	nodesKeeping                 = 16
)

// Results for an orphan. All but the first are values of the label "result" of
// carve_controller_orphans_total.
const (
	orphanFound       = "found" // no removal was tried
	OrphanRemoved     = "removed"
	OrphanInUse       = "in_use"      // mounted or open on its node
	OrphanKnown       = "known"       // the API server names it after all
	OrphanUnconfirmed = "unconfirmed" // the API server could not be asked
	OrphanFailed      = "failed"      // the node failed to remove it
)

// keep marks provisional volumes that PersistentVolumes name as kept on their nodes. Nodes do
// that themselves for most, when a Pod gets the volume. The next pass retries failures; map
// order varies, so that nodes that do not answer do not always come first.
func (a *Auditor) keep(ctx context.Context, provisional map[string][]*lvmdv1.Volume) {
	ctx, cancel := context.WithTimeout(ctx, keepTimeout)
	defer cancel()
	var asking errgroup.Group
	asking.SetLimit(nodesKeeping)
	for node, volumes := range provisional {
		asking.Go(func() error { a.keepOn(ctx, node, volumes); return nil })
	}
	_ = asking.Wait()
}

func (a *Auditor) keepOn(ctx context.Context, node string, provisional []*lvmdv1.Volume) {
	ctx, cancel := context.WithTimeout(ctx, nodeKeepTimeout)
	defer cancel()
	for _, vol := range provisional {
		if err := a.Fleet.KeepVolume(ctx, node, vol.GetId()); err != nil {
			a.Log.Debug("that a PersistentVolume names a volume is not noted on its node", "volume", vol.GetName(), "volume_id", vol.GetId(), "node", node, "error", err)
			return
		}
	}
}

// Nodes remove concurrently. Results of nodes that are away stay.
func (a *Auditor) handleOrphans(ctx context.Context, found map[string][]*lvmdv1.Volume, away map[string]bool) map[string]map[string]string {
	became := map[string]map[string]string{}
	for node := range away {
		became[node] = a.orphans[node]
	}
	chosen := a.chooseOrphans(found)
	var l listed
	if len(chosen) > 0 {
		l = a.list(ctx, chosen)
	}
	var mu sync.Mutex
	var removing sync.WaitGroup
	handle := func(node string, orphans []*lvmdv1.Volume) {
		results := a.handleOrphansOf(ctx, node, orphans, chosen, l)
		mu.Lock()
		defer mu.Unlock()
		became[node] = results
	}
	for node, orphans := range found {
		if slices.ContainsFunc(orphans, func(vol *lvmdv1.Volume) bool { return chosen[vol] }) {
			removing.Go(func() { handle(node, orphans) })
		} else {
			handle(node, orphans)
		}
	}
	removing.Wait()
	return became
}

// chooseOrphans picks round-robin over the nodes, so that a node with many that cannot be
// removed does not use up all attempts. Without RemoveOrphans it picks provisional volumes
// only.
func (a *Auditor) chooseOrphans(found map[string][]*lvmdv1.Volume) map[*lvmdv1.Volume]bool {
	chosen := map[*lvmdv1.Volume]bool{}
	for i, more := 0, true; more; i++ {
		more = false
		for _, orphans := range found {
			switch {
			case i >= len(orphans):
				continue
			case len(chosen) == OrphansPerPass:
				return chosen
			case a.RemoveOrphans || orphans[i].GetProvisional():
				chosen[orphans[i]] = true
			}
			more = true
		}
	}
	return chosen
}

// One deadline bounds all removals on the node.
func (a *Auditor) handleOrphansOf(ctx context.Context, node string, orphans []*lvmdv1.Volume, chosen map[*lvmdv1.Volume]bool, l listed) map[string]string {
	before, became, changed := a.orphans[node], map[string]string{}, map[string][]string{}
	deadline := time.Now().Add(cmp.Or(a.RemovalTimeout, cluster.DeleteTimeout))
	nodeCtx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	for _, vol := range orphans {
		id := vol.GetId()
		log := a.Log.With("volume", vol.GetName(), "volume_id", id, "node", node,
			"claim", vol.GetOwner().GetClaimNamespace()+"/"+vol.GetOwner().GetClaimName())
		result, entry := cmp.Or(before[id], orphanFound), describeOrphan(vol)
		if !chosen[vol] || !time.Now().Before(deadline) { // the context may end a moment later
			log.Warn("orphan: no PersistentVolume and no claim knows this volume", "bytes", vol.GetSizeBytes(), "created", vol.GetCreatedAt().AsTime())
		} else {
			var err error
			result, err = a.removeOrphan(nodeCtx, node, vol, l)
			switch {
			case ctx.Err() != nil:
				return before // the next leader retries
			case result == "":
				continue
			case err != nil:
				log.Warn("orphan could not be removed", "result", result, "error", err)
				entry += ": " + err.Error()
			default:
				log.Warn("orphan removed", "bytes", vol.GetSizeBytes())
			}
			a.Metrics.Orphans.WithLabelValues(result).Inc()
		}
		became[id] = result
		if result != before[id] {
			changed[result] = append(changed[result], entry)
		}
	}
	if !a.reportOrphans(node, changed) {
		return before
	}
	return became
}

func describeOrphan(vol *lvmdv1.Volume) string {
	return fmt.Sprintf("%s (%s, made for claim %s/%s)", vol.GetId(), quantity.Bytes(vol.GetSizeBytes()),
		vol.GetOwner().GetClaimNamespace(), vol.GetOwner().GetClaimName())
}

// reportOrphans writes one Event per result: Kubernetes rate-limits the Events of one object.
// It returns false if the Node object does not exist.
func (a *Auditor) reportOrphans(name string, changed map[string][]string) bool {
	if len(changed) == 0 {
		return true
	}
	node, err := a.NodeLister.Get(name)
	if err != nil {
		return false
	}
	for _, result := range slices.Sorted(maps.Keys(changed)) {
		volumes := changed[result]
		which := strings.Join(volumes[:min(len(volumes), OrphansNamed)], "; ")
		if more := len(volumes) - OrphansNamed; more > 0 {
			which += fmt.Sprintf("; and %d more, which the log of the controller names", more)
		}
		switch {
		case result == OrphanRemoved:
			a.Recorder.Eventf(node, v1.EventTypeNormal, cluster.ReasonOrphanRemoved, "removed, as no PersistentVolume and no claim knew them: %s", which)
		case result == orphanFound && a.RemoveOrphans:
			a.Recorder.Eventf(node, v1.EventTypeWarning, cluster.ReasonOrphanFound, "to be removed, as no PersistentVolume and no claim knows them: %s", which)
		case result == orphanFound:
			a.Recorder.Eventf(node, v1.EventTypeWarning, cluster.ReasonOrphanFound, "kept, though no PersistentVolume and no claim knows them: %s. "+
				"Write a PersistentVolume for what is needed, and delete the rest on the node, or have the controller do it by --remove-orphans", which)
		default:
			a.Recorder.Eventf(node, v1.EventTypeWarning, cluster.ReasonOrphanFound, "not removed; retrying: %s", which)
		}
	}
	return true
}

type listed struct {
	// named has PersistentVolumes by the orphans' ids.
	named map[string]string
	// claims has claims by the orphans' names.
	claims map[string]string
	err    error
}

// list reads all PersistentVolumes and claims once. It matches PersistentVolumes by handle: an
// administrator may have adopted an orphan under another name. It matches claims by the name
// of the PersistentVolume, which is the volume's. All pages of a list show the state at its
// first page.
func (a *Auditor) list(ctx context.Context, orphans map[*lvmdv1.Volume]bool) listed {
	ctx, cancel := context.WithTimeout(ctx, cluster.ListTimeout)
	defer cancel()
	ids, volumes, named := map[string]bool{}, []string(nil), map[string]string{}
	for vol := range orphans {
		ids[vol.GetId()] = true
		volumes = append(volumes, vol.GetName())
	}
	pages := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		ctx, cancel := context.WithTimeout(ctx, cluster.APITimeout)
		defer cancel()
		return a.Client.CoreV1().PersistentVolumes().List(ctx, o)
	})
	err := pages.EachListItem(ctx, metav1.ListOptions{}, func(obj runtime.Object) error {
		if pv, ok := obj.(*v1.PersistentVolume); ok && pv.Spec.CSI != nil && ids[pv.Spec.CSI.VolumeHandle] {
			named[pv.Spec.CSI.VolumeHandle] = pv.Name
		}
		return nil
	})
	if err != nil {
		return listed{err: fmt.Errorf("look for its PersistentVolume: %w", err)}
	}
	claims, err := a.ReadClaimsNaming(ctx, volumes...)
	return listed{named, claims, err}
}

// confirmOrphan asks the API server again just before a removal, for the objects that Carve
// names itself; others are in the list, or in the cache if written since. An error says why
// the volume must stay.
func (a *Auditor) confirmOrphan(ctx context.Context, vol *lvmdv1.Volume, l listed) (result string, err error) {
	ctx, cancel := context.WithTimeout(ctx, cluster.APITimeout)
	defer cancel()
	owner := vol.GetOwner()
	claim, err := a.Client.CoreV1().PersistentVolumeClaims(owner.GetClaimNamespace()).Get(ctx, owner.GetClaimName(), metav1.GetOptions{})
	known := err == nil && string(claim.UID) == owner.GetClaimUid()
	switch {
	case err != nil && !apierrors.IsNotFound(err):
		return OrphanUnconfirmed, fmt.Errorf("look for its claim: %w", err)
	case known && claim.Spec.VolumeName == "":
		return OrphanKnown, errors.New("its claim is being provisioned after all")
	case l.err != nil:
		return OrphanUnconfirmed, l.err
	case l.named[vol.GetId()] != "":
		return OrphanKnown, fmt.Errorf("PersistentVolume %s names it after all", l.named[vol.GetId()])
	}
	if known && !a.RemoveOrphans {
		if result, err := a.confirmStray(ctx, claim, vol); err != nil {
			return result, err
		}
	}
	pv, err := a.Client.CoreV1().PersistentVolumes().Get(ctx, vol.GetName(), metav1.GetOptions{})
	switch {
	case err != nil && !apierrors.IsNotFound(err):
		return OrphanUnconfirmed, fmt.Errorf("look for its PersistentVolume: %w", err)
	case err == nil && pv.Spec.CSI != nil && pv.Spec.CSI.VolumeHandle == vol.GetId():
		return OrphanKnown, fmt.Errorf("PersistentVolume %s names it by now", pv.Name)
	case err != nil && l.claims[vol.GetName()] != "":
		return OrphanKnown, fmt.Errorf("claim %s names its PersistentVolume, which is gone", l.claims[vol.GetName()])
	case a.Classify(vol) != KindOrphan:
		return OrphanKnown, errors.New("a PersistentVolume names it by now, or its claim is worked on")
	}
	return OrphanRemoved, nil
}

// confirmStray returns nil if the claim has another volume, and no PersistentVolume names this
// one: a node made it too late. If the claim's PersistentVolume is gone, the volume may be the
// claim's.
func (a *Auditor) confirmStray(ctx context.Context, claim *v1.PersistentVolumeClaim, vol *lvmdv1.Volume) (result string, err error) {
	pv, err := a.Client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	switch {
	case err != nil && !apierrors.IsNotFound(err):
		return OrphanUnconfirmed, fmt.Errorf("look for its claim's PersistentVolume: %w", err)
	case err != nil || pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != claim.UID:
		return OrphanKnown, fmt.Errorf("it had PersistentVolume %s, which its claim names", claim.Spec.VolumeName)
	case pv.Spec.CSI != nil && pv.Spec.CSI.VolumeHandle == vol.GetId():
		return OrphanKnown, fmt.Errorf("PersistentVolume %s names it by now", pv.Name)
	}
	return "", nil
}

// removeOrphan returns no result if a Pod got the volume after the node's last report: the
// next pass classifies it. lvmd rejects the removal of a volume in use.
func (a *Auditor) removeOrphan(ctx context.Context, node string, vol *lvmdv1.Volume, l listed) (result string, err error) {
	if result, err := a.confirmOrphan(ctx, vol, l); err != nil {
		return result, err
	}
	remove := a.Fleet.DeleteProvisionalVolume
	if a.RemoveOrphans {
		remove = a.Fleet.DeleteVolumeByID
	}
	err = remove(ctx, node, vol.GetId())
	switch {
	case err == nil:
		return OrphanRemoved, nil
	case fleet.Reason(err) == names.ReasonVolumeKept:
		return "", nil
	case fleet.Reason(err) == names.ReasonVolumeInUse:
		return OrphanInUse, errors.New(cluster.Refusal(node, err))
	}
	return OrphanFailed, errors.New(cluster.Refusal(node, err))
}
