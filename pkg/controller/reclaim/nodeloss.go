package reclaim

import (
	"context"
	"fmt"
	"maps"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/controller/objects"
	"github.com/carve-csi/carve/pkg/controller/spec"
)

// nodeLossPass is the interval of checks for lost nodes without an event.
const nodeLossPass = 30 * time.Second

// releaser deletes bound claims whose node is lost, where cluster.GivesUp says so. By default it
// keeps claims. The Deleter handles released volumes.
type releaser struct {
	*cluster.Cluster
	kick chan struct{}
	// notified holds, by volume, the UIDs of the Pods without a node that got an Event about the
	// volume that they wait for. Its other users got theirs first.
	notified map[string]map[types.UID]struct{}
}

// NewReleaser returns a releaser; Run runs it.
func NewReleaser(c *cluster.Cluster) *releaser {
	return &releaser{Cluster: c, kick: make(chan struct{}, 1), notified: map[string]map[types.UID]struct{}{}}
}

// Run works until ctx is done. The caches must have synced.
func (r *releaser) Run(ctx context.Context) error {
	stop, err := cluster.Watch(r.OnGone(func(string) {
		select {
		case r.kick <- struct{}{}:
		default:
		}
	}))
	if err != nil {
		return err
	}
	defer stop()
	ticker := time.NewTicker(min(nodeLossPass, max(r.Losses.Grace, 10*time.Millisecond)))
	defer ticker.Stop()
	for {
		r.Pass(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-r.kick:
		}
	}
}

// Pass checks every bound volume of ours once.
func (r *releaser) Pass(ctx context.Context) {
	lost, listed := map[string]bool{}, cluster.PodLists{}
	named, volumes := map[string]bool{}, map[string]bool{} // nodes that volumes name, and those volumes
	for _, pv := range cluster.List(r.Volumes) {
		node, ok := objects.NodeOf(pv)
		if !ok || !objects.IsOurs(pv) {
			continue
		}
		named[node], volumes[pv.Name] = true, true
		if pv.Status.Phase != v1.VolumeBound || pv.Spec.ClaimRef == nil {
			continue
		}
		if _, known := lost[node]; !known {
			is, err := r.NodeLost(ctx, node)
			if err != nil {
				if ctx.Err() == nil {
					r.Log.Warn("it is not known whether a node is lost, trying on", "node", node, "error", err)
				}
				return
			}
			lost[node] = is
		}
		if lost[node] {
			r.abandon(ctx, listed, pv, node)
		} else {
			delete(r.notified, pv.Name)
		}
	}
	r.Losses.Retain(r.Now(), func(node string) bool { return named[node] })
	maps.DeleteFunc(r.notified, func(volume string, _ map[types.UID]struct{}) bool { return !volumes[volume] })
}

func (r *releaser) abandon(ctx context.Context, listed cluster.PodLists, pv *v1.PersistentVolume, node string) {
	claim := r.Claim(string(pv.Spec.ClaimRef.UID))
	if claim == nil || claim.DeletionTimestamp != nil {
		return
	}
	why := fmt.Sprintf("node %s, which holds the volume, is lost", node)
	switch {
	case r.GivesUp(pv, claim):
		r.DeleteLostClaim(ctx, pv, claim, why)
	case spec.OwnerPod(claim) != nil:
		r.notify(ctx, listed, pv, claim, node, why+"; the volume goes with its Pod, which Kubernetes removes from such a node")
	default:
		r.notify(ctx, listed, pv, claim, node, why+"; the claim is kept for a node that comes back. Delete the claim only if its data is not needed: that gives it up")
	}
}

// notify records one Event on each user of a claim: on the current ones when the loss is found, and
// later on Pods that replace those on the lost node, such as a StatefulSet's.
func (r *releaser) notify(ctx context.Context, listed cluster.PodLists, pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim, node, message string) {
	var users []runtime.Object
	notified := r.notified[pv.Name]
	if notified == nil {
		notified = map[types.UID]struct{}{}
		r.notified[pv.Name] = notified
		users = r.UsersOf(ctx, listed, claim, node)
	}
	for _, pod := range r.WaitersFor(claim) {
		if _, before := notified[pod.UID]; !before {
			notified[pod.UID] = struct{}{}
			users = append(users, pod)
		}
	}
	for _, user := range users {
		r.Recorder.Event(user, v1.EventTypeWarning, cluster.ReasonNodeLost, message)
	}
}
