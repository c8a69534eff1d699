package cluster

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Why is why Pods wait for a volume that they will not get where they are: the reason and the
// words of their Events.
type Why struct{ Reason, Words string }

// DeleteWaiting deletes the Pods on a node that wait for a claim's volume, which they will not get
// there. Neither the scheduler nor the kubelet ends such a Pod: it would wait for ever, and the
// claim, which is kept while a Pod uses it, with it.
//
// Only Pods that a controller makes again are deleted, and only while they are
// not ready: one that works on what it still has is for its user to stop. It returns the
// Pods that wait and have no controller.
func (c *Cluster) DeleteWaiting(ctx context.Context, listed PodLists, claim *v1.PersistentVolumeClaim, node string, why Why) (left []*v1.Pod, err error) {
	pods, err := c.PodsOn(ctx, listed, claim.Namespace, node)
	if err != nil {
		return nil, fmt.Errorf("look for Pods that wait for a volume: %w", err)
	}
	var failed []error
	for i := range pods {
		switch pod := &pods[i]; {
		case !waitsFor(pod, claim, node):
		case metav1.GetControllerOf(pod) == nil:
			left = append(left, pod)
		default:
			failed = append(failed, c.deletePod(ctx, pod, claim, why))
		}
	}
	return left, errors.Join(failed...)
}

// waitsFor reports whether a Pod on a node waits for a claim.
func waitsFor(pod *v1.Pod, claim *v1.PersistentVolumeClaim, node string) bool {
	if pod.Spec.NodeName != node || pod.DeletionTimestamp != nil || pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed {
		return false
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == v1.PodReady && c.Status == v1.ConditionTrue {
			return false
		}
	}
	return Uses(pod, claim)
}

// deletePod deletes a Pod as it was seen, and says why.
func (c *Cluster) deletePod(ctx context.Context, pod *v1.Pod, claim *v1.PersistentVolumeClaim, why Why) error {
	callCtx, cancel := context.WithTimeout(ctx, APITimeout)
	defer cancel()
	// The version: it may have become ready.
	err := c.Client.CoreV1().Pods(pod.Namespace).Delete(callCtx, pod.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &pod.UID, ResourceVersion: &pod.ResourceVersion}})
	switch {
	case IsOutdated(err):
		return nil
	case err != nil:
		return fmt.Errorf("delete Pod %s, which waits for a volume: %w", pod.Name, err)
	}
	owner := metav1.GetControllerOf(pod)
	c.Recorder.Eventf(pod, v1.EventTypeWarning, why.Reason, "the Pod waited for claim %s, %s; it is deleted, so that its %s %s makes it again",
		claim.Name, why.Words, owner.Kind, owner.Name)
	c.Log.Info("deleted a Pod that waited for a volume", "pod", pod.Namespace+"/"+pod.Name, "claim", claim.Name, "node", pod.Spec.NodeName, "why", why.Words)
	return nil
}
