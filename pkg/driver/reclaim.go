package driver

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
)

const (
	// reclaimInterval is how often inline volumes are compared with Pods.
	reclaimInterval = 30 * time.Second
	// ReclaimGrace is for how long an inline volume's Pod must have been gone.
	// The kubelet takes off by itself, within seconds, what it knows of; only
	// what it has forgotten is left.
	ReclaimGrace = 2 * time.Minute
)

// Abandoned are the ids of inline volumes whose Pods are gone from the node, and
// since when that is known.
type Abandoned map[string]time.Time

// Reclaim removes inline volumes that the kubelet has forgotten, until ctx is
// done.
func (n *Node) Reclaim(ctx context.Context) {
	ticker := time.NewTicker(reclaimInterval)
	defer ticker.Stop()
	known := Abandoned{}
	for {
		known = n.ReclaimInline(ctx, known, time.Now())
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// ReclaimInline compares the inline volumes that lvmd has with the Pods whose
// directories the kubelet has, once, and removes those that have been without a
// Pod for ReclaimGrace. It returns those that are without one and still there.
//
// A Pod's directory is there from before its first volume is made until after
// its last one is unpublished, restarts included. Without any Pod's directory
// the kubelet's is not believed to be the right one: the plugin is a Pod itself.
func (n *Node) ReclaimInline(ctx context.Context, before Abandoned, now time.Time) Abandoned {
	found := Abandoned{}
	volumes, err := n.all(ctx)
	if err == nil {
		err = n.withoutPods(&volumes)
	}
	if err != nil {
		if ctx.Err() == nil {
			n.options.Log.Warn("it is not known which inline volumes have lost their Pods", "error", err)
		}
		return found
	}
	for _, v := range volumes {
		id := v.GetId()
		since, known := before[id]
		if !known {
			since = now
		}
		if now.Sub(since) >= ReclaimGrace {
			err := n.reclaim(ctx, v)
			if err == nil {
				continue
			}
			n.options.Log.Warn("an inline volume whose Pod is gone is left alone for now", "volume", id, "name", v.GetName(), "error", err)
		}
		found[id] = since
	}
	return found
}

// withoutPods leaves only the inline volumes that have no Pod on the node.
func (n *Node) withoutPods(volumes *[]*lvmdv1.Volume) error {
	entries, err := n.pods()
	if err != nil {
		return err
	}
	pods := map[string]bool{"": true} // volumes of nobody are not inline
	for _, e := range entries {
		pods[e.Name()] = true
	}
	var without []*lvmdv1.Volume
	for _, v := range *volumes {
		if !pods[v.GetOwner().GetPodUid()] {
			without = append(without, v)
		}
	}
	*volumes = without
	return nil
}

// reclaim removes one volume, unless its Pod has come meanwhile.
func (n *Node) reclaim(ctx context.Context, v *lvmdv1.Volume) error {
	release, err := n.lock(v.GetName())
	if err != nil {
		return err
	}
	defer release()
	// Under the lock once more, as a call may have come.
	still := []*lvmdv1.Volume{v}
	if err := n.withoutPods(&still); err != nil || len(still) == 0 {
		return err
	}
	return n.deleteInline(ctx, v, inlineReclaimed)
}

// all asks lvmd for all volumes, whatever their state.
func (n *Node) all(ctx context.Context) ([]*lvmdv1.Volume, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	var volumes []*lvmdv1.Volume
	for token := ""; ; {
		page, err := n.options.LVMD.ListVolumes(ctx, &lvmdv1.ListVolumesRequest{PageToken: token, PageSize: 500}, grpc.WaitForReady(true))
		if err != nil {
			return nil, errors.New("lvmd: " + status.Convert(err).Message())
		}
		volumes = append(volumes, page.GetVolumes()...)
		if token = page.GetNextPageToken(); token == "" {
			return volumes, nil
		}
	}
}
