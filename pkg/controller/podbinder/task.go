package podbinder

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/component-helpers/storage/volume"

	"github.com/carve-csi/carve/pkg/controller/cluster"
)

// errNotReady says that the view of the cluster is not complete.
var errNotReady = errors.New("the view of the cluster is not complete yet")

// ClaimError says why a claim keeps a Pod from a node.
type ClaimError struct {
	// Claim is the claim's name, Why the reason.
	Claim, Why string
}

func (e *ClaimError) Error() string { return "claim " + e.Claim + " " + e.Why }

// noProvisioner is the provisioner of StorageClasses whose volumes are made by hand.
const noProvisioner = "kubernetes.io/no-provisioner"

// task is the binding of one Pod to one node. It belongs to one goroutine.
type task struct {
	*Binder
	pod  *v1.Pod
	node *v1.Node
	// selected has the resource version of claims for which this call selected the node, by
	// name, and prebound the PersistentVolume that it gave to a claim.
	selected, prebound map[string]string
}

// progress is how far a claim is.
type progress int

const (
	bound progress = iota
	waiting
	open
)

// advance takes the claims of the Pod one step further, and returns the names of those that are
// not bound yet. It changes none if one of them keeps the Pod from the node.
func (t *task) advance(ctx context.Context) (left []string, err error) {
	var toSelect []*v1.PersistentVolumeClaim
	for _, key := range cluster.ClaimsNamed(t.pod) {
		_, name, _ := strings.Cut(key, "/")
		claim, err := t.claims.PersistentVolumeClaims(t.pod.Namespace).Get(name)
		if err != nil {
			return nil, &ClaimError{name, "does not exist"}
		}
		how, err := t.check(claim)
		if err != nil {
			return nil, err
		}
		if how != bound {
			left = append(left, name)
		}
		if how == open {
			toSelect = append(toSelect, claim)
		}
	}
	return left, t.selectNode(ctx, toSelect)
}

// check returns how far a claim is, or why it keeps the Pod from the node.
func (t *task) check(claim *v1.PersistentVolumeClaim) (progress, error) {
	no := func(format string, args ...any) (progress, error) {
		return 0, &ClaimError{claim.Name, fmt.Sprintf(format, args...)}
	}
	written, selectedHere := t.selected[claim.Name]
	switch {
	case ownClaim(t.pod, claim) != nil:
		return no("is not the Pod's own, and has the name of its ephemeral volume's")
	case claim.DeletionTimestamp != nil:
		return no("is being deleted")
	case claim.Status.Phase == v1.ClaimLost:
		return no("has lost its volume %s", claim.Spec.VolumeName)
	case selectedHere && isOlder(claim, written):
		return waiting, nil // the cache does not show what was written here
	case claim.Spec.VolumeName != "":
		return t.checkBound(claim)
	}
	late, err := volume.IsDelayBindingMode(claim, t.classes)
	if err != nil {
		return no("cannot be bound: %v", err)
	}
	switch selected := claim.Annotations[volume.AnnSelectedNode]; {
	case !late:
		return no("binds immediately and is not bound yet")
	case t.prebound[claim.Name] != "":
		return t.checkPrebound(claim)
	case selected == t.node.Name:
		return waiting, nil
	case selected != "":
		return no("has selected node %s", selected)
	case selectedHere:
		return no("could not be provisioned on node %s: its provisioner asks for another one", t.node.Name)
	}
	return open, nil
}

// checkBound is check for a claim that names its volume.
func (t *task) checkBound(claim *v1.PersistentVolumeClaim) (progress, error) {
	if claim.Status.Phase != v1.ClaimBound || !metav1.HasAnnotation(claim.ObjectMeta, volume.AnnBindCompleted) {
		return waiting, nil
	}
	obj, _, err := t.volumes.GetByKey(claim.Spec.VolumeName)
	pv, ok := obj.(*v1.PersistentVolume)
	if err != nil || !ok {
		return waiting, nil //nolint:nilerr // the cache does not have it yet
	}
	on, recorded := cluster.RecordedNode(pv) // which a movable volume has in place of a nodeAffinity
	elsewhere := recorded && cluster.IsOurs(pv) && on != t.node.Name
	if err := volume.CheckNodeAffinity(pv, t.node.Labels); err != nil || elsewhere {
		return 0, &ClaimError{claim.Name, fmt.Sprintf("is bound to volume %s, which node %s cannot use", pv.Name, t.node.Name)}
	}
	return bound, nil
}

// checkPrebound is check for a claim that was given a static volume here.
func (t *task) checkPrebound(claim *v1.PersistentVolumeClaim) (progress, error) {
	name := t.prebound[claim.Name]
	obj, exists, err := t.volumes.GetByKey(name)
	pv, ok := obj.(*v1.PersistentVolume)
	if err != nil || !exists || !ok || pv.Spec.ClaimRef != nil && !volume.IsVolumeBoundToClaim(pv, claim) {
		return 0, &ClaimError{claim.Name, fmt.Sprintf("cannot have volume %s any more", name)}
	}
	return waiting, nil
}

// isOlder reports whether a claim is of an earlier version than another one.
func isOlder(claim *v1.PersistentVolumeClaim, version string) bool {
	order, err := resourceversion.CompareResourceVersion(claim.ResourceVersion, version)
	return err == nil && order < 0
}

// selectNode gives open claims a static volume on the node, or selects the node for them. As
// the scheduler does, it begins with the smallest, so that a larger volume is left for a
// larger claim.
func (t *task) selectNode(ctx context.Context, claims []*v1.PersistentVolumeClaim) error {
	size := func(c *v1.PersistentVolumeClaim) int64 { return c.Spec.Resources.Requests.Storage().Value() }
	slices.SortStableFunc(claims, func(a, b *v1.PersistentVolumeClaim) int { return cmp.Compare(size(a), size(b)) })
	given := map[string]*v1.PersistentVolume{}
	matches := make([]*v1.PersistentVolume, len(claims))
	for i, claim := range claims {
		pv, err := t.match(claim, given)
		if err != nil {
			return err
		}
		if matches[i] = pv; pv != nil {
			given[pv.Name] = pv
		}
	}
	for i, claim := range claims {
		var err error
		if matches[i] != nil {
			err = t.give(ctx, matches[i], claim)
		} else {
			err = t.annotate(ctx, claim)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// match returns the static volume for a claim, nil where one has to be made, or an error where
// none can be.
func (t *task) match(claim *v1.PersistentVolumeClaim, given map[string]*v1.PersistentVolume) (*v1.PersistentVolume, error) {
	name := volume.GetPersistentVolumeClaimClass(claim)
	all, err := t.volumes.ByTypedIndex(byClass, name)
	if err != nil {
		return nil, fmt.Errorf("volumes of StorageClass %s: %w", name, err)
	}
	pv, err := volume.FindMatchingVolume(claim, all, t.node, given, true, true)
	if err != nil {
		return nil, &ClaimError{claim.Name, "cannot be bound: " + err.Error()}
	}
	if pv != nil {
		return pv, nil
	}
	class, err := t.classes.Get(name)
	if err != nil {
		return nil, &ClaimError{claim.Name, "cannot be bound: " + err.Error()}
	}
	if class.Provisioner == noProvisioner {
		return nil, &ClaimError{claim.Name, "finds no volume on node " + t.node.Name}
	}
	return nil, nil
}

// give binds a static volume to a claim, and leaves the rest to the PV controller.
func (t *task) give(ctx context.Context, pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim) error {
	prebound, dirty, err := volume.GetBindVolumeToClaim(pv, claim)
	if err != nil {
		return fmt.Errorf("bind volume %s to claim %s: %w", pv.Name, claim.Name, err)
	}
	if dirty {
		ctx, cancel := context.WithTimeout(ctx, cluster.APITimeout)
		defer cancel()
		// With the version that was read: of two claims, one has it.
		if _, err := t.client.CoreV1().PersistentVolumes().Update(ctx, prebound, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("bind volume %s to claim %s: %w", pv.Name, claim.Name, err)
		}
	}
	t.prebound[claim.Name] = pv.Name
	return nil
}

// annotate selects the node for a claim, which its provisioner acts on.
func (t *task) annotate(ctx context.Context, claim *v1.PersistentVolumeClaim) error {
	now, err := cluster.SelectNode(ctx, t.client, claim, t.node.Name)
	switch {
	case apierrors.IsConflict(err):
		return nil // it has changed: its event follows, and it is checked again
	case err != nil:
		return err
	}
	t.selected[claim.Name] = now.ResourceVersion
	return nil
}
