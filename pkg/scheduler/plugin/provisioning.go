package plugin

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/volume"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/volumebinding"

	"github.com/carve-csi/carve/pkg/controller/objects"
)

// provisioning makes provisioners create volumes on the nodes of Pods, and waits until the claims
// are bound. It decides like upstream's binder, but on events instead of each second.
type provisioning struct {
	client  kubernetes.Interface
	timeout time.Duration
	pods    corelisters.PodLister
	nodes   corelisters.NodeLister
	claims  corelisters.PersistentVolumeClaimLister
	volumes corelisters.PersistentVolumeLister
	changes changes
}

func newProvisioning(handle fwk.Handle, timeout time.Duration) (*provisioning, error) {
	core := handle.SharedInformerFactory().Core().V1()
	p := &provisioning{client: handle.ClientSet(), timeout: timeout, pods: core.Pods().Lister(), nodes: core.Nodes().Lister(),
		claims: core.PersistentVolumeClaims().Lister(), volumes: core.PersistentVolumes().Lister()}
	for informer, handler := range map[cache.SharedIndexInformer]cache.ResourceEventHandlerFuncs{
		core.PersistentVolumeClaims().Informer(): {UpdateFunc: func(_, now any) { p.changed(now) }, DeleteFunc: p.changed},
		core.PersistentVolumes().Informer():      {AddFunc: p.changed, UpdateFunc: func(_, now any) { p.changed(now) }},
		core.Pods().Informer():                   {UpdateFunc: p.podUpdated, DeleteFunc: p.changed},
		core.Nodes().Informer():                  {DeleteFunc: p.changed},
	} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			return nil, fmt.Errorf("wait for events: %w", err)
		}
	}
	return p, nil
}

// podUpdated handles a Pod that was replaced while the informer relisted.
func (p *provisioning) podUpdated(before, now any) {
	b, wasPod := before.(*v1.Pod)
	n, isPod := now.(*v1.Pod)
	if wasPod && isPod && b.UID != n.UID {
		p.changed(b)
	}
}

func (p *provisioning) changed(object any) {
	if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = gone.Obj
	}
	switch o := object.(type) {
	case *v1.PersistentVolumeClaim:
		p.changes.notify(keyOf(o))
	case *v1.PersistentVolume:
		if ref := o.Spec.ClaimRef; ref != nil {
			p.changes.notify(ref.Namespace + "/" + ref.Name)
		}
	case *v1.Pod:
		p.changes.notify(objects.ClaimsNamed(o)...)
	case *v1.Node:
		p.changes.notifyAll()
	}
}

// BindPodVolumes returns when the claims are bound. It leaves static volumes to upstream's, which
// polls each second. After an error the scheduler calls RevertAssumedPodVolumes and schedules the
// Pod again.
func (b *binder) BindPodVolumes(ctx context.Context, pod *v1.Pod, volumes *volumebinding.PodVolumes) error {
	if len(volumes.StaticBindings) > 0 {
		return b.SchedulerVolumeBinder.BindPodVolumes(ctx, pod, volumes)
	}
	return b.provisioning.bind(ctx, pod, volumes.DynamicProvisions)
}

func (p *provisioning) bind(ctx context.Context, pod *v1.Pod, provisions []*volumebinding.DynamicProvision) error {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	claims, keys := make([]*v1.PersistentVolumeClaim, len(provisions)), make([]string, len(provisions))
	for i, provision := range provisions {
		claims[i], keys[i] = provision.PVC, keyOf(provision.PVC)
	}
	// Subscribe before the first write, so as not to miss an event.
	wake, stop := p.changes.subscribe(keys)
	defer stop()
	for i, claim := range claims {
		written, err := p.selectNode(ctx, claim)
		if err != nil {
			return fmt.Errorf("select the node for claim %s: %w", claim.Name, err)
		}
		claims[i] = written
	}
	for {
		left, err := p.check(pod, claims)
		if err != nil || left == "" {
			return err
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return fmt.Errorf("claim %s is not bound yet: %w", left, context.Cause(ctx))
		}
	}
}

// selectNode writes an assumed claim with its annotation and returns the stored claim. For a shared
// claim, another Pod's call may have selected the same node.
func (p *provisioning) selectNode(ctx context.Context, claim *v1.PersistentVolumeClaim) (*v1.PersistentVolumeClaim, error) {
	client := p.client.CoreV1().PersistentVolumeClaims(claim.Namespace)
	written, err := client.Update(ctx, claim, metav1.UpdateOptions{})
	if apierrors.IsConflict(err) {
		now, readErr := client.Get(ctx, claim.Name, metav1.GetOptions{})
		if readErr == nil && now.UID == claim.UID && now.Annotations[volume.AnnSelectedNode] == claim.Annotations[volume.AnnSelectedNode] {
			return now, nil
		}
	}
	return written, err
}

// check returns the name of an unbound claim, or "" if all are bound. An error means that the Pod
// must be scheduled again.
func (p *provisioning) check(pod *v1.Pod, claims []*v1.PersistentVolumeClaim) (left string, err error) {
	node, err := p.nodes.Get(pod.Spec.NodeName)
	if err != nil {
		return "", fmt.Errorf("node of the Pod: %w", err)
	}
	if now, err := p.pods.Pods(pod.Namespace).Get(pod.Name); apierrors.IsNotFound(err) || err == nil && now.UID != pod.UID {
		return "", errors.New("the Pod was deleted")
	}
	for _, claim := range claims {
		bound, err := p.isBound(claim, node)
		if err != nil {
			return "", fmt.Errorf("claim %s %w", claim.Name, err)
		}
		if !bound {
			left = claim.Name
		}
	}
	return left, nil
}

// isBound reports whether a claim is bound to a volume that the node can use. An error means that
// it never will be.
func (p *provisioning) isBound(written *v1.PersistentVolumeClaim, node *v1.Node) (bool, error) {
	claim, err := p.claims.PersistentVolumeClaims(written.Namespace).Get(written.Name)
	if err != nil {
		return false, err
	}
	switch selected := claim.Annotations[volume.AnnSelectedNode]; {
	case isOlder(claim, written): // the cache does not show the write yet
		return false, nil
	case claim.DeletionTimestamp != nil:
		return false, fmt.Errorf("is being deleted")
	case claim.Status.Phase == v1.ClaimLost:
		return false, fmt.Errorf("has lost its volume %s", claim.Spec.VolumeName)
	case selected == "":
		return false, fmt.Errorf("could not be provisioned on node %s: its provisioner asks for another one", node.Name)
	case selected != node.Name:
		return false, fmt.Errorf("has selected node %s", selected)
	case claim.Spec.VolumeName == "":
		return false, nil
	}
	pv, err := p.volumes.Get(claim.Spec.VolumeName)
	if err != nil {
		return false, nil //nolint:nilerr // the cache does not have it yet
	}
	on, movable := movableOn(pv)
	if err := volume.CheckNodeAffinity(pv, node.Labels); err != nil || movable && on != node.Name {
		return false, fmt.Errorf("is bound to volume %s, which node %s cannot use", pv.Name, node.Name)
	}
	// The PV controller writes the phase last. A kubelet that sees the Pod earlier fails, and
	// retries after ten seconds.
	return claim.Status.Phase == v1.ClaimBound && metav1.HasAnnotation(claim.ObjectMeta, volume.AnnBindCompleted), nil
}

// movableOn returns the node of a Carve volume without nodeAffinity.
func movableOn(pv *v1.PersistentVolume) (string, bool) {
	node, recorded := objects.RecordedNode(pv)
	return node, recorded && pv.Spec.NodeAffinity == nil && objects.IsOurs(pv)
}

func isOlder(claim, written *v1.PersistentVolumeClaim) bool {
	order, err := resourceversion.CompareResourceVersion(claim.ResourceVersion, written.ResourceVersion)
	return err == nil && order < 0
}

func keyOf(claim *v1.PersistentVolumeClaim) string { return claim.Namespace + "/" + claim.Name }
