//go:build apiserver

package controller

import (
	"context"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/capacity"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func TestCapacityHealsItselfOnARealServer(t *testing.T) {
	client := connectToAPIServer(t)
	w := newWorld(t, client)
	install(t, client)
	class := w.class(t, nil)
	deployment := replaceDeployment(t, client)
	actWith(t, w, Options{Client: asController(t), Namespace: ours})
	api := client.StorageV1().CSIStorageCapacities(ours)
	name := capacity.Key{Node: "n1", Class: class}.ObjectName()
	get := func() *storagev1.CSIStorageCapacity {
		c, err := api.Get(context.Background(), name, metav1.GetOptions{})
		if err != nil {
			return nil
		}
		return c
	}
	right := func() bool {
		c := get()
		return c != nil && c.Capacity.Value() == gib && c.MaximumVolumeSize.Value() == gib && capacity.TopologyNode(c) == "n1" &&
			c.Labels[names.LabelManagedBy] == names.ManagedBy && c.Labels[capacity.LabelDriver] == names.Driver &&
			len(c.OwnerReferences) == 1 && c.OwnerReferences[0].UID == deployment.UID
	}
	count := func() int {
		list, err := api.List(context.Background(), metav1.ListOptions{})
		if err != nil {
			return -1
		}
		return len(list.Items)
	}
	waittest.Until(t, "both nodes are published", func() bool { return right() && count() == 2 })
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"a capacity that was raised", func() error {
			_, err := api.Patch(t.Context(), name, types.MergePatchType, []byte(`{"capacity":"1Ti","maximumVolumeSize":"1Ti"}`), metav1.PatchOptions{})
			return err
		}},
		{"a capacity that was lowered", func() error {
			_, err := api.Patch(t.Context(), name, types.MergePatchType, []byte(`{"capacity":"1","maximumVolumeSize":null}`), metav1.PatchOptions{})
			return err
		}},
		{"the upstream label, removed", func() error {
			_, err := api.Patch(t.Context(), name, types.MergePatchType, []byte(`{"metadata":{"labels":{"`+capacity.LabelDriver+`":null}}}`), metav1.PatchOptions{})
			return err
		}},
		{"the label by which we know it, removed", func() error {
			_, err := api.Patch(t.Context(), name, types.MergePatchType, []byte(`{"metadata":{"labels":{"`+names.LabelManagedBy+`":null}}}`), metav1.PatchOptions{})
			return err
		}},
		{"the owner, removed", func() error {
			_, err := api.Patch(t.Context(), name, types.MergePatchType, []byte(`{"metadata":{"ownerReferences":null}}`), metav1.PatchOptions{})
			return err
		}},
		{"the owner, made again", func() error {
			deployment = replaceDeployment(t, client)
			return nil
		}},
		{"an object that is deleted", func() error { return api.Delete(t.Context(), name, metav1.DeleteOptions{}) }},
		{"one under its name for another node", func() error {
			if err := api.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
				return err
			}
			other := capacity.Describe(capacity.Key{Node: "n2", Class: class}, spaceOf(gib))
			other.Name = name
			_, err := api.Create(t.Context(), other, metav1.CreateOptions{})
			if apierrors.IsAlreadyExists(err) {
				return nil // ours was quicker
			}
			return err
		}},
		{"a second object for the node", func() error {
			stray := capacity.Describe(capacity.Key{Node: "n1", Class: class}, spaceOf(5*gib))
			stray.Name = "stray"
			_, err := api.Create(t.Context(), stray, metav1.CreateOptions{})
			return err
		}},
		{"all objects deleted", func() error {
			return api.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{})
		}},
	} {
		t.Run(step.name, func(t *testing.T) {
			must.Succeed(t, step.do())
			waittest.Until(t, "all is as it was", func() bool { return right() && count() == 2 })
		})
	}
	if c := get(); c != nil && c.Capacity.Cmp(resource.MustParse("1Gi")) != 0 {
		t.Errorf("published %v", c.Capacity)
	}
}

func replaceDeployment(t *testing.T, client kubernetes.Interface) *appsv1.Deployment {
	t.Helper()
	api := client.AppsV1().Deployments(ours)
	remove := func() {
		err := api.Delete(context.Background(), "carve-controller", metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	}
	remove()
	labels := map[string]string{"app": "carve-controller"}
	var made *appsv1.Deployment
	waittest.Until(t, "the Deployment can be made", func() (ok bool) {
		var err error
		none := int32(0)
		made, err = api.Create(context.Background(), &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Name: "carve-controller"},
			Spec: appsv1.DeploymentSpec{
				Replicas: &none, Selector: &metav1.LabelSelector{MatchLabels: labels},
				Template: v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: "none"}}}},
			},
		}, metav1.CreateOptions{})
		return err == nil
	})
	t.Cleanup(remove)
	return made
}

func TestAClassThatNoNodeHasOnARealServer(t *testing.T) {
	client := connectToAPIServer(t)
	w := newWorld(t, client)
	w.namespace = "default"
	install(t, client)
	class := w.class(t, func(c *storagev1.StorageClass) { c.Parameters = map[string]string{names.ParamDeviceClass: "fast"} })
	actWith(t, w, Options{Client: asController(t), Namespace: ours})
	claim := w.claim(t, class, "", nil)
	t.Cleanup(func() {
		_ = client.CoreV1().PersistentVolumeClaims(claim.Namespace).Delete(context.Background(), claim.Name, metav1.DeleteOptions{})
	})
	waittest.Until(t, "an Event says why the claim waits", func() bool {
		events, err := client.CoreV1().Events(claim.Namespace).List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + claim.Name})
		if err != nil {
			return false
		}
		for _, e := range events.Items {
			if e.Reason == cluster.ReasonFailed && e.Type == v1.EventTypeWarning && strings.Contains(e.Message, `"fast", which no node has, is not allowed, allowed: ["local"]`) {
				return true
			}
		}
		return false
	})
	list, err := client.StorageV1().CSIStorageCapacities(ours).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 0 {
		t.Errorf("%d objects are published: %v", len(list.Items), err)
	}
}
