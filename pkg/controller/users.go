package controller

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
)

// podLists are the Pods of one namespace on one node, by namespace/node, where
// they were asked for in one pass.
type podLists map[string][]v1.Pod

// podsOn lists the Pods of a namespace on a node, once in a pass.
func (c *core) podsOn(ctx context.Context, listed podLists, namespace, node string) ([]v1.Pod, error) {
	key := namespace + "/" + node
	if pods, ok := listed[key]; ok {
		return pods, nil
	}
	callCtx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	list, err := c.client.CoreV1().Pods(namespace).List(callCtx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String()})
	if err != nil {
		return nil, fmt.Errorf("list Pods on node %s: %w", node, err)
	}
	listed[key] = list.Items
	return list.Items, nil
}

// uses tells whether a claim is one of a Pod's volumes.
func uses(pod *v1.Pod, claim *v1.PersistentVolumeClaim) bool {
	for _, v := range pod.Spec.Volumes {
		switch {
		case v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim.Name:
			return true
		case v.Ephemeral != nil && pod.Name+"-"+v.Name == claim.Name && metav1.IsControlledBy(claim, pod):
			return true
		}
	}
	return false
}

// usersOf are a claim and the Pods on its volume's node that use it. The Pod of a
// generic ephemeral volume is known by the claim itself.
func (c *core) usersOf(ctx context.Context, listed podLists, claim *v1.PersistentVolumeClaim, node string) []runtime.Object {
	if owner := ownerPod(claim); owner != nil {
		return []runtime.Object{claim, owner}
	}
	users := []runtime.Object{claim}
	pods, err := c.podsOn(ctx, listed, claim.Namespace, node)
	if err != nil && ctx.Err() == nil {
		c.log.Warn("Pods that use a volume cannot be looked for; only its claim is told what became of it",
			"claim", claim.Namespace+"/"+claim.Name, "node", node, "error", err)
	}
	for i := range pods {
		pod := &pods[i]
		if pod.Spec.NodeName == node && pod.Status.Phase != v1.PodSucceeded && pod.Status.Phase != v1.PodFailed && uses(pod, claim) {
			users = append(users, pod)
		}
	}
	return users
}

// waitersFor are the Pods without a node that wait for a claim. The Pod of a generic
// ephemeral volume is none of them: it has a claim of its own.
func (c *core) waitersFor(claim *v1.PersistentVolumeClaim) []*v1.Pod {
	objs, err := c.pods.GetIndexer().ByIndex(byClaim, claim.Namespace+"/"+claim.Name)
	if err != nil || ownerPod(claim) != nil {
		return nil
	}
	var waiters []*v1.Pod
	for _, obj := range objs {
		if pod, ok := obj.(*v1.Pod); ok && pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil {
			waiters = append(waiters, pod)
		}
	}
	return waiters
}
