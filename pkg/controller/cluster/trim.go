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

// valuesShared limits the values that cached objects share: those of a node's volumes are mostly
// equal. All distinct, they take 30 MiB.
const valuesShared = 1 << 15

// trimmer drops unread fields from objects before a cache holds them: 5,000 nodes with 20 volumes
// each are 200,000 objects. Of Nodes and of other drivers' PersistentVolumes, it keeps only the
// fields listed here. Of claims and our PersistentVolumes, it drops only the fields listed here,
// because libraries read them, too. Write these objects only by Patch, which leaves absent fields
// alone; an Update would remove them.
type trimmer struct {
	// values holds maps, lists and affinities that many objects have, by the hash of their content.
	// Cached objects may share them, as nothing may change them.
	values *lru.Cache
}

func newTrimmer() trimmer { return trimmer{lru.New(valuesShared)} }

// trim is a cache.TransformFunc. It may change obj.
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

// trimNode drops above all the list of images. It keeps the labels: StorageClasses may select by
// any of them.
func trimNode(node *v1.Node) *v1.Node {
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion, DeletionTimestamp: node.DeletionTimestamp, Labels: node.Labels,
		},
		Spec: v1.NodeSpec{Unschedulable: node.Spec.Unschedulable, Taints: node.Spec.Taints},
	}
}

// trimVolume keeps the driver of other drivers' volumes, so that they are not mistaken for ours.
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

// trimMeta keeps all annotations except kubectl's copy of the object: a StorageClass may name a
// claim's Secret by any annotation of the claim.
func (t trimmer) trimMeta(meta *metav1.ObjectMeta) {
	meta.Labels = nil
	delete(meta.Annotations, v1.LastAppliedConfigAnnotation)
	meta.Annotations = shared(t, fmt.Sprintf("annotations %q", meta.Annotations), meta.Annotations)
	meta.Finalizers = shared(t, fmt.Sprintf("finalizers %q", meta.Finalizers), meta.Finalizers)
}

func (t trimmer) sizes(list v1.ResourceList) v1.ResourceList {
	size, ok := list[v1.ResourceStorage]
	if !ok || len(list) > 1 {
		return list
	}
	return shared(t, "size "+size.String(), list)
}

func (t trimmer) modes(list []v1.PersistentVolumeAccessMode) []v1.PersistentVolumeAccessMode {
	return shared(t, fmt.Sprintf("modes %q", list), list)
}

func text[T ~string](t trimmer, s *T) *T {
	if s == nil {
		return nil
	}
	return shared(t, fmt.Sprintf("%T %s", s, *s), s)
}

// shared returns the value of an earlier call with the same key, or else value. said must cover the
// whole content of value.
func shared[T any](t trimmer, said string, value T) T {
	key := sha256.Sum256([]byte(said)) // shorter than said
	known, _ := t.values.Get(key)
	if same, ok := known.(T); ok {
		return same
	}
	t.values.Add(key, value)
	return value
}
