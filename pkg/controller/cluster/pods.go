package cluster

import (
	"context"
	"fmt"
	"slices"
	"time"

	coreinformers "k8s.io/client-go/informers/core/v1"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/ephemeral"

	"github.com/carve-csi/carve/pkg/controller/objects"
	"github.com/carve-csi/carve/pkg/controller/spec"
)

// PodLists caches the Pods of a namespace on a node for one pass, by namespace/node.
type PodLists map[string][]v1.Pod

// PodsOn lists the Pods of a namespace on a node, at most once per pass.
func (c *Cluster) PodsOn(ctx context.Context, listed PodLists, namespace, node string) ([]v1.Pod, error) {
	key := namespace + "/" + node
	if pods, ok := listed[key]; ok {
		return pods, nil
	}
	callCtx, cancel := context.WithTimeout(ctx, APITimeout)
	defer cancel()
	list, err := c.Client.CoreV1().Pods(namespace).List(callCtx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String()})
	if err != nil {
		return nil, fmt.Errorf("list Pods on node %s: %w", node, err)
	}
	listed[key] = list.Items
	return list.Items, nil
}

// Uses reports whether a claim is one of a Pod's volumes. The claim of a generic ephemeral volume
// belongs to one Pod only.
func Uses(pod *v1.Pod, claim *v1.PersistentVolumeClaim) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v v1.Volume) bool {
		name, ok := objects.ClaimName(pod, &v)
		return ok && name == claim.Name && (v.Ephemeral == nil || ephemeral.VolumeIsForPod(pod, claim) == nil)
	})
}

// UsersOf returns a claim and the Pods on its volume's node that use it. For a generic ephemeral
// volume it takes the Pod from the claim.
func (c *Cluster) UsersOf(ctx context.Context, listed PodLists, claim *v1.PersistentVolumeClaim, node string) []runtime.Object {
	if owner := spec.OwnerPod(claim); owner != nil {
		return []runtime.Object{claim, owner}
	}
	users := []runtime.Object{claim}
	pods, err := c.PodsOn(ctx, listed, claim.Namespace, node)
	if err != nil && ctx.Err() == nil {
		c.Log.Warn("Pods that use a volume cannot be looked for; only its claim has an Event",
			"claim", claim.Namespace+"/"+claim.Name, "node", node, "error", err)
	}
	for i := range pods {
		pod := &pods[i]
		if pod.Spec.NodeName == node && pod.Status.Phase != v1.PodSucceeded && pod.Status.Phase != v1.PodFailed && Uses(pod, claim) {
			users = append(users, pod)
		}
	}
	return users
}

// WaitersFor returns the Pods without a node that use a claim. It returns none for a generic
// ephemeral volume.
func (c *Cluster) WaitersFor(claim *v1.PersistentVolumeClaim) []*v1.Pod {
	if spec.OwnerPod(claim) != nil {
		return nil
	}
	return c.UnplacedPods(claim)
}

// UnplacedPods returns the Pods without a node that use a claim.
func (c *Cluster) UnplacedPods(claim *v1.PersistentVolumeClaim) []*v1.Pod {
	return slices.DeleteFunc(c.podsNaming(claim), func(pod *v1.Pod) bool {
		return pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil || !Uses(pod, claim)
	})
}

// OwnerUnplaced reports whether a claim is a generic ephemeral volume of a Pod without a node. Such
// a Pod has never been on a node, and Kubernetes recreates the claim if it is deleted.
func (c *Cluster) OwnerUnplaced(claim *v1.PersistentVolumeClaim) bool {
	owner := spec.OwnerPod(claim)
	return owner != nil && slices.ContainsFunc(c.UnplacedPods(claim), func(pod *v1.Pod) bool { return pod.UID == owner.UID })
}

// WaitingPods returns the Pods that have not started and use a claim.
func (c *Cluster) WaitingPods(claim *v1.PersistentVolumeClaim) []*v1.Pod {
	return slices.DeleteFunc(c.podsNaming(claim), func(pod *v1.Pod) bool {
		return pod.DeletionTimestamp != nil || pod.Status.Phase != v1.PodPending && pod.Status.Phase != "" || !Uses(pod, claim)
	})
}

// HasPod reports whether a Pod that has not started names a claim.
func (c *Cluster) HasPod(claim *v1.PersistentVolumeClaim) bool { return len(c.podsNaming(claim)) > 0 }

func (c *Cluster) podsNaming(claim *v1.PersistentVolumeClaim) []*v1.Pod {
	return indexed(c.Pods, byClaim, claim.Namespace+"/"+claim.Name)
}

// byClaim indexes Pods by the claims that they name, as namespace/name.
const byClaim = "claim"

// waitingPods watches the Pods that have not started: those without a node, and those for which a
// kubelet waits for volumes.
func waitingPods(all informers.SharedInformerFactory) cache.TypedSharedIndexInformer[*v1.Pod] {
	return cache.NewTypedSharedIndexInformer[*v1.Pod](all.InformerFor(&v1.Pod{}, func(client kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
		byClaims := cache.TypedIndexersToIndexers(cache.TypedIndexers[*v1.Pod]{byClaim: func(pod *v1.Pod) ([]string, error) { return objects.ClaimsNamed(pod), nil }})
		return coreinformers.NewFilteredPodInformer(client, metav1.NamespaceAll, resync, byClaims, func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("status.phase", string(v1.PodPending)).String()
		})
	}))
}

// PlacedOn returns the node of a Pod that waits there for a claim, or "". Usually a Pod gets its
// node after its claims are bound, except if it names the node itself or a component bound it that
// ignores claims.
func (c *Cluster) PlacedOn(claim *v1.PersistentVolumeClaim) string {
	node := ""
	for _, pod := range c.podsNaming(claim) {
		if !IsPlaced(pod) || !Uses(pod, claim) {
			continue
		}
		if node == "" || pod.Spec.NodeName < node { // any, but always the same
			node = pod.Spec.NodeName
		}
	}
	return node
}

// IsPlaced reports whether a Pod has a node, but has not started.
func IsPlaced(pod *v1.Pod) bool {
	return pod.Spec.NodeName != "" && pod.DeletionTimestamp == nil && (pod.Status.Phase == v1.PodPending || pod.Status.Phase == "")
}

// claimsOnly drops everything from a Pod except its identity, its node and the claims that it
// names.
func claimsOnly(obj any) (any, error) {
	pod, ok := obj.(*v1.Pod)
	if !ok {
		return obj, nil
	}
	lean := &v1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion, DeletionTimestamp: pod.DeletionTimestamp,
	}, Spec: v1.PodSpec{NodeName: pod.Spec.NodeName}}
	for _, v := range pod.Spec.Volumes {
		switch {
		case v.PersistentVolumeClaim != nil:
			lean.Spec.Volumes = append(lean.Spec.Volumes, v1.Volume{Name: v.Name, VolumeSource: v1.VolumeSource{
				PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: v.PersistentVolumeClaim.ClaimName}}})
		case v.Ephemeral != nil:
			lean.Spec.Volumes = append(lean.Spec.Volumes, v1.Volume{Name: v.Name, VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}})
		}
	}
	return lean, nil
}
