package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/storage/volume"
)

// Precision says which other changes of the object a Patch tolerates.
type Precision int

const (
	// SameObject tolerates any: the patch carries the object's UID.
	SameObject Precision = iota
	// Exact tolerates none: the patch carries the resource version, too.
	Exact
)

type object[T any] interface {
	metav1.Object
	DeepCopy() T
}

// patcher is the part of a typed client that Apply needs.
type patcher[T any] interface {
	Patch(ctx context.Context, name string, kind types.PatchType, data []byte, options metav1.PatchOptions, subresources ...string) (T, error)
}

// Apply changes an object at the API server by a Patch, and returns the result. Check errors with
// IsOutdated.
func Apply[T object[T]](ctx context.Context, client patcher[T], object T, precision Precision, change func(T), subresources ...string) (now T, err error) {
	patch, err := Patch(object, precision, change)
	if err != nil {
		return now, err
	}
	ctx, cancel := context.WithTimeout(ctx, APITimeout)
	defer cancel()
	return client.Patch(ctx, object.GetName(), types.StrategicMergePatchType, patch, metav1.PatchOptions{}, subresources...)
}

// IsOutdated reports whether a write failed because the object is gone, was replaced or has another
// version. Its events will follow.
func IsOutdated(err error) bool { return apierrors.IsNotFound(err) || apierrors.IsConflict(err) }

// SelectNode selects a node for a claim with late binding, as the scheduler does, if the claim is
// unchanged.
func SelectNode(ctx context.Context, client kubernetes.Interface, claim *v1.PersistentVolumeClaim, node string) (*v1.PersistentVolumeClaim, error) {
	now, err := Apply(ctx, client.CoreV1().PersistentVolumeClaims(claim.Namespace), claim, Exact, func(c *v1.PersistentVolumeClaim) {
		metav1.SetMetaDataAnnotation(&c.ObjectMeta, volume.AnnSelectedNode, node)
	})
	if err != nil {
		return nil, fmt.Errorf("select node %s for claim %s: %w", node, claim.Name, err)
	}
	return now, nil
}

// Patch returns the strategic merge patch for change, without modifying object. The API server
// rejects it with a conflict for another object of that name and, with Exact, for another version.
// It adds and removes elements of lists that are merged by key, such as finalizers, one by one.
func Patch[T object[T]](object T, precision Precision, change func(T)) ([]byte, error) {
	before, after := object.DeepCopy(), object.DeepCopy()
	before.SetUID(types.UID("")) // differences go into the patch
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

// keepEmpty restores in to the empty lists and maps that from has and the conversion dropped.
// Otherwise the patch would remove a whole list or map, including additions of others.
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

// WithFinalizer returns a change that adds or removes a finalizer.
func WithFinalizer[T metav1.Object](finalizer string, wanted bool) func(T) {
	return func(o T) {
		others := slices.DeleteFunc(o.GetFinalizers(), func(f string) bool { return f == finalizer })
		if wanted {
			others = append(others, finalizer)
		}
		o.SetFinalizers(others)
	}
}
