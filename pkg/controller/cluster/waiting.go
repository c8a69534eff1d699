package cluster

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Why is the reason and the message of the Events of Pods that wait in vain for a volume.
type Why struct{ Reason, Words string }

// DeleteWaiting deletes the Pods on a node that wait in vain for a claim's volume. Neither the
// scheduler nor the kubelet ends such a Pod: it would wait forever, and keep the claim, which
// cannot go while a Pod uses it.
//
// It only deletes Pods that a controller recreates, and only while they are not ready: users must
// stop a Pod that still works themselves. It returns the waiting Pods without a controller.
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

func (c *Cluster) deletePod(ctx context.Context, pod *v1.Pod, claim *v1.PersistentVolumeClaim, why Why) error {
	callCtx, cancel := context.WithTimeout(ctx, APITimeout)
	defer cancel()
	// Require the version that was seen: the Pod may have become ready.
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
