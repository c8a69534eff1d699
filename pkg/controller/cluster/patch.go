package cluster

import (
	"encoding/json"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// Precision says what else may have changed when the API server applies a Patch.
type Precision int

const (
	// SameObject lets everything else have changed: the patch carries the object's UID.
	SameObject Precision = iota
	// Exact lets nothing have changed: the patch carries the resource version, too.
	Exact
)

// Patch returns the strategic merge patch for what change does to an object, which stays as it
// is. The API server refuses it with a conflict for another object of that name, and, where
// it is Exact, for another version. Elements of lists that are merged by key, such as
// finalizers, are added and removed one by one.
func Patch[T interface {
	metav1.Object
	DeepCopy() T
}](object T, precision Precision, change func(T)) ([]byte, error) {
	before, after := object.DeepCopy(), object.DeepCopy()
	before.SetUID(types.UID("")) // What differs is in the patch.
	if precision == Exact {
		before.SetResourceVersion("")
	}
	change(after)
	from, err := runtime.DefaultUnstructuredConverter.ToUnstructured(before)
	if err != nil {
		return nil, fmt.Errorf("make a patch: %w", err)
	}
	to, err := runtime.DefaultUnstructuredConverter.ToUnstructured(after)
	if err != nil {
		return nil, fmt.Errorf("make a patch: %w", err)
	}
	keepEmpty(from, to)
	patch, err := strategicpatch.CreateTwoWayMergeMapPatch(from, to, object)
	if err != nil {
		return nil, fmt.Errorf("make a patch: %w", err)
	}
	return json.Marshal(patch)
}

// keepEmpty gives to the lists and maps that from has and that were left out because they
// are empty. Without, the patch would remove a whole list or map, with what others have added.
func keepEmpty(from, to map[string]any) {
	for key, was := range from {
		is, there := to[key]
		switch was := was.(type) {
		case map[string]any:
			if !there {
				is = map[string]any{}
				to[key] = is
			}
			if is, ok := is.(map[string]any); ok {
				keepEmpty(was, is)
			}
		case []any:
			if !there {
				to[key] = []any{}
			}
		}
	}
}

// FinalizerPatch returns the strategic merge patch that makes an object have a finalizer, or
// not have it.
func FinalizerPatch[T interface {
	metav1.Object
	DeepCopy() T
}](object T, finalizer string, wanted bool) ([]byte, error) {
	return Patch(object, SameObject, func(o T) {
		others := slices.DeleteFunc(o.GetFinalizers(), func(f string) bool { return f == finalizer })
		if wanted {
			others = append(others, finalizer)
		}
		o.SetFinalizers(others)
	})
}
