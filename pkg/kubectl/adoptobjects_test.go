package kubectl

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	k8stesting "k8s.io/client-go/testing"

	"github.com/carve-csi/carve/pkg/must"
)

// strictly adds behaviour of the real API server to the fake one: a write with another UID or
// resourceVersion is a conflict, and a deleted object stays until its last finalizer is removed.
// before is called before each write to an existing object.
func (a *adopting) strictly(before func(verb string, resource schema.GroupVersionResource, object metav1.Object) (changed bool)) {
	tracker := a.client.Tracker()
	a.client.PrependReactor("*", "*", func(action k8stesting.Action) (bool, runtime.Object, error) {
		var name string
		var body []byte
		var preconditions metav1.Preconditions
		switch write := action.(type) {
		case k8stesting.DeleteActionImpl:
			name = write.Name
			if p := write.DeleteOptions.Preconditions; p != nil {
				preconditions = *p
			}
		case k8stesting.PatchActionImpl:
			name, body = write.Name, write.Patch
			var patch struct {
				Metadata struct {
					UID             *types.UID `json:"uid"`
					ResourceVersion *string    `json:"resourceVersion"`
				} `json:"metadata"`
			}
			must.Succeed(a.t, json.Unmarshal(body, &patch))
			preconditions = metav1.Preconditions{UID: patch.Metadata.UID, ResourceVersion: patch.Metadata.ResourceVersion}
		default:
			return false, nil, nil
		}
		resource := action.GetResource()
		now, err := tracker.Get(resource, action.GetNamespace(), name)
		if err != nil {
			return true, nil, err
		}
		now = now.DeepCopyObject()
		object := must.Get(meta.Accessor(now))(a.t)
		if before(action.GetVerb(), resource, object) {
			must.Succeed(a.t, tracker.Update(resource, now, action.GetNamespace()))
		}
		if uid, version := preconditions.UID, preconditions.ResourceVersion; uid != nil && *uid != object.GetUID() || version != nil && *version != object.GetResourceVersion() {
			return true, nil, apierrors.NewConflict(resource.GroupResource(), name, errors.New("the preconditions do not hold"))
		}
		switch {
		case body == nil && len(object.GetFinalizers()) > 0:
			object.SetDeletionTimestamp(&metav1.Time{Time: today})
			return true, nil, tracker.Update(resource, now, action.GetNamespace())
		case body != nil && object.GetDeletionTimestamp() != nil:
			patched := struct {
				Metadata struct {
					Finalizers []string `json:"finalizers"`
				} `json:"metadata"`
			}{}
			patched.Metadata.Finalizers = object.GetFinalizers()
			must.Succeed(a.t, json.Unmarshal(body, &patched))
			object.SetFinalizers(patched.Metadata.Finalizers)
			if len(object.GetFinalizers()) == 0 {
				return true, now, tracker.Delete(resource, action.GetNamespace(), name)
			}
			return true, now, tracker.Update(resource, now, action.GetNamespace())
		}
		return false, nil, nil
	})
}

func untouched(string, schema.GroupVersionResource, metav1.Object) bool { return false }

func TestTheFormerVolumeGoesWhateverKeepsIt(t *testing.T) {
	a := newAdopting(t, nil)
	a.strictly(untouched)
	a.must("state: adopted", "--yes")
	a.must("state: reverted", "--revert")
	a.must("state: adopted", "--yes")
	a.must("state: confirmed", "--confirm")
}

// Another client deletes and recreates each object in turn just before a write to it.
func TestAnotherObjectOfTheSameNameIsLeftAlone(t *testing.T) {
	for _, steps := range [][]string{{"--yes"}, {"--yes", "--confirm"}, {"--yes", "--revert"}} {
		writes := 0
		for at := 1; ; at++ {
			a := newAdopting(t, nil)
			count, enabled := 0, false
			var resource schema.GroupVersionResource
			var anew metav1.Object
			a.strictly(func(_ string, of schema.GroupVersionResource, object metav1.Object) bool {
				if enabled {
					count++
				}
				if count != at || anew != nil {
					return false
				}
				object.SetUID("of-another")
				object.SetResourceVersion("99")
				resource, anew = of, object
				return true
			})
			for _, step := range steps[:len(steps)-1] {
				a.must("state:", step)
			}
			enabled = true
			last := steps[len(steps)-1]
			_, err := a.call(last)
			if anew == nil {
				if err != nil {
					t.Fatalf("%s: %v", last, err)
				}
				break
			}
			writes++
			if !apierrors.IsConflict(err) {
				t.Errorf("%s, write %d, to %s: want a conflict, got %v", last, at, resource.Resource, err)
			}
			left := must.Get(a.client.Tracker().Get(resource, anew.GetNamespace(), anew.GetName()))(t)
			if !equal(t, left, anew) {
				t.Errorf("%s, write %d, to %s: another's is %s, was %s", last, at, resource.Resource, inJSON(t, left), inJSON(t, anew))
			}
		}
		if writes < 2 {
			t.Errorf("%q: %d writes to objects that are there", steps, writes)
		}
	}
}

// Kubernetes writes a volume that it has just bound. A merge patch replaces the whole list of
// finalizers, and would drop one added since the read.
func TestAVolumeThatChangesMeanwhileIsNotOverwritten(t *testing.T) {
	a := newAdopting(t, nil)
	a.must("state: adopted", "--yes")
	const kept = "example.com/kept"
	first := true
	a.strictly(func(_ string, resource schema.GroupVersionResource, object metav1.Object) bool {
		if !first || resource != corev1.SchemeGroupVersion.WithResource("persistentvolumes") {
			return false
		}
		first = false
		object.SetFinalizers([]string{kept})
		object.SetResourceVersion("99")
		return true
	})
	a.must("state: confirmed", "--confirm")
	if pv := a.volume(); first || !slices.Equal(pv.Finalizers, []string{kept, provisionerFinalizer}) || pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete {
		t.Errorf("finalizers %q, policy %s", pv.Finalizers, pv.Spec.PersistentVolumeReclaimPolicy)
	}
}

// A volume with the policy Retain keeps it with Carve.
func TestAVolumeThatIsRetainedStaysSo(t *testing.T) {
	a := newAdopting(t, func(pv *corev1.PersistentVolume, _ *corev1.PersistentVolumeClaim) {
		pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	})
	a.must("state: adopted", "--yes")
	a.must("state: confirmed", "--confirm")
	if pv := a.volume(); pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain || len(pv.Finalizers) > 0 {
		t.Errorf("policy %s, finalizers %q", pv.Spec.PersistentVolumeReclaimPolicy, pv.Finalizers)
	}
}

func TestAClaimIsWaitedForUntilItIsBound(t *testing.T) {
	a := newAdopting(t, nil)
	claims := corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims")
	phase := func(phase corev1.PersistentVolumeClaimPhase) {
		claim := a.claimNow()
		claim.Status.Phase = phase
		must.Succeed(t, a.client.Tracker().Update(claims, claim, claim.Namespace))
	}
	made, read := false, 0
	a.client.PrependReactor("create", "persistentvolumes", func(k8stesting.Action) (bool, runtime.Object, error) {
		made = true
		phase(corev1.ClaimLost)
		return false, nil, nil
	})
	a.client.PrependReactor("get", "persistentvolumeclaims", func(k8stesting.Action) (bool, runtime.Object, error) {
		if !made {
			return false, nil, nil
		}
		if read++; read == 2 {
			phase(corev1.ClaimBound)
		}
		return false, nil, nil
	})
	a.must("state: adopted", "--yes")
	if read < 2 {
		t.Errorf("it was read %d times, and lost before the second", read)
	}
}

func (a *adopting) claimNow() *corev1.PersistentVolumeClaim {
	a.t.Helper()
	claim, ok := must.Get(a.client.Tracker().Get(corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"), "team", claimName))(a.t).(*corev1.PersistentVolumeClaim)
	if !ok {
		a.t.Fatal("the claim is something else")
	}
	return claim.DeepCopy()
}
