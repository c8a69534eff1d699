package cluster

import (
	"crypto/sha256"
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/lru"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/objects"
)

// valuesShared is how many different values the objects in the caches share: those of a node's volumes are
// mostly the same. Where all differ, they take 30 MiB.
const valuesShared = 1 << 15

// trimmer drops from objects what is never read, before a cache holds them: 5,000 nodes with 20 volumes
// each are 200,000 objects. A Node, and a PersistentVolume of another driver, keep what is named here.
// Claims and PersistentVolumes of ours keep all but what is named: libraries read them, too. All that is
// written of these objects is a difference to what was read (see Patch), of which what is not in the cache
// is no part: an Update would remove it.
type trimmer struct {
	// values has maps, lists and affinities that many objects have, by the hash of what they say. Objects in
	// a cache may have one together, as nothing may change them.
	values *lru.Cache
}

func newTrimmer() trimmer { return trimmer{lru.New(valuesShared)} }

// trim is a cache.TransformFunc. It may change the object.
func (t trimmer) trim(obj any) (any, error) {
	if o, ok := obj.(metav1.Object); ok {
		o.SetManagedFields(nil)
	}
	switch o := obj.(type) {
	case *v1.Node:
		return trimNode(o), nil
	case *v1.PersistentVolume:
		return t.trimVolume(o), nil
	case *v1.PersistentVolumeClaim:
		t.trimMeta(&o.ObjectMeta)
		o.Spec.Resources.Requests, o.Status.Capacity = t.sizes(o.Spec.Resources.Requests), t.sizes(o.Status.Capacity)
		o.Spec.AccessModes, o.Status.AccessModes = t.modes(o.Spec.AccessModes), t.modes(o.Status.AccessModes)
		o.Spec.StorageClassName, o.Spec.VolumeMode = text(t, o.Spec.StorageClassName), text(t, o.Spec.VolumeMode)
	}
	return obj, nil
}

// trimNode leaves by far the most out, the images that a node has. The labels stay: StorageClasses choose
// by any of them.
func trimNode(node *v1.Node) *v1.Node {
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion, DeletionTimestamp: node.DeletionTimestamp, Labels: node.Labels,
		},
		Spec: v1.NodeSpec{Unschedulable: node.Spec.Unschedulable, Taints: node.Spec.Taints},
	}
}

// trimVolume leaves of the volume of another driver whose it is, so that none is taken for one of ours.
func (t trimmer) trimVolume(pv *v1.PersistentVolume) *v1.PersistentVolume {
	csi := pv.Spec.CSI
	if csi == nil || csi.Driver != names.Driver {
		lean := &v1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: pv.Name, UID: pv.UID, ResourceVersion: pv.ResourceVersion, DeletionTimestamp: pv.DeletionTimestamp},
			Spec:       v1.PersistentVolumeSpec{StorageClassName: pv.Spec.StorageClassName, ClaimRef: pv.Spec.ClaimRef},
			Status:     v1.PersistentVolumeStatus{Phase: pv.Status.Phase},
		}
		if csi != nil {
			lean.Spec.CSI = &v1.CSIPersistentVolumeSource{Driver: csi.Driver, VolumeHandle: csi.VolumeHandle}
		}
		return lean
	}
	t.trimMeta(&pv.ObjectMeta)
	node, recorded := objects.RecordedNode(pv)
	if csi.VolumeAttributes = nil; recorded {
		csi.VolumeAttributes = map[string]string{names.ContextNode: node}
	}
	pv.Spec.Capacity, pv.Spec.AccessModes, pv.Spec.VolumeMode = t.sizes(pv.Spec.Capacity), t.modes(pv.Spec.AccessModes), text(t, pv.Spec.VolumeMode)
	if affinity := pv.Spec.NodeAffinity; affinity != nil {
		if encoded, err := affinity.Marshal(); err == nil {
			pv.Spec.NodeAffinity = shared(t, "affinity "+string(encoded), affinity)
		}
	}
	return pv
}

// trimMeta keeps the annotations but the copy that kubectl makes of an object: a StorageClass may name a
// claim's Secret by any annotation of the claim.
func (t trimmer) trimMeta(meta *metav1.ObjectMeta) {
	meta.Labels = nil
	delete(meta.Annotations, v1.LastAppliedConfigAnnotation)
	meta.Annotations = shared(t, fmt.Sprintf("annotations %q", meta.Annotations), meta.Annotations)
	meta.Finalizers = shared(t, fmt.Sprintf("finalizers %q", meta.Finalizers), meta.Finalizers)
}

// sizes returns an equal list.
func (t trimmer) sizes(list v1.ResourceList) v1.ResourceList {
	size, ok := list[v1.ResourceStorage]
	if !ok || len(list) > 1 {
		return list
	}
	return shared(t, "size "+size.String(), list)
}

// modes returns an equal list.
func (t trimmer) modes(list []v1.PersistentVolumeAccessMode) []v1.PersistentVolumeAccessMode {
	return shared(t, fmt.Sprintf("modes %q", list), list)
}

// text returns a pointer to an equal text.
func text[T ~string](t trimmer, s *T) *T {
	if s == nil {
		return nil
	}
	return shared(t, fmt.Sprintf("%T %s", s, *s), s)
}

// shared returns the value that other objects have, too, or this one for those to come. What is said
// is all that is in it.
func shared[T any](t trimmer, said string, value T) T {
	key := sha256.Sum256([]byte(said)) // It is shorter.
	known, _ := t.values.Get(key)
	if same, ok := known.(T); ok {
		return same
	}
	t.values.Add(key, value)
	return value
}
