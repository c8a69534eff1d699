//go:build apiserver

package controller

import (
	"context"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// A class with claims: ephemeral rejects a user's claim with an Event and serves the control
// plane's. With the example's policy, the API server rejects the user's at creation.
func TestAClassServesGenericEphemeralVolumesOnly(t *testing.T) {
	client := connectToAPIServer(t)
	w := newWorld(t, client)
	w.namespace = ours
	install(t, client)
	class := func(name string, parameters map[string]string) {
		w.class(t, func(c *storagev1.StorageClass) { c.Name, c.Parameters = name, parameters })
	}
	class("ephemeral", map[string]string{names.ParamClaims: names.ClaimsEphemeral})
	class("scratch", map[string]string{names.ParamProfile: "scratch"})
	class("scratch-for-any", map[string]string{names.ParamProfile: "scratch", names.ParamClaims: names.ClaimsAny})
	class("any", nil)
	w.class(t, func(c *storagev1.StorageClass) {
		c.Name, c.Provisioner, c.Parameters = "others", otherDriver, map[string]string{names.ParamClaims: names.ClaimsEphemeral}
	})
	actWith(t, w, Options{Client: asController(t), Namespace: ours})

	plain := w.claim(t, "ephemeral", "n1", named("plain", nil))
	waittest.Until(t, "the claim's Event says why", func() bool {
		return w.eventOn(t, plain, "ProvisioningFailed", `StorageClass ephemeral: parameters[carve.csi.local/claims]: "ephemeral" for a claim that no Pod owns`,
			"spec.volumes[].ephemeral of a Pod") != nil
	})
	if n := len(w.nodes["n1"].Volumes()); n != 0 {
		t.Errorf("%d volumes were made", n)
	}
	w.delete(t, plain)

	apply(t, client, "../../deploy/examples/ephemeral-claims.yaml")
	try := func(class string, change func(*v1.PersistentVolumeClaim)) error {
		claim := claimOf("by-user", nil)
		claim.Spec.StorageClassName = &class
		if change != nil {
			change(claim)
		}
		_, err := client.CoreV1().PersistentVolumeClaims(ours).Create(t.Context(), claim, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	waittest.Until(t, "the policy is in force", func() bool { return try("ephemeral", nil) != nil })
	beta := func(class string) func(*v1.PersistentVolumeClaim) {
		return func(c *v1.PersistentVolumeClaim) {
			c.Annotations = map[string]string{v1.BetaStorageClassAnnotation: class}
			c.Spec.StorageClassName = nil
		}
	}
	for what, err := range map[string]error{
		"ephemeral": try("ephemeral", nil), "scratch": try("scratch", nil), "ephemeral by annotation": try("", beta("ephemeral")),
		// The author of a claim counts, not its owner reference.
		"ephemeral as of a Pod": try("ephemeral", ofPod),
	} {
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "is for generic ephemeral volumes only: define the volume in the Pod") {
			t.Errorf("a user's claim of class %s: %v", what, err)
		}
	}
	for _, class := range []string{"any", "scratch-for-any", "others", "missing", ""} {
		if err := try(class, nil); err != nil {
			t.Errorf("a user's claim of class %q: %v", class, err)
		}
	}

	spec, _ := scheduledPod(true)
	ephemeral := "ephemeral"
	spec.Volumes[0].Ephemeral.VolumeClaimTemplate.Spec.StorageClassName = &ephemeral
	w.runPodOf(t, "user", spec)
	w.isPlaced(t, "user", "user-data")
	claim := must.Get(client.CoreV1().PersistentVolumeClaims(ours).Get(t.Context(), "user-data", metav1.GetOptions{}))(t)
	must.Succeed(t, client.CoreV1().Pods(ours).Delete(context.Background(), "user", metav1.DeleteOptions{}))
	waittest.Until(t, "the Pod's claim is gone", func() bool { return w.get(claim) == nil })
	w.waitNothingLeft(t, claim)
}
