//go:build apiserver

package controller

import (
	"context"
	"errors"
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/storage/volume"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

const otherDriver = "other.example.com"

// volumeOf describes a PersistentVolume of a driver, which a provisioner made unless
// madeBy is empty.
func volumeOf(name, driver, madeBy string) *v1.PersistentVolume {
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.PersistentVolumeSpec{
		AccessModes:                   []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
		Capacity:                      v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")},
		PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimRetain, StorageClassName: "unowned",
		PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: name}},
	}}
	if madeBy != "" {
		pv.Annotations = map[string]string{volume.AnnDynamicallyProvisioned: madeBy}
	}
	return pv
}

func claimOf(name string, annotations map[string]string) *v1.PersistentVolumeClaim {
	class := "unowned"
	return &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: ours, Annotations: annotations},
		Spec: v1.PersistentVolumeClaimSpec{StorageClassName: &class, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}}}}
}

const annotate = `{"metadata":{"annotations":{"probe":"%s"}}}`

func patchVolumeAs(client kubernetes.Interface, name, patch string, subresources ...string) error {
	_, err := client.CoreV1().PersistentVolumes().Patch(context.Background(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, subresources...)
	return err
}

func patchClaimAs(client kubernetes.Interface, name, patch string, subresources ...string) error {
	_, err := client.CoreV1().PersistentVolumeClaims(ours).Patch(context.Background(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, subresources...)
	return err
}

// TestTheControllerMayWriteOnlyItsOwnVolumesAndClaims tries what the rights that are
// shipped allow, and what their policies deny.
func TestTheControllerMayWriteOnlyItsOwnVolumesAndClaims(t *testing.T) {
	client := connectToAPIServer(t)
	install(t, client)
	limited := asController(t)
	for _, pv := range []*v1.PersistentVolume{
		volumeOf("ours", names.Driver, names.Driver), volumeOf("ours-static", names.Driver, ""),
		volumeOf("others", otherDriver, otherDriver), volumeOf("others-static", otherDriver, ""), volumeOf("made-by-others", names.Driver, otherDriver),
	} {
		must.Get(client.CoreV1().PersistentVolumes().Create(t.Context(), pv, metav1.CreateOptions{}))(t)
		t.Cleanup(func() {
			_ = client.CoreV1().PersistentVolumes().Delete(context.Background(), pv.Name, metav1.DeleteOptions{})
		})
	}
	asked := func(driver string) map[string]string {
		return map[string]string{volume.AnnStorageProvisioner: driver}
	}
	for _, claim := range []*v1.PersistentVolumeClaim{
		claimOf("ours", asked(names.Driver)), claimOf("unasked", nil), claimOf("others", asked(otherDriver)),
		claimOf("others-beta", map[string]string{volume.AnnBetaStorageProvisioner: otherDriver}),
	} {
		must.Get(client.CoreV1().PersistentVolumeClaims(ours).Create(t.Context(), claim, metav1.CreateOptions{}))(t)
		t.Cleanup(func() {
			_ = client.CoreV1().PersistentVolumeClaims(ours).Delete(context.Background(), claim.Name, metav1.DeleteOptions{})
		})
	}
	for what, denied := range map[string]func() error{
		"volumes": func() error { return patchVolumeAs(limited, "others", fmt.Sprintf(annotate, "x")) },
		"claims":  func() error { return patchClaimAs(limited, "others", fmt.Sprintf(annotate, "x")) },
	} {
		waittest.Until(t, "the policy for "+what+" is in force", func() bool { return apierrors.IsInvalid(denied()) })
	}
	// An overlay may rename the account. Its roles are not of interest here.
	for _, account := range []string{"acme-carve-controller", "carve-controller-acme"} {
		renamed := asAccount(t, account, "system:masters")
		if err := errors.Join(patchVolumeAs(renamed, "ours", fmt.Sprintf(annotate, account)), patchClaimAs(renamed, "ours", fmt.Sprintf(annotate, account))); err != nil {
			t.Errorf("%s may not change what is its own: %v", account, err)
		}
		if !apierrors.IsInvalid(patchVolumeAs(renamed, "others", fmt.Sprintf(annotate, account))) || !apierrors.IsInvalid(patchClaimAs(renamed, "others", fmt.Sprintf(annotate, account))) {
			t.Errorf("%s may change volumes and claims of another driver", account)
		}
	}

	deleteVolume := func(name string) error {
		return limited.CoreV1().PersistentVolumes().Delete(t.Context(), name, metav1.DeleteOptions{})
	}
	deleteClaim := func(name string) error {
		return limited.CoreV1().PersistentVolumeClaims(ours).Delete(t.Context(), name, metav1.DeleteOptions{})
	}
	createVolume := func(pv *v1.PersistentVolume) error {
		_, err := limited.CoreV1().PersistentVolumes().Create(t.Context(), pv, metav1.CreateOptions{})
		return err
	}
	for what, err := range map[string]error{
		"change another driver's volume by an administrator": patchVolumeAs(limited, "others-static", fmt.Sprintf(annotate, "x")),
		"change a volume that another driver made":           patchVolumeAs(limited, "made-by-others", fmt.Sprintf(annotate, "x")),
		"change the status of another driver's volume":       patchVolumeAs(limited, "others", `{"status":{"message":"x"}}`, "status"),
		"take a volume over by its note":                     patchVolumeAs(limited, "others", `{"metadata":{"annotations":{"`+volume.AnnDynamicallyProvisioned+`":"`+names.Driver+`"}}}`),
		"delete another driver's volume":                     deleteVolume("others"),
		"delete another driver's volume of an administrator": deleteVolume("others-static"),
		"create another driver's volume":                     createVolume(volumeOf("new", otherDriver, "")),
		"change the status of another driver's claim":        patchClaimAs(limited, "others", `{"status":{"phase":"Lost"}}`, "status"),
		"take a claim over by its note":                      patchClaimAs(limited, "others", `{"metadata":{"annotations":{"`+volume.AnnStorageProvisioner+`":"`+names.Driver+`"}}}`),
		"change a claim that another driver serves, beta":    patchClaimAs(limited, "others-beta", fmt.Sprintf(annotate, "x")),
		"delete another driver's claim":                      deleteClaim("others"),
		"delete a claim that no driver was asked to serve":   deleteClaim("unasked"),
		"delete a claim that another driver serves, beta":    deleteClaim("others-beta"),
	} {
		if !apierrors.IsInvalid(err) {
			t.Errorf("the controller may %s: %v", what, err)
		}
	}
	for what, err := range map[string]error{
		"change its volume":                    patchVolumeAs(limited, "ours", fmt.Sprintf(annotate, "x")),
		"change the status of its volume":      patchVolumeAs(limited, "ours", `{"status":{"message":"x"}}`, "status"),
		"change its volume of administrators'": patchVolumeAs(limited, "ours-static", fmt.Sprintf(annotate, "x")),
		"create a volume of its own":           createVolume(volumeOf("ours-new", names.Driver, names.Driver)),
		"change its claim":                     patchClaimAs(limited, "ours", fmt.Sprintf(annotate, "x")),
		"change a claim before it is asked to": patchClaimAs(limited, "unasked", fmt.Sprintf(annotate, "x")),
	} {
		if err != nil {
			t.Errorf("the controller may not %s: %v", what, err)
		}
	}
	for what, err := range map[string]error{
		"its volume": deleteVolume("ours"), "the volume that it made": deleteVolume("ours-new"),
		"its volume of administrators'": deleteVolume("ours-static"), "its claim": deleteClaim("ours"),
	} {
		if err != nil {
			t.Errorf("the controller may not delete %s: %v", what, err)
		}
	}
}
