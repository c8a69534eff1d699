package cluster

import (
	"encoding/json"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/objects"
	"github.com/carve-csi/carve/pkg/controller/spec"
	"github.com/carve-csi/carve/pkg/must"
)

func trimmed[T object[T]](whole T) T {
	lean, err := newTrimmer().trim(whole.DeepCopy())
	if out, ok := lean.(T); ok && err == nil {
		return out
	}
	panic(fmt.Sprintf("trimmed to %T: %v", lean, err))
}

// wholeMeta returns metadata of a usual size.
func wholeMeta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: name, UID: types.UID("uid-of-" + name), ResourceVersion: "7", Generation: 3, CreationTimestamp: metav1.NewTime(time.Unix(1e9, 0)),
		Labels:        map[string]string{"app.kubernetes.io/name": "web", "pod-template-hash": "6f7c9d"},
		Annotations:   map[string]string{v1.LastAppliedConfigAnnotation: strings.Repeat("x", 2000), "example.com/key": "k"},
		Finalizers:    []string{"kubernetes.io/protection", Finalizer},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kube-controller-manager", FieldsV1: metav1.NewFieldsV1(`{"f:spec":"` + strings.Repeat("x", 900) + `"}`)}},
	}
}

func wholeNode(name string) *v1.Node {
	node := &v1.Node{ObjectMeta: wholeMeta(name), Spec: v1.NodeSpec{ProviderID: "cloud:///" + name, PodCIDRs: []string{"10.0.0.0/24"}}}
	node.Finalizers = nil
	for i := range 30 {
		node.Labels[fmt.Sprintf("example.com/label-%d", i)] = "value"
	}
	for i := range 50 {
		node.Status.Images = append(node.Status.Images, v1.ContainerImage{Names: []string{
			fmt.Sprintf("registry.example.com/team/image-%d@sha256:%064d", i, i), fmt.Sprintf("registry.example.com/team/image-%d:v1.2.3", i)}})
	}
	for _, kind := range []v1.NodeConditionType{v1.NodeReady, v1.NodeMemoryPressure, v1.NodeDiskPressure, v1.NodePIDPressure} {
		node.Status.Conditions = append(node.Status.Conditions, v1.NodeCondition{Type: kind, Message: "kubelet is posting ready status"})
	}
	return node
}

// wholeClaim returns the i-th claim, wholeVolume its PersistentVolume; twenty are on one node.
func wholeClaim(i int) *v1.PersistentVolumeClaim {
	claim := &v1.PersistentVolumeClaim{
		ObjectMeta: wholeMeta(fmt.Sprintf("web-%d-data", i)),
		Spec: v1.PersistentVolumeClaimSpec{StorageClassName: ptr.To("carve"), VolumeName: fmt.Sprintf("pvc-%d", i), AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("10Gi")}}},
		Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound, Capacity: v1.ResourceList{v1.ResourceStorage: resource.MustParse("10Gi")}},
	}
	claim.Namespace, claim.Annotations[volume.AnnSelectedNode], claim.Annotations[volume.AnnBindCompleted] = "team", fmt.Sprintf("node-%d", i/20), "yes"
	claim.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: fmt.Sprintf("web-%d", i), UID: "pod", Controller: ptr.To(true)}}
	return claim
}

func wholeVolume(i int) *v1.PersistentVolume {
	pv := &v1.PersistentVolume{
		ObjectMeta: wholeMeta(fmt.Sprintf("pvc-%d", i)),
		Spec: v1.PersistentVolumeSpec{StorageClassName: "carve", PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimDelete,
			Capacity:     v1.ResourceList{v1.ResourceStorage: resource.MustParse("10Gi")},
			ClaimRef:     &v1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "team", Name: fmt.Sprintf("web-%d-data", i), UID: types.UID(fmt.Sprintf("uid-of-web-%d-data", i))},
			NodeAffinity: objects.NodeAffinity(fmt.Sprintf("node-%d", i/20)),
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: names.Driver, VolumeHandle: fmt.Sprintf("v%d", i), FSType: "ext4",
				VolumeAttributes: map[string]string{"storage.kubernetes.io/csiProvisionerIdentity": "1-2-" + names.Driver, names.ContextDeviceClass: "local"}}}},
		Status: v1.PersistentVolumeStatus{Phase: v1.VolumeBound},
	}
	pv.Annotations[volume.AnnDynamicallyProvisioned], pv.Annotations[names.AnnotationVolumeGroup] = names.Driver, "carve/uuid"
	return pv
}

func TestATrimmedNodeIsJudgedAsTheWholeOne(t *testing.T) {
	terms := []v1.TopologySelectorTerm{{MatchLabelExpressions: []v1.TopologySelectorLabelRequirement{{Key: "zone", Values: []string{"a"}}}}}
	rapid.Check(t, func(t *rapid.T) {
		whole := wholeNode("n1")
		whole.Labels["zone"] = rapid.SampledFrom([]string{"a", "b"}).Draw(t, "zone")
		whole.Spec.Unschedulable = rapid.Bool().Draw(t, "unschedulable")
		for _, key := range rapid.SliceOf(rapid.SampledFrom([]string{v1.TaintNodeOutOfService, names.TaintAgentNotReady, names.TaintScaleDownCandidate})).Draw(t, "taints") {
			whole.Spec.Taints = append(whole.Spec.Taints, v1.Taint{Key: key, Value: "v", Effect: v1.TaintEffectNoExecute})
		}
		judge := func(node *v1.Node) []any {
			return []any{node.Name, node.UID, node.ResourceVersion, node.DeletionTimestamp, node.Labels, node.Spec.Taints, node.Spec.Unschedulable,
				OutOfService(node), spec.AllowedBy(terms, node)}
		}
		if got, want := judge(trimmed(whole)), judge(whole); !reflect.DeepEqual(got, want) {
			t.Errorf("of the trimmed node %v, want %v as of the whole one", got, want)
		}
	})
}

func TestATrimmedVolumeIsJudgedAsTheWholeOne(t *testing.T) {
	for name, change := range map[string]func(*v1.PersistentVolume){
		"ours": func(*v1.PersistentVolume) {},
		"a movable one": func(pv *v1.PersistentVolume) {
			pv.Spec.NodeAffinity, pv.Spec.CSI.VolumeAttributes[names.ContextNode] = nil, "n1"
		},
		"one made by hand":      func(pv *v1.PersistentVolume) { delete(pv.Annotations, volume.AnnDynamicallyProvisioned) },
		"another provisioner's": func(pv *v1.PersistentVolume) { pv.Annotations[volume.AnnDynamicallyProvisioned] = "other.csi" },
		"another driver's":      func(pv *v1.PersistentVolume) { pv.Spec.CSI.Driver = "other.csi" },
		"one of no driver":      func(pv *v1.PersistentVolume) { pv.Spec.CSI = nil },
		"one that is being deleted": func(pv *v1.PersistentVolume) {
			pv.DeletionTimestamp, pv.Spec.CSI.Driver = ptr.To(metav1.Now()), "other.csi"
		},
		"one that has no claim":      func(pv *v1.PersistentVolume) { pv.Spec.ClaimRef = nil },
		"one that was released":      func(pv *v1.PersistentVolume) { pv.Status.Phase = v1.VolumeReleased },
		"one of a lost node's class": func(pv *v1.PersistentVolume) { pv.Annotations[names.ParamOnNodeLoss] = names.NodeLossRecreate },
	} {
		t.Run(name, func(t *testing.T) {
			whole := wholeVolume(0)
			change(whole)
			judge := func(pv *v1.PersistentVolume) []any {
				handle, _ := handleIndexer(pv)
				out := []any{pv.Name, pv.UID, pv.ResourceVersion, pv.DeletionTimestamp, objects.IsOurs(pv), IsReleased(pv), objects.BelongsTo(pv, wholeClaim(0)), handle, pv.Spec.ClaimRef}
				if objects.IsOurs(pv) { // the rest is only read from ours
					node, one := objects.NodeOf(pv)
					recorded, is := objects.RecordedNode(pv)
					out = append(out, node, one, recorded, is, NotedGroup(pv), pv.Annotations[names.ParamOnNodeLoss], pv.CreationTimestamp)
				}
				return out
			}
			if got, want := judge(trimmed(whole)), judge(whole); !reflect.DeepEqual(got, want) {
				t.Errorf("of the trimmed volume %v, want %v as of the whole one", got, want)
			}
		})
	}
}

// The libraries that expand and modify volumes read the same caches.
func TestOfOursOnlyWhatIsNamedIsDropped(t *testing.T) {
	drop := func(meta *metav1.ObjectMeta) {
		meta.ManagedFields, meta.Labels = nil, nil
		delete(meta.Annotations, v1.LastAppliedConfigAnnotation)
	}
	pv, claim := wholeVolume(0), wholeClaim(0)
	leanVolume, leanClaim := trimmed(pv), trimmed(claim)
	drop(&pv.ObjectMeta)
	drop(&claim.ObjectMeta)
	pv.Spec.CSI.VolumeAttributes = nil
	if !equality.Semantic.DeepEqual(leanVolume, pv) {
		t.Errorf("the volume is trimmed to %v, want %v", leanVolume, pv)
	}
	if !equality.Semantic.DeepEqual(leanClaim, claim) {
		t.Errorf("the claim is trimmed to %v, want %v", leanClaim, claim)
	}
}

func TestPatchesOfTrimmedObjectsAreThoseOfWholeOnes(t *testing.T) {
	for _, precision := range []Precision{SameObject, Exact} {
		node, pv, claim := wholeNode("n1"), wholeVolume(0), wholeClaim(0)
		node.Spec.Taints = []v1.Taint{{Key: names.TaintAgentNotReady, Effect: v1.TaintEffectNoSchedule}, {Key: "other", Effect: v1.TaintEffectNoSchedule}}
		samePatch(t, "a taint", node, precision, func(n *v1.Node) { n.Spec.Taints = slices.Clone(n.Spec.Taints[1:]) })
		samePatch(t, "a volume's finalizer", pv, precision, WithFinalizer[*v1.PersistentVolume](Finalizer, false))
		samePatch(t, "a volume's phase", pv, precision, func(pv *v1.PersistentVolume) { pv.Status.Phase = v1.VolumeReleased })
		samePatch(t, "a volume's annotation", pv, precision, func(pv *v1.PersistentVolume) {
			metav1.SetMetaDataAnnotation(&pv.ObjectMeta, names.AnnotationVolumeGroup, "carve/other")
		})
		samePatch(t, "a claim's node", claim, precision, func(c *v1.PersistentVolumeClaim) {
			metav1.SetMetaDataAnnotation(&c.ObjectMeta, volume.AnnSelectedNode, "n2")
		})
		samePatch(t, "a claim's condition", claim, precision, func(c *v1.PersistentVolumeClaim) {
			c.Status.Conditions = append(c.Status.Conditions, v1.PersistentVolumeClaimCondition{Type: names.ConditionVolumeMissing})
		})
	}
}

func samePatch[T object[T]](t *testing.T, what string, whole T, precision Precision, change func(T)) {
	t.Helper()
	got, want := must.Get(Patch(trimmed(whole), precision, change))(t), must.Get(Patch(whole, precision, change))(t)
	if string(got) != string(want) {
		t.Errorf("the patch for %s of the trimmed object is %s, want %s as of the whole one", what, got, want)
	}
}

func TestANodesImagesAreNotKept(t *testing.T) {
	whole := wholeNode("n1")
	all, lean := len(must.Get(json.Marshal(whole))(t)), len(must.Get(json.Marshal(trimmed(whole)))(t))
	if lean*8 > all {
		t.Errorf("%d bytes are kept of a node of %d, want an eighth at most", lean, all)
	}
}

func TestOnlyEqualAnnotationsAreShared(t *testing.T) {
	trim, claims := newTrimmer(), []*v1.PersistentVolumeClaim{}
	for _, annotations := range []map[string]string{{"a": "b", "c": "d"}, {"a": "b", "c": "d"}, {"a": "b c:d"}, {"a": `b" "c":"d`}, nil, {}} {
		claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Annotations: annotations}}
		want := fmt.Sprintf("%q", annotations)
		claims = append(claims, must.Get(trim.trim(claim))(t).(*v1.PersistentVolumeClaim))
		if got := fmt.Sprintf("%q", claim.Annotations); got != want {
			t.Errorf("annotations are %s, want %s", got, want)
		}
	}
	if reflect.ValueOf(claims[0].Annotations).Pointer() != reflect.ValueOf(claims[1].Annotations).Pointer() {
		t.Error("two claims with equal annotations have a map each, want one for both")
	}
}

// The ratio compares the same objects in the same process, without the caches' indexes.
func TestACacheTakesLittleForEachVolume(t *testing.T) {
	const volumes = 4000
	decoded := func(trim func(any) (any, error)) (kept []any) {
		for i := range volumes {
			claim, pv := &v1.PersistentVolumeClaim{}, &v1.PersistentVolume{}
			must.Succeed(t, claim.Unmarshal(must.Get(wholeClaim(i).Marshal())(t)))
			must.Succeed(t, pv.Unmarshal(must.Get(wholeVolume(i).Marshal())(t)))
			kept = append(kept, must.Get(trim(claim))(t), must.Get(trim(pv))(t))
		}
		return kept
	}
	heap := func(trim func(any) (any, error)) int64 {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		kept := decoded(trim)
		runtime.GC()
		runtime.ReadMemStats(&after)
		runtime.KeepAlive(kept)
		return int64(after.HeapAlloc) - int64(before.HeapAlloc)
	}
	unmanaged := func(obj any) (any, error) {
		obj.(metav1.Object).SetManagedFields(nil)
		delete(obj.(metav1.Object).GetAnnotations(), v1.LastAppliedConfigAnnotation)
		return obj, nil
	}
	whole, lean := heap(unmanaged), heap(newTrimmer().trim)
	t.Logf("a claim and its volume: %d bytes, trimmed %d", whole/volumes, lean/volumes)
	if lean*2 > whole {
		t.Errorf("%d claims and their volumes take %d bytes, and %d without managedFields only, want half at most", volumes, lean, whole)
	}
}
