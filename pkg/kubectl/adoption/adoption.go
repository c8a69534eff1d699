// Package adoption converts a PersistentVolume of another driver into one of Carve's that keeps the
// data of its logical volume. Its functions depend on their arguments only, and have no side
// effects.
//
// The claim stays. Kubernetes lets neither a claim change its volume nor a volume its driver, but
// it lets a volume be deleted and recreated under its name. A claim without its volume is Lost, and
// Bound again to the new one, which names the claim by its UID.
package adoption

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
)

// Annotation holds the original PersistentVolume, in JSON, on a claim from the start of its
// adoption to the confirmation.
const Annotation = names.Prefix + "adopted-from"

// protection is the finalizer that keeps a PersistentVolume while a claim is bound to it.
const protection = "kubernetes.io/pv-protection"

// ErrDriver means that volumes of this driver cannot be adopted.
var ErrDriver = errors.New("its driver is neither TopoLVM nor OpenEBS LVM; volumes of others are copied, see docs/how-to/coming-from-elsewhere.md")

// driver describes the PersistentVolumes of another driver. Their volume handle is the logical
// volume's name.
type driver struct {
	name string
	// topology are the possible keys of the label of a volume's node.
	topology []string
	// group is the volume attribute with the volume group; empty if none has it.
	group string
}

var drivers = map[string]driver{
	"topolvm.io":           {name: "TopoLVM", topology: []string{"topology.topolvm.io/node", "topology.topolvm.cybozu.com/node"}},
	"topolvm.cybozu.com":   {name: "TopoLVM", topology: []string{"topology.topolvm.cybozu.com/node", "topology.topolvm.io/node"}},
	"local.csi.openebs.io": {name: "OpenEBS LVM", topology: []string{"openebs.io/nodename", "openebs.io/nodeid", "kubernetes.io/hostname"}, group: "openebs.io/volgroup"},
}

// Source is the location of a volume of another driver.
type Source struct {
	Driver string `json:"driver"`
	// TopologyKey and TopologyValue are the label of its node.
	TopologyKey   string `json:"-"`
	TopologyValue string `json:"-"`
	// VolumeGroup is empty if the PersistentVolume does not name it.
	VolumeGroup   string `json:"volumeGroup,omitempty"`
	LogicalVolume string `json:"logicalVolume"`
	Block         bool   `json:"block"`
}

// SourceOf returns the location of a PersistentVolume's volume, or ErrDriver for other drivers.
func SourceOf(pv *corev1.PersistentVolume) (Source, error) {
	if pv.Spec.CSI == nil {
		return Source{}, ErrDriver
	}
	d, ok := drivers[pv.Spec.CSI.Driver]
	if !ok {
		return Source{}, ErrDriver
	}
	source := Source{
		Driver: d.name, LogicalVolume: pv.Spec.CSI.VolumeHandle, VolumeGroup: pv.Spec.CSI.VolumeAttributes[d.group],
		Block: pv.Spec.VolumeMode != nil && *pv.Spec.VolumeMode == corev1.PersistentVolumeBlock,
	}
	for _, key := range d.topology {
		if value, ok := required(pv, key); ok {
			source.TopologyKey, source.TopologyValue = key, value
			return source, nil
		}
	}
	return Source{}, fmt.Errorf("PersistentVolume %s names no node: want a node affinity with one of %q", pv.Name, d.topology)
}

// required returns the only value that a volume's node affinity permits for a label.
func required(pv *corev1.PersistentVolume, key string) (string, bool) {
	if pv.Spec.NodeAffinity == nil || pv.Spec.NodeAffinity.Required == nil || len(pv.Spec.NodeAffinity.Required.NodeSelectorTerms) != 1 {
		return "", false
	}
	for _, e := range pv.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions {
		if e.Key == key && e.Operator == corev1.NodeSelectorOpIn && len(e.Values) == 1 {
			return e.Values[0], true
		}
	}
	return "", false
}

// Save encodes what is needed to recreate a PersistentVolume, for the annotation.
func Save(pv *corev1.PersistentVolume) (string, error) {
	kept := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: pv.Name, Labels: pv.Labels, Annotations: pv.Annotations, Finalizers: pv.Finalizers},
		Spec:       pv.Spec,
	}
	// The API server adds the protection again.
	kept.Finalizers = slices.DeleteFunc(slices.Clone(kept.Finalizers), func(f string) bool { return f == protection })
	text, err := json.Marshal(kept)
	if err != nil {
		return "", fmt.Errorf("encode PersistentVolume %s: %w", pv.Name, err)
	}
	return string(text), nil
}

// Load decodes the result of Save.
func Load(text string) (*corev1.PersistentVolume, error) {
	pv := &corev1.PersistentVolume{}
	if err := json.Unmarshal([]byte(text), pv); err != nil {
		return nil, fmt.Errorf("decode the annotation %s: %w", Annotation, err)
	}
	if pv.Spec.ClaimRef != nil {
		pv.Spec.ClaimRef.ResourceVersion = ""
	}
	return pv, nil
}

// PersistentVolume returns Carve's replacement for the saved PersistentVolume. It has the policy
// Retain until the adoption is confirmed. StorageClass, size, access modes and mount options stay,
// to match the claim.
func PersistentVolume(saved *corev1.PersistentVolume, vol *lvmdv1.Volume, node string) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: saved.Name, Labels: maps.Clone(saved.Labels),
			Annotations: map[string]string{
				volume.AnnDynamicallyProvisioned: names.Driver,
				names.AnnotationVolumeGroup:      vol.GetVgName() + "/" + vol.GetVgUuid(),
			},
		},
		Spec: *saved.Spec.DeepCopy(),
	}
	pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	pv.Spec.VolumeAttributesClassName = nil
	pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
		Driver: names.Driver, VolumeHandle: vol.GetId(), FSType: vol.GetFsType(),
		VolumeAttributes: map[string]string{names.ContextDeviceClass: vol.GetDeviceClass()},
	}}
	pv.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: names.TopologyNode, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
	}}}}
	return pv
}

// Provisioner returns the annotations that name another driver as a claim's provisioner, with
// Carve's name as their values. The controller may not write a claim while one of them names
// another driver.
func Provisioner(annotations map[string]string) map[string]any {
	changed := map[string]any{}
	for _, key := range []string{volume.AnnStorageProvisioner, volume.AnnBetaStorageProvisioner} {
		if driver := annotations[key]; driver != "" && driver != names.Driver {
			changed[key] = names.Driver
		}
	}
	return changed
}

// WithoutDriver removes the finalizers of the drivers whose volumes are adopted: a claim that kept
// one could not be deleted once its driver is removed.
func WithoutDriver(finalizers []string) []string {
	return slices.DeleteFunc(slices.Clone(finalizers), func(f string) bool {
		return f == "topolvm.io/pvc" || f == "topolvm.cybozu.com/pvc"
	})
}
