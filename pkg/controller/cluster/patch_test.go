package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/carve-csi/carve/pkg/must"
)

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
	added := decode(t, must.Get(Patch(pv, SameObject, WithFinalizer[*v1.PersistentVolume](Finalizer, true)))(t))["metadata"].(map[string]any)
	if !reflect.DeepEqual(added["finalizers"], []any{Finalizer}) || added["uid"] != "uid" {
		t.Errorf("added by %v", added)
	}
	// Others may have added theirs since the object was read.
	for _, known := range [][]string{{Finalizer, "others"}, {Finalizer}} {
		pv.Finalizers = known
		removed := decode(t, must.Get(Patch(pv, SameObject, WithFinalizer[*v1.PersistentVolume](Finalizer, false)))(t))["metadata"].(map[string]any)
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

// patches records what Apply sends.
type patches struct {
	name         string
	body         []byte
	subresources []string
	err          error
}

func (p *patches) Patch(ctx context.Context, name string, _ types.PatchType, body []byte, _ metav1.PatchOptions, subresources ...string) (*v1.PersistentVolume, error) {
	if _, bounded := ctx.Deadline(); !bounded {
		return nil, errors.New("the call is not bounded")
	}
	p.name, p.body, p.subresources = name, body, subresources
	return &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "8"}}, p.err
}

func TestAChangeIsSentAsItsPatch(t *testing.T) {
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv", UID: "uid", ResourceVersion: "7"}}
	var sent patches
	now := must.Get(Apply(t.Context(), &sent, pv, Exact, func(pv *v1.PersistentVolume) { pv.Status.Phase = v1.VolumeReleased }, "status"))(t)
	want := decode(t, []byte(`{"metadata":{"uid":"uid","resourceVersion":"7"},"status":{"phase":"Released"}}`))
	if sent.name != "pv" || !reflect.DeepEqual(decode(t, sent.body), want) || !reflect.DeepEqual(sent.subresources, []string{"status"}) || now.ResourceVersion != "8" {
		t.Errorf("sent %s to %s %v, got version %s", sent.body, sent.name, sent.subresources, now.ResourceVersion)
	}
	what := v1.Resource("persistentvolumes")
	for _, test := range []struct {
		err      error
		outdated bool
	}{
		{apierrors.NewNotFound(what, "pv"), true}, {apierrors.NewConflict(what, "pv", errors.New("changed")), true},
		{apierrors.NewForbidden(what, "pv", errors.New("no")), false}, {errors.New("no answer"), false},
	} {
		sent.err = test.err
		_, err := Apply(t.Context(), &sent, pv, SameObject, func(*v1.PersistentVolume) {})
		if !errors.Is(err, test.err) || IsOutdated(err) != test.outdated {
			t.Errorf("%v: got %v, outdated %v, want %v", test.err, err, IsOutdated(err), test.outdated)
		}
	}
}
