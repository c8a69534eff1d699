package inline

import (
	"context"
	"time"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
)

const (
	// reclaimInterval is how often inline volumes are compared with Pods.
	reclaimInterval = 30 * time.Second
	// Grace is for how long an inline volume's Pod must have been gone. The kubelet
	// unpublishes by itself, within seconds, what it knows of; only what it has forgotten is
	// left.
	Grace = 2 * time.Minute
)

// Abandoned are the ids of inline volumes whose Pods are gone from the node, and
// since when that is known.
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

// ReclaimOnce compares the inline volumes that lvmd has with the Pods whose
// directories the kubelet has, and removes those that have been without a
// Pod for Grace. It returns those that are without one and still there.
//
// A Pod's directory is there from before its first volume is made until after
// its last one is unpublished, restarts included. Without any Pod's directory
// the kubelet's is not taken for the right one: the plugin is a Pod itself.
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

// withoutPods returns those inline volumes that have no Pod on the node.
func (i *Volumes) withoutPods(volumes []*lvmdv1.Volume) ([]*lvmdv1.Volume, error) {
	pods, err := i.options.Kubelet.Pods()
	if err != nil {
		return nil, err
	}
	var without []*lvmdv1.Volume
	for _, v := range volumes {
		// Volumes that no Pod owns are not inline.
		if pod := v.GetOwner().GetPodUid(); pod != "" && !pods[pod] {
			without = append(without, v)
		}
	}
	return without, nil
}

// reclaim removes one volume, unless its Pod has come meanwhile.
func (i *Volumes) reclaim(ctx context.Context, v *lvmdv1.Volume) error {
	release, err := i.options.Lock(v.GetName())
	if err != nil {
		return err
	}
	defer release()
	// Under the lock once more, as a call may have come.
	if still, err := i.withoutPods([]*lvmdv1.Volume{v}); err != nil || len(still) == 0 {
		return err
	}
	return i.delete(ctx, v, EventReclaimed)
}
