package driver

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
)

// healthInterval is how often the health of volumes is looked at when nobody
// asks: often enough for an alert, seldom enough not to be felt.
const healthInterval = 30 * time.Second

// Monitor looks at the health of the node's volumes until ctx is done, for the
// metrics and the log, and for lvmd, by which the controller learns of it and
// tells users: a kubelet that does not know the health calls asks nothing.
func (n *Node) Monitor(ctx context.Context) {
	ticker := time.NewTicker(healthInterval)
	defer ticker.Stop()
	known := Ailments{}
	for {
		known = n.CheckHealth(ctx, known)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// Ailments are what is wrong with volumes: messages by volume and reason.
type Ailments map[string]map[string]string

// CheckHealth looks at every volume once, sets the metrics, and logs what is
// not the same as in the round before. It returns what it found. When lvmd
// does not answer, nothing is known anew: what was found before is kept.
func (n *Node) CheckHealth(ctx context.Context, before Ailments) Ailments {
	found, err := n.ailments(ctx)
	if err != nil {
		if ctx.Err() == nil {
			n.options.Log.Warn("the health of volumes is not known", "error", err)
		}
		return before
	}
	count := map[string]int{}
	for id, reasons := range found {
		for reason, message := range reasons {
			count[reason]++
			if _, known := before[id][reason]; !known {
				n.options.Log.Warn("a volume is not healthy", "volume", id, "reason", reason, "message", message)
			}
		}
	}
	for id, reasons := range before {
		for reason := range reasons {
			if _, still := found[id][reason]; !still {
				n.options.Log.Info("a volume is rid of what was wrong with it", "volume", id, "reason", reason)
			}
		}
	}
	n.options.Metrics.ailing(count)
	return found
}

func (n *Node) ailments(ctx context.Context) (Ailments, error) {
	volumes, err := n.list(ctx)
	if err != nil {
		return nil, err
	}
	points, err := n.options.Mounts.Below(n.options.KubeletDir)
	if err != nil {
		return nil, err
	}
	found := Ailments{}
	for _, v := range volumes {
		var entries []*csi.VolumeHealth_VolumeHealthEntry
		if entries, err = n.healthOf(v, points); err != nil {
			return nil, fmt.Errorf("volume %s: %w", v.GetId(), err)
		}
		n.noteHealth(ctx, v, entries)
		for _, e := range entries {
			if found[v.GetId()] == nil {
				found[v.GetId()] = map[string]string{}
			}
			found[v.GetId()][e.GetReason()] = e.GetMessage()
		}
	}
	return found, nil
}

// noteHealth tells lvmd what of a volume's ailments it does not know by itself,
// unless it was told.
func (n *Node) noteHealth(ctx context.Context, v *lvmdv1.Volume, entries []*csi.VolumeHealth_VolumeHealthEntry) {
	var found []*lvmdv1.Condition
	for _, e := range entries {
		if slices.Contains(knownReasons, e.GetReason()) {
			found = append(found, &lvmdv1.Condition{Type: e.GetReason(), Message: e.GetMessage()})
		}
	}
	if slices.EqualFunc(found, v.GetFound(), func(a, b *lvmdv1.Condition) bool { return proto.Equal(a, b) }) {
		return
	}
	_, err := n.options.LVMD.NoteHealth(ctx, &lvmdv1.NoteHealthRequest{Id: v.GetId(), Found: found})
	if err != nil && status.Code(err) != codes.NotFound && ctx.Err() == nil {
		n.options.Log.Warn("a volume's health could not be noted; it is tried again", "volume", v.GetId(), "error", err)
	}
}

// list asks lvmd for all volumes that are ready.
func (n *Node) list(ctx context.Context) ([]*lvmdv1.Volume, error) {
	volumes, err := n.all(ctx)
	return slices.DeleteFunc(volumes, func(v *lvmdv1.Volume) bool { return v.GetState() != lvmdv1.VolumeState_VOLUME_STATE_READY }), err
}

// knownReasons are those that this plugin finds. The metrics always have them, so that
// an alert can tell "none" from "not known".
var knownReasons = []string{ReasonFileSystemReadOnly, ReasonFileSystemErrors, ReasonFileSystemWarnings, ReasonFileSystemFailed}

// ailing sets the gauge of unhealthy volumes. Reasons that were there once stay
// at zero.
func (m *Metrics) ailing(count map[string]int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, reason := range knownReasons {
		m.reasons[reason] = true
	}
	for reason := range maps.Keys(count) {
		m.reasons[reason] = true
	}
	for reason := range m.reasons {
		m.conditions.WithLabelValues(reason).Set(float64(count[reason]))
	}
}
