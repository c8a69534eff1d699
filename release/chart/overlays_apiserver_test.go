//go:build apiserver

package chart_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"

	"github.com/carve-csi/carve/release/manifests"
)

// server applies objects to a real API server.
type server struct {
	objects dynamic.Interface
	mapper  *restmapper.DeferredDiscoveryRESTMapper
}

// apply has the API server take an object in, or, with dryRun, judge it as if it did. Unknown
// fields are refused, as kubectl has it.
func (s server) apply(ctx context.Context, object *unstructured.Unstructured, dryRun ...string) error {
	kind := object.GroupVersionKind()
	mapping, err := s.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return err
	}
	var resource dynamic.ResourceInterface = s.objects.Resource(mapping.Resource)
	if mapping.Scope.Name() != meta.RESTScopeNameNamespace {
		if object.GetNamespace() != "" {
			return fmt.Errorf("it is the cluster's, and has the namespace %q", object.GetNamespace())
		}
	} else {
		resource = s.objects.Resource(mapping.Resource).Namespace(object.GetNamespace())
	}
	body, err := object.MarshalJSON()
	if err != nil {
		return err
	}
	force := true
	_, err = resource.Patch(ctx, object.GetName(), "application/apply-patch+yaml", body,
		metav1.PatchOptions{FieldManager: "test", Force: &force, FieldValidation: metav1.FieldValidationStrict, DryRun: dryRun})
	return err
}

// TestEveryOverlayIsAcceptedByTheAPIServer asks the API server to take in what users apply,
// without keeping it, over the base, which it keeps.
func TestEveryOverlayIsAcceptedByTheAPIServer(t *testing.T) {
	client, config := connect(t)
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	s := server{objects, restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client.Discovery()))}
	if err := s.apply(t.Context(), constraintsKind()); err != nil {
		t.Fatal(err)
	}
	constraints := schema.GroupKind{Group: "security.openshift.io", Kind: "SecurityContextConstraints"}
	if err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		s.mapper.Reset()
		_, err := s.mapper.RESTMapping(constraints)
		return err == nil, nil
	}); err != nil {
		t.Fatalf("wait for %s: %v", constraints, err)
	}
	base, err := manifests.Kustomize(filepath.Join(root, "deploy", "base"))
	if err != nil {
		t.Fatal(err)
	}
	for _, first := range []bool{true, false} { // what is in a namespace comes after it
		for name, object := range base {
			if (object.GetKind() == "Namespace") != first {
				continue
			}
			if err := s.apply(t.Context(), object); err != nil {
				t.Fatalf("the base's %s: %v", name, err)
			}
		}
	}
	driver, err := client.StorageV1().CSIDrivers().Get(t.Context(), "carve.csi.local", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	serves, err := client.Discovery().ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	is := version.MustParseGeneric(serves.GitVersion)
	if has, want := driver.Spec.NodeAllocatableUpdatePeriodSeconds != nil, is.AtLeast(version.MajorMinor(1, 35)); has != want {
		t.Errorf("Kubernetes %s keeps the CSIDriver's nodeAllocatableUpdatePeriodSeconds: %t, want %t", is, has, want)
	}
	overlays, err := filepath.Glob(filepath.Join(root, "deploy", "overlays", "*"))
	if err != nil || len(overlays) == 0 {
		t.Fatalf("overlays: want some, got %d, %v", len(overlays), err)
	}
	for _, overlay := range overlays {
		t.Run(filepath.Base(overlay), func(t *testing.T) {
			set, err := manifests.Kustomize(overlay)
			if err != nil {
				t.Fatal(err)
			}
			for name, object := range set {
				if err := s.apply(t.Context(), object, metav1.DryRunAll); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
	}
}

// constraintsKind is as much of OpenShift's SecurityContextConstraints as makes them the
// cluster's. What is in them is checked against OpenShift's own types.
func constraintsKind() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": "securitycontextconstraints.security.openshift.io"},
		"spec": map[string]any{
			"group": "security.openshift.io", "scope": "Cluster",
			"names": map[string]any{"kind": "SecurityContextConstraints", "plural": "securitycontextconstraints", "singular": "securitycontextconstraints"},
			"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true, "schema": map[string]any{
				"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true},
			}}},
		},
	}}
}
