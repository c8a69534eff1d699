package audit

import (
	"context"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/pkg/controller/cluster"
)

// deleteWaiting deletes the Pods on a node that wait for a claim's volume, which
// is given up. Kubernetes removes Pods from nodes that are lost, but not from
// one that came back under the same name with other disks: there they would wait
// for ever, and the claim, which is kept while a Pod uses it, with them.
//
// Only Pods that a controller makes again are deleted, and only while they are
// not ready: one that works on what it still has is for its user to stop.
func (a *Auditor) deleteWaiting(ctx context.Context, claim *v1.PersistentVolumeClaim, now *present, node string) {
	pods, err := a.PodsOn(ctx, now.pods, claim.Namespace, node)
	if err != nil {
		if ctx.Err() == nil {
			a.Log.Warn("Pods that wait for a volume that is given up cannot be looked for; they have to be deleted by hand",
				"claim", claim.Namespace+"/"+claim.Name, "node", node, "error", err)
		}
		return
	}
	for i := range pods {
		if pod := &pods[i]; waitsFor(pod, claim, node) {
			a.deletePod(ctx, pod, claim, node)
		}
	}
}

// waitsFor reports whether a Pod on a node waits for a claim, and is made again
// when it is deleted.
func waitsFor(pod *v1.Pod, claim *v1.PersistentVolumeClaim, node string) bool {
	if pod.Spec.NodeName != node || pod.DeletionTimestamp != nil || pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed ||
		metav1.GetControllerOf(pod) == nil {
		return false
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == v1.PodReady && c.Status == v1.ConditionTrue {
			return false
		}
	}
	return cluster.Uses(pod, claim)
}

// deletePod deletes a Pod as it was seen, and says why.
func (a *Auditor) deletePod(ctx context.Context, pod *v1.Pod, claim *v1.PersistentVolumeClaim, node string) {
	log := a.Log.With("pod", pod.Namespace+"/"+pod.Name, "claim", claim.Namespace+"/"+claim.Name, "node", node)
	callCtx, cancel := context.WithTimeout(ctx, cluster.APITimeout)
	defer cancel()
	// The version: it may have become ready.
	err := a.Client.CoreV1().Pods(pod.Namespace).Delete(callCtx, pod.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &pod.UID, ResourceVersion: &pod.ResourceVersion}})
	switch {
	case err == nil:
		owner := metav1.GetControllerOf(pod)
		a.Recorder.Eventf(pod, v1.EventTypeWarning, cluster.ReasonNodeLost, "the Pod waited for claim %s, whose volume is lost: node %s has other disks; "+
			"it is deleted, so that its %s %s makes it again", claim.Name, node, owner.Kind, owner.Name)
		log.Info("deleted a Pod that waited for a volume that is given up")
	case cluster.IsOutdated(err), ctx.Err() != nil:
	default:
		log.Warn("a Pod that waits for a volume that is given up could not be deleted, trying on", "error", err)
	}
}
