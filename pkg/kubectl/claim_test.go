package kubectl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/must"
)

func TestAnOrphanIsGivenToANewClaim(t *testing.T) {
	var asked []string
	agents := holds(map[string]string{"carve-node-n1": held, "carve-node-n2": ""}, &asked)
	client := fake.NewClientset(objects()...)
	got, err := callOn(t, client, agents, "orphans", "adopt", "cvlost", "--claim=db", "-o", "json", "--yes")
	if err != nil {
		t.Fatal(err)
	}
	var made Claimed
	if err := json.Unmarshal([]byte(got), &made); err != nil {
		t.Fatal(err)
	}
	// Check the cluster, not the output.
	pv := must.Get(client.CoreV1().PersistentVolumes().Get(t.Context(), made.PersistentVolume.Name, metav1.GetOptions{}))(t)
	claim := must.Get(client.CoreV1().PersistentVolumeClaims("team").Get(t.Context(), "db", metav1.GetOptions{}))(t)
	if !made.Made || pv.Spec.CSI.VolumeHandle != "cvlost" || pv.Spec.ClaimRef.Namespace != "team" || pv.Spec.ClaimRef.Name != "db" ||
		pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain || *pv.Spec.VolumeMode != corev1.PersistentVolumeBlock ||
		pv.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values[0] != "n1" {
		t.Errorf("the volume: %+v", pv)
	}
	if size := claim.Spec.Resources.Requests[corev1.ResourceStorage]; claim.Spec.VolumeName != pv.Name || *claim.Spec.StorageClassName != "carve" || size.Value() != 1<<30 {
		t.Errorf("the claim: %+v", claim)
	}
	for _, test := range []struct {
		args []string
		want error
	}{
		{[]string{"cvknown", "--claim=db"}, ErrNotAnOrphan}, {[]string{"cvhand", "--claim=db"}, ErrForeign},
		{[]string{"cvlost", "--claim=db", "--storage-class=other"}, ErrStorageClass},
	} {
		if _, err := call(t, objects(), agents, append([]string{"orphans", "adopt"}, test.args...)...); !errors.Is(err, test.want) {
			t.Errorf("%q: want %v, got %v", test.args, test.want, err)
		}
	}
	if _, err := call(t, objects(), agents, "orphans", "adopt", "cvhand", "--claim=db"); !strings.Contains(fmt.Sprint(err), "removed or adopted only with --foreign") {
		t.Errorf("another cluster's: %v", err)
	}
	if _, err := call(t, objects(), agents, "orphans", "adopt", "cvhand", "--claim=db", "--foreign"); err != nil {
		t.Errorf("another cluster's, with --foreign: %v", err)
	}
	if got, err := call(t, objects(), agents, "orphans", "adopt", "cvlost", "--claim=db"); err != nil || !strings.Contains(got, "volumeHandle: cvlost") || !strings.Contains(got, "# --yes makes them") {
		t.Errorf("a dry run: %v\n%s", err, got)
	}
}

func TestAnAdoptedOrphanIsMountedAsItsClassSays(t *testing.T) {
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "carve"}, MountOptions: []string{"noatime", "discard"}}
	got := must.Get(claimed(Orphan{ID: "cvlost", Node: "n1", FSType: "ext4", volume: &lvmdv1.Volume{Id: "cvlost"}}, "team", "db", class))(t)
	if options := got.PersistentVolume.Spec.MountOptions; !slices.Equal(options, class.MountOptions) {
		t.Errorf("mount options: want %q, got %q", class.MountOptions, options)
	}
}

func TestARemovalIsPrintedForPrograms(t *testing.T) {
	var asked []string
	agents := holds(map[string]string{"carve-node-n1": held, "carve-node-n2": ""}, &asked)
	for _, yes := range []bool{false, true} {
		args := []string{"orphans", "remove", "cvlost", "-o", "json"}
		if yes {
			args = append(args, "--yes")
		}
		got, err := call(t, objects(), agents, args...)
		var removal Removal
		if err != nil || json.Unmarshal([]byte(got), &removal) != nil || removal.Removed != yes || removal.Orphan.ID != "cvlost" {
			t.Errorf("%q: %v\n%s", args, err, got)
		}
	}
}

func TestWhatClaimsReserveIsShown(t *testing.T) {
	class := "carve"
	waiting := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "waiting", Annotations: map[string]string{"volume.kubernetes.io/selected-node": "n2"}},
		Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &class, Resources: corev1.VolumeResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("3Gi")}}},
	}
	bound, second, others := waiting.DeepCopy(), waiting.DeepCopy(), waiting.DeepCopy()
	bound.Name, bound.Spec.VolumeName = "bound", "pvc-1"
	other := "other"
	second.Name, others.Name, others.Spec.StorageClassName = "second", "others", &other
	all := append(objects(), waiting, bound, second, others)
	got, err := call(t, all, nil, "capacity", "-o", "json")
	var capacities []Capacity
	if err != nil || json.Unmarshal([]byte(got), &capacities) != nil {
		t.Fatalf("%v\n%s", err, got)
	}
	i := slices.IndexFunc(capacities, func(c Capacity) bool { return c.Node == "n2" && c.StorageClass == "carve" })
	if i < 0 || capacities[i].ReservedBytes != 6<<30 || capacities[0].ReservedBytes != 0 {
		t.Errorf("got %+v", capacities)
	}
	if slices.ContainsFunc(capacities, func(c Capacity) bool { return c.StorageClass == other }) {
		t.Errorf("a class of another driver is shown: %+v", capacities)
	}
	table, err := call(t, all, nil, "capacity")
	if err != nil || !strings.Contains(strings.Join(strings.Fields(table), " "), "n2 carve 0 6.0Gi 20.0Gi 1.0Gi [####................]") {
		t.Errorf("want a table with what is reserved and a bar of it, got\n%s%v", table, err)
	}
}

func TestDoctorAsksTheAgents(t *testing.T) {
	const classes = `{"name":"local","type":"linear"}
{"name":"thin","type":"thin"}
{"name":"mirrored","type":"raid1","conditions":[{"type":"OutOfSync","message":"copies differ"},{"type":"MissingDevice","message":"1 of 2 devices are missing"}]}
`
	agents := func(loaded string) run {
		return scripted(map[string]string{"carve-lvmd classes --json": classes, "dmsetup targets": loaded})
	}
	got, err := call(t, objects(), agents("thin-pool        v1.23.0\nraid             v1.15.1\nlinear           v1.4.0\n"), "doctor", "--agents")
	if words := strings.Join(strings.Fields(got), " "); !errors.Is(err, ErrUnhealthy) || !strings.Contains(words, "ok class thin of n1") ||
		!strings.Contains(words, "WRONG class mirrored of n1: OutOfSync: copies differ; MissingDevice: 1 of 2 devices are missing") {
		t.Errorf("%v\n%s", err, got)
	}
	got, _ = call(t, objects(), agents("linear           v1.4.0\n"), "doctor", "--agents")
	if words := strings.Join(strings.Fields(got), " "); !strings.Contains(words, "note class thin of n2: the kernel has not loaded dm_thin_pool") || !strings.Contains(words, "ok class local of n2") {
		t.Errorf("without the module: %s", got)
	}
	for class, want := range map[string]string{"raid1": "raid", "raid5": "raid", "raid6": "raid", "raid10": "raid", "striped": "striped", "thin": "thin-pool"} {
		for loaded, ok := range map[string]bool{"linear v1.4.0\n" + want + " v1.0.0\n": true, "linear v1.4.0\n": false} {
			answers := scripted(map[string]string{"carve-lvmd classes --json": `{"name":"c","type":"` + class + `"}`, "dmsetup targets": loaded})
			got, err := call(t, objects(), answers, "doctor", "--agents")
			if err != nil || strings.Contains(got, "has the target "+want) == ok {
				t.Errorf("class of type %s, targets %q: %v\n%s", class, loaded, err, got)
			}
		}
	}
	got, err = call(t, objects(), scripted(nil), "doctor", "--agents")
	if !errors.Is(err, ErrUnhealthy) || !strings.Contains(got, "agent of n1") {
		t.Errorf("agents that do not answer: %v\n%s", err, got)
	}
}

func scripted(answers map[string]string) run {
	return func(_ context.Context, _, _ string, argv ...string) (string, error) {
		answer, ok := answers[strings.Join(argv, " ")]
		if !ok {
			return "", errNode
		}
		return answer, nil
	}
}

// The orphan is given to the claim team/db. The PersistentVolume cannot get the Secret later.
func TestAnEncryptedOrphanHasItsKey(t *testing.T) {
	secret := func(name string) map[string]string {
		return map[string]string{names.ParamStageSecretName: name, names.ParamStageSecretNamespace: "${pvc.namespace}"}
	}
	for name, test := range map[string]struct {
		encryption string
		parameters map[string]string
		want       string
		refused    []string
	}{
		"by the claim's name":  {"luks", secret("${pvc.name}-key"), "team/db-key", nil},
		"by the volume's name": {"luks", secret("${pv.name}"), "team/carve-cvlost", nil},
		"not encrypted":        {"", secret("${pvc.name}-key"), "", nil},
		"a key of the kernel":  {"ephemeral", nil, "", nil},
		"a class without a Secret": {"luks", nil, "", []string{"cvlost", "StorageClass carve", "has no parameter " + names.ParamStageSecretName,
			"--storage-class", "docs/how-to/encryption.md"}},
		"a class without its namespace": {"luks", map[string]string{names.ParamStageSecretName: "key"}, "", []string{"StorageClass carve", names.ParamStageSecretNamespace, "--storage-class"}},
		"by an annotation":              {"luks", secret("${pvc.annotations['key']}"), "", []string{"StorageClass carve", "${pvc.annotations['key']}", "--storage-class"}},
	} {
		t.Run(name, func(t *testing.T) {
			list := objects()
			for _, o := range list {
				if class, ok := o.(*storagev1.StorageClass); ok && class.Name == "carve" {
					class.Parameters = test.parameters
				}
			}
			var asked []string
			volumes := strings.ReplaceAll(held, `"id":"cvlost"`, `"id":"cvlost","encryption":"`+test.encryption+`"`)
			client := fake.NewClientset(list...)
			got, err := callOn(t, client, holds(map[string]string{"carve-node-n1": volumes, "carve-node-n2": ""}, &asked), "orphans", "adopt", "cvlost", "--claim=db", "--yes")
			if test.refused != nil {
				_, errMade := client.CoreV1().PersistentVolumeClaims("team").Get(t.Context(), "db", metav1.GetOptions{})
				if !errors.Is(err, ErrNoKey) || !containsAll(err.Error(), test.refused) || !apierrors.IsNotFound(errMade) {
					t.Errorf("want an error with %q and no claim, got %v, %v", test.refused, err, errMade)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			ref := must.Get(client.CoreV1().PersistentVolumes().Get(t.Context(), "carve-cvlost", metav1.GetOptions{}))(t).Spec.CSI.NodeStageSecretRef
			if (ref == nil) != (test.want == "") || ref != nil && (ref.Namespace+"/"+ref.Name != test.want || !strings.Contains(got, "# Secret "+test.want+" ")) {
				t.Errorf("want the Secret %q, got %v\n%s", test.want, ref, got)
			}
		})
	}
}
