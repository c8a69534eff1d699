package cluster

import (
	"encoding/json"
	"reflect"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/pkg/must"
)

// decode reads a patch.
func decode(t *testing.T, patch []byte) map[string]any {
	t.Helper()
	var out map[string]any
	must.Succeed(t, json.Unmarshal(patch, &out))
	return out
}

func TestAPatchSaysWhatChangedAndOfWhichObject(t *testing.T) {
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv", UID: "uid", ResourceVersion: "7", Annotations: map[string]string{"a": "b"}},
		Status: v1.PersistentVolumeStatus{Phase: v1.VolumePending}}
	for name, test := range map[string]struct {
		precision Precision
		change    func(*v1.PersistentVolume)
		want      string
	}{
		"a phase, of this object": {SameObject, func(pv *v1.PersistentVolume) { pv.Status.Phase = v1.VolumeBound },
			`{"metadata":{"uid":"uid"},"status":{"phase":"Bound"}}`},
		"a phase, of this version": {Exact, func(pv *v1.PersistentVolume) { pv.Status.Phase = v1.VolumeBound },
			`{"metadata":{"uid":"uid","resourceVersion":"7"},"status":{"phase":"Bound"}}`},
		"an annotation that is taken away": {SameObject, func(pv *v1.PersistentVolume) { delete(pv.Annotations, "a") },
			`{"metadata":{"uid":"uid","annotations":{"a":null}}}`},
	} {
		patch := must.Get(Patch(pv, test.precision, test.change))(t)
		if got, want := decode(t, patch), decode(t, []byte(test.want)); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %s, want %s", name, patch, test.want)
		}
	}
	if pv.Status.Phase != v1.VolumePending || pv.Annotations["a"] != "b" || pv.UID != "uid" || pv.ResourceVersion != "7" {
		t.Errorf("the object was changed: %+v", pv)
	}
}

func TestAPatchOfAFinalizerLeavesThoseOfOthersAlone(t *testing.T) {
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv", UID: "uid", Finalizers: []string{"others"}}}
	added := decode(t, must.Get(FinalizerPatch(pv, Finalizer, true))(t))["metadata"].(map[string]any)
	if !reflect.DeepEqual(added["finalizers"], []any{Finalizer}) || added["uid"] != "uid" {
		t.Errorf("added by %v", added)
	}
	// Others may have added theirs since the object was read.
	for _, known := range [][]string{{Finalizer, "others"}, {Finalizer}} {
		pv.Finalizers = known
		removed := decode(t, must.Get(FinalizerPatch(pv, Finalizer, false))(t))["metadata"].(map[string]any)
		_, all := removed["finalizers"]
		if !reflect.DeepEqual(removed["$deleteFromPrimitiveList/finalizers"], []any{Finalizer}) || all {
			t.Errorf("of %v, removed by %v", known, removed)
		}
	}
}

func TestAPatchThatRemovesTheLastConditionLeavesLaterOnesAlone(t *testing.T) {
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "c", UID: "uid"},
		Status: v1.PersistentVolumeClaimStatus{Conditions: []v1.PersistentVolumeClaimCondition{{Type: "Ours", Status: v1.ConditionTrue}}}}
	patch := must.Get(Patch(claim, SameObject, func(c *v1.PersistentVolumeClaim) { c.Status.Conditions = nil }))(t)
	status := decode(t, patch)["status"].(map[string]any)
	if want := []any{map[string]any{"$patch": "delete", "type": "Ours"}}; !reflect.DeepEqual(status["conditions"], want) {
		t.Errorf("patch %s", patch)
	}
}
