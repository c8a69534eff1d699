package adoption

import (
	"errors"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/must"
)

func volumeOf(driver, key string, values ...string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pvc-1", Labels: map[string]string{"team": "a"}, Finalizers: []string{protection, "example.com/kept"}},
		Spec: corev1.PersistentVolumeSpec{
			ClaimRef:               &corev1.ObjectReference{Namespace: "team", Name: "data", UID: "1", ResourceVersion: "7"},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: "lv-1"}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{
					{Key: "kubernetes.io/os", Operator: corev1.NodeSelectorOpIn, Values: []string{"linux"}},
					{Key: key, Operator: corev1.NodeSelectorOpIn, Values: values},
				}}}}},
		},
	}
}

func TestVolumesOfEveryDriverAreFoundByTheirNode(t *testing.T) {
	for _, c := range []struct{ driver, name, key string }{
		{"topolvm.io", "TopoLVM", "topology.topolvm.io/node"},
		{"topolvm.io", "TopoLVM", "topology.topolvm.cybozu.com/node"},
		{"topolvm.cybozu.com", "TopoLVM", "topology.topolvm.cybozu.com/node"},
		{"topolvm.cybozu.com", "TopoLVM", "topology.topolvm.io/node"},
		{"local.csi.openebs.io", "OpenEBS LVM", "openebs.io/nodename"},
		{"local.csi.openebs.io", "OpenEBS LVM", "openebs.io/nodeid"},
		{"local.csi.openebs.io", "OpenEBS LVM", "kubernetes.io/hostname"},
	} {
		got, err := SourceOf(volumeOf(c.driver, c.key, "n1"))
		if want := (Source{Driver: c.name, TopologyKey: c.key, TopologyValue: "n1", LogicalVolume: "lv-1"}); err != nil || got != want {
			t.Errorf("%s by %s: got %+v, %v", c.driver, c.key, got, err)
		}
	}
}

func TestAVolumeOfNoOneNodeIsRefused(t *testing.T) {
	const key = "topology.topolvm.io/node"
	change := func(do func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
		pv := volumeOf("topolvm.io", key, "n1")
		do(pv)
		return pv
	}
	terms := func(pv *corev1.PersistentVolume) *[]corev1.NodeSelectorTerm {
		return &pv.Spec.NodeAffinity.Required.NodeSelectorTerms
	}
	for name, pv := range map[string]*corev1.PersistentVolume{
		"no node affinity":    change(func(pv *corev1.PersistentVolume) { pv.Spec.NodeAffinity = nil }),
		"nothing is required": change(func(pv *corev1.PersistentVolume) { pv.Spec.NodeAffinity.Required = nil }),
		"another label":       volumeOf("topolvm.io", "openebs.io/nodename", "n1"),
		"one of two nodes":    volumeOf("topolvm.io", key, "n1", "n2"),
		"all nodes but one": change(func(pv *corev1.PersistentVolume) {
			(*terms(pv))[0].MatchExpressions[1].Operator = corev1.NodeSelectorOpNotIn
		}),
		"one of several terms": change(func(pv *corev1.PersistentVolume) { *terms(pv) = append(*terms(pv), (*terms(pv))[0]) }),
	} {
		if got, err := SourceOf(pv); err == nil || errors.Is(err, ErrDriver) {
			t.Errorf("%s: got %+v, %v", name, got, err)
		}
	}
	for name, pv := range map[string]*corev1.PersistentVolume{
		"no CSI":         change(func(pv *corev1.PersistentVolume) { pv.Spec.CSI = nil }),
		"another driver": volumeOf("other.example.com", key, "n1"),
	} {
		if got, err := SourceOf(pv); !errors.Is(err, ErrDriver) {
			t.Errorf("%s: got %+v, %v", name, got, err)
		}
	}
}

func TestWhatIsSavedCanBeMadeAgain(t *testing.T) {
	got := must.Get(Load(must.Get(Save(volumeOf("topolvm.io", "topology.topolvm.io/node", "n1")))(t)))(t)
	if got.Name != "pvc-1" || got.Labels["team"] != "a" || !slices.Equal(got.Finalizers, []string{"example.com/kept"}) ||
		got.Spec.ClaimRef.UID != "1" || got.Spec.ClaimRef.ResourceVersion != "" || got.Spec.CSI.VolumeHandle != "lv-1" {
		t.Errorf("got %+v", got)
	}
}

func TestTheNewVolumeKeepsItsLabelsAndHasNoAttributesOfAnotherDriver(t *testing.T) {
	saved := volumeOf("topolvm.io", "topology.topolvm.io/node", "n1")
	gold := "gold"
	saved.Spec.VolumeAttributesClassName = &gold
	got := PersistentVolume(saved, &lvmdv1.Volume{Id: "cv1"}, "n1")
	if got.Labels["team"] != "a" || got.Spec.VolumeAttributesClassName != nil || got.Spec.CSI.VolumeHandle != "cv1" || *saved.Spec.VolumeAttributesClassName != gold {
		t.Errorf("got %+v of %+v", got, saved)
	}
}

func TestAClaimLosesTheFinalizersOfTheFormerDriverOnly(t *testing.T) {
	if got := WithoutDriver([]string{"topolvm.cybozu.com/pvc", "kubernetes.io/pvc-protection", "topolvm.io/pvc"}); !slices.Equal(got, []string{"kubernetes.io/pvc-protection"}) {
		t.Errorf("got %q", got)
	}
}
