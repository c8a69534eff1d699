package inline

import (
	"context"
	"time"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
)

const (
	reclaimInterval = 30 * time.Second
	// Grace is the time for which an inline volume's Pod must be gone. The
	// kubelet unpublishes known volumes within seconds, so only forgotten ones
	// remain.
	Grace = 2 * time.Minute
)

// Abandoned maps the ids of inline volumes without a Pod on the node to the
// time when that was detected.
type Abandoned map[string]time.Time

// Reclaim removes inline volumes that the kubelet has forgotten, until ctx is
// done.
func (i *Volumes) Reclaim(ctx context.Context) {
	ticker := time.NewTicker(reclaimInterval)
	defer ticker.Stop()
	known := Abandoned{}
	for {
		known = i.ReclaimOnce(ctx, known, time.Now())
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// ReclaimOnce removes lvmd's inline volumes that have had no Pod directory for
// Grace. It returns the remaining ones without a Pod.
//
// A Pod's directory exists from before its first volume until after its last,
// restarts included. If the kubelet's directory has no Pod at all it must be
// the wrong one, as the plugin is a Pod itself.
func (i *Volumes) ReclaimOnce(ctx context.Context, before Abandoned, now time.Time) Abandoned {
	found := Abandoned{}
	volumes, err := i.options.LVMD.All(ctx)
	if err == nil {
		volumes, err = i.withoutPods(volumes)
	}
	if err != nil {
		if ctx.Err() == nil {
			i.options.Log.Warn("it is not known which inline volumes have lost their Pods", "error", err)
		}
		return found
	}
	for _, v := range volumes {
		id := v.GetId()
		since, known := before[id]
		if !known {
			since = now
		}
		if now.Sub(since) >= Grace {
			err := i.reclaim(ctx, v)
			if err == nil {
				continue
			}
			i.options.Log.Warn("an inline volume whose Pod is gone is left alone for now", "volume", id, "name", v.GetName(), "error", err)
		}
		found[id] = since
	}
	return found
}

func (i *Volumes) withoutPods(volumes []*lvmdv1.Volume) ([]*lvmdv1.Volume, error) {
	pods, err := i.options.Kubelet.Pods()
	if err != nil {
		return nil, err
	}
	var without []*lvmdv1.Volume
	for _, v := range volumes {
		// Volumes without a Pod as owner are not inline.
		if pod := v.GetOwner().GetPodUid(); pod != "" && !pods[pod] {
			without = append(without, v)
		}
	}
	return without, nil
}

func (i *Volumes) reclaim(ctx context.Context, v *lvmdv1.Volume) error {
	release, err := i.options.Lock(v.GetName())
	if err != nil {
		return err
	}
	defer release()
	// Recheck under the lock: a call may have arrived.
	if still, err := i.withoutPods([]*lvmdv1.Volume{v}); err != nil || len(still) == 0 {
		return err
	}
	return i.delete(ctx, v, EventReclaimed)
}
