//go:build apiserver

package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	resizer "github.com/kubernetes-csi/external-resizer/v2/pkg/util"
	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/storage/volume"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/provision"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

const otherDriver = "other.example.com"

// An empty madeBy means that no provisioner made the volume.
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

const (
	annotate   = `{"metadata":{"annotations":{"probe":"%s"}}}`
	selectNode = `{"metadata":{"annotations":{"` + volume.AnnSelectedNode + `":"%s"}}}`
)

func patchVolumeAs(client kubernetes.Interface, name, patch string, subresources ...string) error {
	_, err := client.CoreV1().PersistentVolumes().Patch(context.Background(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, subresources...)
	return err
}

func patchClaimAs(client kubernetes.Interface, name, patch string, subresources ...string) error {
	_, err := client.CoreV1().PersistentVolumeClaims(ours).Patch(context.Background(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, subresources...)
	return err
}

// isDenied excludes the API's own validation, which has the same code.
func isDenied(err error) bool {
	return apierrors.IsInvalid(err) && strings.Contains(err.Error(), "ValidatingAdmissionPolicy")
}

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
	waiting, class := claimOf("volumeless", nil), "unrelated" // no volume fits it
	waiting.Spec.StorageClassName = &class
	for _, claim := range []*v1.PersistentVolumeClaim{
		waiting, claimOf("ours", asked(names.Driver)), claimOf("unasked", nil), claimOf("others", asked(otherDriver)),
		claimOf("others-beta", map[string]string{volume.AnnBetaStorageProvisioner: otherDriver}),
	} {
		must.Get(client.CoreV1().PersistentVolumeClaims(ours).Create(t.Context(), claim, metav1.CreateOptions{}))(t)
		t.Cleanup(func() {
			_ = client.CoreV1().PersistentVolumeClaims(ours).Delete(context.Background(), claim.Name, metav1.DeleteOptions{})
		})
	}
	waiting = must.Get(client.CoreV1().PersistentVolumeClaims(ours).Get(t.Context(), "volumeless", metav1.GetOptions{}))(t)
	for what, denied := range map[string]func() error{
		"volumes": func() error { return patchVolumeAs(limited, "others", fmt.Sprintf(annotate, "x")) },
		"claims":  func() error { return patchClaimAs(limited, "others", fmt.Sprintf(selectNode, "x")) },
	} {
		waittest.Until(t, "the policy for "+what+" is in force", func() bool { return isDenied(denied()) })
	}
	// An overlay may rename the account. Its roles do not matter here.
	for _, account := range []string{"acme-carve-controller", "carve-controller-acme"} {
		renamed := asAccount(t, account, "system:masters")
		if err := errors.Join(patchVolumeAs(renamed, "ours", fmt.Sprintf(annotate, account)), patchClaimAs(renamed, "ours", fmt.Sprintf(selectNode, account))); err != nil {
			t.Errorf("%s may not change what is its own: %v", account, err)
		}
		if !isDenied(patchVolumeAs(renamed, "others", fmt.Sprintf(annotate, account))) || !isDenied(patchClaimAs(renamed, "others", fmt.Sprintf(selectNode, account))) {
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
		"change a claim that another driver serves, beta":    patchClaimAs(limited, "others-beta", fmt.Sprintf(selectNode, "x")),
		"take a claim over that no driver was asked to":      patchClaimAs(limited, "unasked", `{"metadata":{"annotations":{"`+volume.AnnStorageProvisioner+`":"`+names.Driver+`"}}}`),
		"take it over, beta":                                 patchClaimAs(limited, "unasked", `{"metadata":{"annotations":{"`+volume.AnnBetaStorageProvisioner+`":"`+names.Driver+`"}}}`),
		"take it over by its volume's name":                  patchClaimAs(limited, "volumeless", `{"spec":{"volumeName":"pvc-`+string(waiting.UID)+`"}}`),
		"have a claim deleted with its owner":                patchClaimAs(limited, "unasked", `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"gone","uid":"gone"}]}}`),
		"take the protection from a claim in use":            patchClaimAs(limited, "unasked", `{"metadata":{"finalizers":null}}`),
		"say that a claim is bound":                          patchClaimAs(limited, "volumeless", `{"metadata":{"annotations":{"`+volume.AnnBindCompleted+`":"yes"}}}`),
		"take the note from its claim":                       patchClaimAs(limited, "ours", `{"metadata":{"annotations":{"`+volume.AnnStorageProvisioner+`":null}}}`),
		"label its claim by the status":                      patchClaimAs(limited, "ours", `{"metadata":{"labels":{"probe":"x"}}}`, "status"),
		"delete another driver's claim":                      deleteClaim("others"),
		"delete a claim that no driver was asked to serve":   deleteClaim("unasked"),
		"delete a claim that another driver serves, beta":    deleteClaim("others-beta"),
	} {
		if !isDenied(err) {
			t.Errorf("the controller may %s: %v", what, err)
		}
	}
	for what, err := range map[string]error{
		"change its volume":                     patchVolumeAs(limited, "ours", fmt.Sprintf(annotate, "x")),
		"change the status of its volume":       patchVolumeAs(limited, "ours", `{"status":{"message":"x"}}`, "status"),
		"change its volume of administrators'":  patchVolumeAs(limited, "ours-static", fmt.Sprintf(annotate, "x")),
		"create a volume of its own":            createVolume(volumeOf("ours-new", names.Driver, names.Driver)),
		"change its claim":                      patchClaimAs(limited, "ours", fmt.Sprintf(selectNode, "x")),
		"change a claim before it is asked to":  patchClaimAs(limited, "unasked", fmt.Sprintf(selectNode, "x")),
		"take the node from its claim":          patchClaimAs(limited, "ours", `{"metadata":{"annotations":{"`+volume.AnnSelectedNode+`":null}}}`),
		"protect the source of a clone":         patchClaimAs(limited, "ours", `{"metadata":{"finalizers":["kubernetes.io/pvc-protection","`+provision.CloneFinalizer+`"]}}`),
		"end its protection":                    patchClaimAs(limited, "ours", `{"metadata":{"finalizers":["kubernetes.io/pvc-protection"]}}`),
		"say that a raw block volume has grown": patchClaimAs(limited, "ours", `{"metadata":{"annotations":{"`+resizer.NodeExpansionNotRequired+`":"true"}}}`, "status"),
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

// The Secrets matter because a kubelet may read those that a PersistentVolume names.
func TestControllerNamesOnlySecretsOfTheClaim(t *testing.T) {
	client := connectToAPIServer(t)
	install(t, client)
	limited, volumes, roles := asController(t), client.CoreV1().PersistentVolumes(), client.RbacV1()
	meta := metav1.ObjectMeta{Name: "carve-keys", Namespace: "kube-system"}
	must.Get(roles.Roles(meta.Namespace).Create(t.Context(), &rbacv1.Role{ObjectMeta: meta,
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{"shared"}, Verbs: []string{"use"}}}}, metav1.CreateOptions{}))(t)
	must.Get(roles.RoleBindings(meta.Namespace).Create(t.Context(), &rbacv1.RoleBinding{ObjectMeta: meta,
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: ours, Name: "carve-controller"}}}, metav1.CreateOptions{}))(t)
	t.Cleanup(func() {
		_ = roles.Roles(meta.Namespace).Delete(context.Background(), meta.Name, metav1.DeleteOptions{})
		_ = roles.RoleBindings(meta.Namespace).Delete(context.Background(), meta.Name, metav1.DeleteOptions{})
	})
	secret := func(namespace, name string) func(*v1.PersistentVolume) {
		return func(pv *v1.PersistentVolume) {
			pv.Spec.CSI.NodeStageSecretRef = &v1.SecretReference{Namespace: namespace, Name: name}
		}
	}
	other := func(field func(*v1.CSIPersistentVolumeSource) **v1.SecretReference) func(*v1.PersistentVolume) {
		return func(pv *v1.PersistentVolume) {
			*field(pv.Spec.CSI) = &v1.SecretReference{Namespace: "team", Name: "key"}
		}
	}
	describe := func(name string, changes ...func(*v1.PersistentVolume)) *v1.PersistentVolume {
		pv := volumeOf(name, names.Driver, names.Driver)
		pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: "team", Name: "data", UID: "uid"}
		for _, change := range changes {
			change(pv)
		}
		return pv
	}
	create := func(changes ...func(*v1.PersistentVolume)) error {
		_, err := limited.CoreV1().PersistentVolumes().Create(t.Context(), describe("new", changes...), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	unclaimed := func(pv *v1.PersistentVolume) { pv.Spec.ClaimRef, pv.Spec.StorageClassName = nil, "unrelated" }
	unbound := func(pv *v1.PersistentVolume) { pv.Spec.ClaimRef.UID = "" }
	uid := map[string]string{}
	for _, pv := range []*v1.PersistentVolume{describe("foreign-secret", secret("kube-system", "topsecret")), describe("unbound", unbound),
		describe("unclaimed", unclaimed, secret("team", "key"))} {
		uid[pv.Name] = string(must.Get(volumes.Create(t.Context(), pv, metav1.CreateOptions{}))(t).UID)
		t.Cleanup(func() { _ = volumes.Delete(context.Background(), pv.Name, metav1.DeleteOptions{}) })
	}
	patch := func(name, patch string) error { return patchVolumeAs(limited, name, patch) }
	claim := func(name, namespace, claim, uid string) error {
		return patch(name, fmt.Sprintf(`{"spec":{"claimRef":{"namespace":%q,"name":%q,"uid":%q}}}`, namespace, claim, uid))
	}
	waittest.Until(t, "the policy is in force", func() bool { return isDenied(create(secret("kube-system", "topsecret"))) })
	waittest.Succeeds(t, "the Role is in force", func() error { return create(secret("kube-system", "shared")) })
	for what, err := range map[string]error{
		"name a Secret without a claim":                create(unclaimed, secret("team", "key")),
		"name a Secret to publish to the controller":   create(other(func(s *v1.CSIPersistentVolumeSource) **v1.SecretReference { return &s.ControllerPublishSecretRef })),
		"name a Secret to publish":                     create(other(func(s *v1.CSIPersistentVolumeSource) **v1.SecretReference { return &s.NodePublishSecretRef })),
		"name a Secret to expand":                      create(other(func(s *v1.CSIPersistentVolumeSource) **v1.SecretReference { return &s.ControllerExpandSecretRef })),
		"name a Secret to expand on the node":          create(other(func(s *v1.CSIPersistentVolumeSource) **v1.SecretReference { return &s.NodeExpandSecretRef })),
		"name a Secret to expand later":                patch("unbound", `{"spec":{"csi":{"controllerExpandSecretRef":{"namespace":"team","name":"key"}}}}`),
		"move a volume to another namespace":           claim("foreign-secret", "default", "data", "uid"),
		"move a volume to another claim":               claim("foreign-secret", "team", "next", "uid"),
		"move a volume to another claim of the name":   claim("foreign-secret", "team", "data", "other"),
		"take a volume from its claim":                 patch("foreign-secret", `{"spec":{"claimRef":null}}`),
		"move a volume that is not bound":              claim("unbound", "default", "data", uid["unbound"]),
		"give a volume to a claim":                     claim("unclaimed", "team", "data", "uid"),
		"withdraw a volume to where its Secret is not": claim("unclaimed", ours, "unclaimed", uid["unclaimed"]),
	} {
		if !isDenied(err) {
			t.Errorf("the controller may %s: %v", what, err)
		}
	}
	for what, err := range map[string]error{
		"name a Secret of the claim's namespace":    create(secret("team", "key")),
		"change a volume with a Secret of another":  patch("foreign-secret", fmt.Sprintf(annotate, "x")),
		"withdraw a volume without a claim":         claim("unclaimed", "team", "unclaimed", uid["unclaimed"]),
		"withdraw a volume that is kept for a name": claim("unbound", "team", "data", uid["unbound"]),
		"delete a volume with a Secret of another":  limited.CoreV1().PersistentVolumes().Delete(t.Context(), "foreign-secret", metav1.DeleteOptions{}),
	} {
		if err != nil {
			t.Errorf("the controller may not %s: %v", what, err)
		}
	}
}

func TestNodesHaveOnlyTheirOwnTopologyLabel(t *testing.T) {
	client := connectToAPIServer(t)
	create := func(name, label string, options metav1.CreateOptions) error {
		node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
		if label != "" {
			node.Labels[names.TopologyNode] = label
		}
		_, err := client.CoreV1().Nodes().Create(t.Context(), node, options)
		return err
	}
	for _, name := range []string{"wrong", "correct"} {
		waittest.Succeeds(t, "no policy of a test before is in force", func() error {
			return create(name, map[string]string{"wrong": "n2", "correct": ""}[name], metav1.CreateOptions{})
		})
		t.Cleanup(func() { _ = client.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{}) })
	}
	install(t, client)
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	waittest.Until(t, "the policy is in force", func() bool { return isDenied(create("new", "n2", dry)) })
	for _, test := range []struct {
		name, node, patch string
		denied            bool
	}{
		{"another node's", "correct", `{"metadata":{"labels":{%q:"n2"}}}`, true},
		{"an empty one", "correct", `{"metadata":{"labels":{%q:""}}}`, true},
		{"its own", "correct", `{"metadata":{"labels":{%q:"correct"}}}`, false},
		{"another instead of its own", "correct", `{"metadata":{"labels":{%q:"n2"}}}`, true},
		{"one wrong instead of another", "wrong", `{"metadata":{"labels":{%q:"n3"}}}`, true},
		{"a wrong one that stays", "wrong", `{"metadata":{"labels":{%q:"n2","other":"x"}},"status":{"conditions":[{"type":"Ready","status":"True"}]}}`, false},
		{"none instead of a wrong one", "wrong", `{"metadata":{"labels":{%q:null}}}`, false},
		{"its own at last", "wrong", `{"metadata":{"labels":{%q:"wrong"}}}`, false},
	} {
		for _, subresource := range []string{"status", ""} { // a kubelet labels its node through the status
			_, err := client.CoreV1().Nodes().Patch(t.Context(), test.node, types.MergePatchType, fmt.Appendf(nil, test.patch, names.TopologyNode), metav1.PatchOptions{}, subresource)
			if test.denied && !isDenied(err) || !test.denied && err != nil {
				t.Errorf("%s, written to %q: denied %t, want %t: %v", test.name, subresource, isDenied(err), test.denied, err)
			}
		}
	}
	for label, denied := range map[string]bool{"": false, "new": false, "n2": true} {
		if err := create("new", label, dry); isDenied(err) != denied || !denied && err != nil {
			t.Errorf("a new node labelled %q: denied %t, want %t: %v", label, isDenied(err), denied, err)
		}
	}
}
