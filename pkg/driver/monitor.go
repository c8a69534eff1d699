package driver

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/driver/csierror"
	"github.com/carve-csi/carve/pkg/driver/kubelet"
	"github.com/carve-csi/carve/pkg/driver/lvmdclient"
	"github.com/carve-csi/carve/pkg/driver/mount"
)

// healthInterval suits alerts without noticeable load, on nodes whose kubelet
// does not ask for health.
const healthInterval = 30 * time.Second

// run checks the health of volumes until ctx is done. It updates metrics and
// the log, and reports to lvmd, from which the controller informs users. A
// kubelet without the health calls would never ask.
func (m *monitor) run(ctx context.Context) {
	ticker := time.NewTicker(healthInterval)
	defer ticker.Stop()
	known := Conditions{}
	for {
		known = m.check(ctx, known)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

type monitor struct {
	mounts     mount.Interface
	kubelet    kubelet.Dir
	volumes    lvmdclient.Client
	devices    *devices
	encryption *encryption
	unmounter  *unmounter
	limits     *ioLimits
	metrics    *Metrics
	log        *slog.Logger
}

// Conditions maps volume and reason to a message.
type Conditions map[string]map[string]string

// check logs only changes since before. It returns the conditions found, or
// before if lvmd does not answer.
func (m *monitor) check(ctx context.Context, before Conditions) Conditions {
	found, err := m.conditions(ctx, before)
	if err != nil {
		if ctx.Err() == nil {
			m.log.Warn("the health of volumes is not known", "error", err)
		}
		return before
	}
	count := map[string]int{}
	for id, reasons := range found {
		for reason, message := range reasons {
			count[reason]++
			if _, known := before[id][reason]; !known {
				m.log.Warn("a volume is not healthy", "volume", id, "reason", reason, "message", message)
			}
		}
	}
	for id, reasons := range before {
		for reason := range reasons {
			if _, still := found[id][reason]; !still {
				m.log.Info("a condition of a volume has ended", "volume", id, "reason", reason)
			}
		}
	}
	m.metrics.setConditions(count)
	return found
}

// conditions keeps the conditions in before of a volume that cannot be checked;
// that must not stop the others.
func (m *monitor) conditions(ctx context.Context, before Conditions) (Conditions, error) {
	volumes, err := m.volumes.AllReady(ctx)
	if err != nil {
		return nil, err
	}
	points, err := m.mounts.Below(string(m.kubelet))
	if err != nil {
		return nil, err
	}
	found, answers := Conditions{}, true
	for _, v := range volumes {
		entries, err := m.healthOf(v, points)
		if err != nil {
			m.log.Warn("the health of a volume is not known", "volume", v.GetId(), "error", err)
			if known := before[v.GetId()]; known != nil {
				found[v.GetId()] = known
			}
			continue
		}
		answers = answers && m.noteHealth(ctx, v, entries)
		for _, e := range entries {
			if found[v.GetId()] == nil {
				found[v.GetId()] = map[string]string{}
			}
			found[v.GetId()][e.GetReason()] = e.GetMessage()
		}
	}
	return found, nil
}

// noteHealth reports the plugin's own conditions to lvmd, unless lvmd has them.
// It returns false if lvmd does not answer; the next check tries again.
func (m *monitor) noteHealth(ctx context.Context, v *lvmdv1.Volume, entries []*csi.VolumeHealth_VolumeHealthEntry) (answers bool) {
	var found []*lvmdv1.Condition
	for _, e := range entries {
		if slices.Contains(knownReasons, e.GetReason()) {
			found = append(found, &lvmdv1.Condition{Type: e.GetReason(), Message: e.GetMessage()})
		}
	}
	if slices.EqualFunc(found, v.GetFound(), func(a, b *lvmdv1.Condition) bool { return proto.Equal(a, b) }) {
		return true
	}
	err := m.volumes.NoteFound(ctx, v.GetId(), found)
	code := csierror.CodeOf(err)
	if err != nil && code != codes.NotFound && ctx.Err() == nil {
		m.log.Warn("a volume's health could not be noted; it is tried again", "volume", v.GetId(), "error", err)
	}
	return code != codes.Unavailable
}

// knownReasons are the reasons that this plugin detects. The metrics always
// include them, so that an alert can distinguish zero from unknown.
var knownReasons = []string{ReasonFileSystemErrors, ReasonFileSystemWarnings, ReasonFileSystemFailed, ReasonMountedElsewhere, ReasonUnmountFails, ReasonIOLimitsNotApplied}

// setConditions keeps a reason seen once, at zero.
func (m *Metrics) setConditions(count map[string]int) {
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
