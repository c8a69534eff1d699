package kubectl

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/component-helpers/storage/volume"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/kubectl/adoption"
	"github.com/carve-csi/carve/pkg/must"
)

const (
	topolvmLV = "0f2bdf1e-7c79-4c0a-a7a5-3d1f1f9a6f0e"
	claimUID  = "7c0ffee0-0000-4000-8000-000000000001"
	// claimName is also the name that the ephemeral volume data of a Pod db would have.
	claimName = "db-data"
)

func topolvmVolume() (*corev1.PersistentVolume, *corev1.PersistentVolumeClaim) {
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	class := "topolvm-provisioner"
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: "pvc-" + claimUID, Annotations: map[string]string{"pv.kubernetes.io/provisioned-by": "topolvm.io"},
			Finalizers: []string{"kubernetes.io/pv-protection", "external-provisioner.volume.kubernetes.io/finalizer"},
		},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, Capacity: size, StorageClassName: class,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete, MountOptions: []string{"noatime"},
			ClaimRef: &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: "team", Name: claimName, UID: claimUID, ResourceVersion: "7"},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: "topolvm.io", VolumeHandle: topolvmLV, FSType: "xfs"}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "topology.topolvm.io/node", Operator: corev1.NodeSelectorOpIn, Values: []string{"n1"}}},
			}}}},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound},
	}
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: claimName, UID: claimUID, Finalizers: []string{"kubernetes.io/pvc-protection", "topolvm.io/pvc"},
			Annotations: map[string]string{volume.AnnStorageProvisioner: "topolvm.io", volume.AnnBetaStorageProvisioner: "topolvm.io"}},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: pv.Spec.AccessModes, StorageClassName: &class, VolumeName: pv.Name, Resources: corev1.VolumeResourceRequirements{Requests: size},
		},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
	}
	return pv, claim
}

type adopting struct {
	t      *testing.T
	client *fake.Clientset
	node   *adoptingNode
}

func newAdopting(t *testing.T, change func(*corev1.PersistentVolume, *corev1.PersistentVolumeClaim), more ...runtime.Object) *adopting {
	t.Helper()
	pv, claim := topolvmVolume()
	if change != nil {
		change(pv, claim)
	}
	all := append(objects(), pv, claim)
	for _, o := range all {
		if n, ok := o.(*corev1.Node); ok {
			n.Labels["topology.topolvm.io/node"], n.Labels["openebs.io/nodename"] = n.Name, n.Name
		}
	}
	return &adopting{t: t, client: fake.NewClientset(append(all, more...)...), node: &adoptingNode{lv: pv.Spec.CSI.VolumeHandle}}
}

func (a *adopting) call(args ...string) (string, error) {
	a.t.Helper()
	p := &plugin{version: "v1", namespace: "team", now: func() time.Time { return today }}
	p.connect = func() (kubernetes.Interface, runFunc, error) { return a.client, a.node.run, nil }
	command := p.command()
	var output bytes.Buffer
	command.SetOut(&output)
	command.SetArgs(append([]string{"adopt", claimName}, args...))
	err := command.ExecuteContext(a.t.Context())
	return output.String(), err
}

func (a *adopting) must(want string, args ...string) {
	a.t.Helper()
	if got, err := a.call(args...); err != nil || !strings.Contains(strings.Join(strings.Fields(got), " "), want) {
		a.t.Fatalf("adopt %q: want %q, got %v\n%s", args, want, err, got)
	}
}

func (a *adopting) volume() *corev1.PersistentVolume {
	a.t.Helper()
	return must.Get(a.client.CoreV1().PersistentVolumes().Get(a.t.Context(), "pvc-"+claimUID, metav1.GetOptions{}))(a.t)
}

func (a *adopting) claim() *corev1.PersistentVolumeClaim {
	a.t.Helper()
	return must.Get(a.client.CoreV1().PersistentVolumeClaims("team").Get(a.t.Context(), claimName, metav1.GetOptions{}))(a.t)
}

func TestADryRunOfAnAdoptionChangesNothing(t *testing.T) {
	a := newAdopting(t, nil)
	a.must("state: planned")
	for _, action := range a.client.Actions() {
		if !slices.Contains([]string{"get", "list"}, action.GetVerb()) {
			t.Errorf("it did %s %s", action.GetVerb(), action.GetResource().Resource)
		}
	}
	if !slices.Equal(a.node.asked, []string{"try"}) {
		t.Errorf("the node was asked to %q", a.node.asked)
	}
}

func TestAnAdoptedVolumeHasAnIDOfItsOwn(t *testing.T) {
	const id = "cvofanother"
	other := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-another"}}
	other.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: names.Driver, VolumeHandle: id}
	a := newAdopting(t, nil, other)
	a.node.as = id
	if _, err := a.call("--yes"); !errors.Is(err, ErrIDTaken) || !strings.Contains(err.Error(), "PersistentVolume pvc-another has") {
		t.Errorf("the id of another volume: %v", err)
	}
	if pv := a.volume(); pv.Spec.CSI.Driver != "topolvm.io" || pv.Spec.CSI.VolumeHandle != topolvmLV {
		t.Errorf("the PersistentVolume was replaced: %+v", pv.Spec.CSI)
	}
	a.must("state: reverted", "--revert")
	a.node.as = "cvown"
	a.must("state: adopted", "--yes")
	a.must("state: adopted", "--yes") // its own PersistentVolume has the id
}

func TestAVolumeIsAdoptedAndConfirmed(t *testing.T) {
	a := newAdopting(t, nil)
	if _, err := a.call("--confirm"); !errors.Is(err, ErrNotAdopting) {
		t.Errorf("confirm of nothing: %v", err)
	}
	a.must("state: adopted", "--yes")
	if want := []string{"--json", "--class=local", "--group=", "--cluster=this-cluster", "--claim-namespace=team", "--claim=" + claimName, "--claim-uid=" + claimUID, topolvmLV, "pvc-" + claimUID}; !slices.Equal(a.node.given, want) {
		t.Errorf("the node was asked to adopt %q, want %q", a.node.given, want)
	}
	pv := a.volume()
	if pv.Spec.CSI.Driver != names.Driver || pv.Spec.CSI.VolumeHandle != "cvadopted" || pv.Spec.CSI.FSType != "xfs" ||
		pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain || pv.Spec.ClaimRef.UID != claimUID ||
		pv.Spec.StorageClassName != "topolvm-provisioner" || !slices.Equal(pv.Spec.MountOptions, []string{"noatime"}) ||
		pv.Annotations["pv.kubernetes.io/provisioned-by"] != names.Driver || pv.Annotations[names.AnnotationVolumeGroup] != "vg/u-1" || pv.Spec.CSI.VolumeAttributes[names.ContextDeviceClass] != "local" || len(pv.Finalizers) != 0 {
		t.Errorf("got %+v", pv)
	}
	if e := pv.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions; len(e) != 1 || e[0].Key != names.TopologyNode || e[0].Values[0] != "n1" {
		t.Errorf("node affinity %+v", e)
	}
	a.must("state: adopted", "--yes") // repeating it is harmless
	wantProvisioner(t, a.claim(), "topolvm.io")
	a.must("state: confirmed", "--confirm")
	wantProvisioner(t, a.claim(), names.Driver)
	pv, claim := a.volume(), a.claim()
	if pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete || !slices.Contains(pv.Finalizers, provisionerFinalizer) {
		t.Errorf("confirmed: policy %s, finalizers %q", pv.Spec.PersistentVolumeReclaimPolicy, pv.Finalizers)
	}
	if _, still := claim.Annotations[adoption.Annotation]; still || claim.UID != claimUID || !slices.Equal(claim.Finalizers, []string{"kubernetes.io/pvc-protection"}) {
		t.Errorf("the claim is %+v", claim.ObjectMeta)
	}
	if a.node.from != "" {
		t.Error("the node has the former name still")
	}
	for _, flag := range []string{"--yes", "--revert", "--confirm"} {
		if _, err := a.call(flag); !errors.Is(err, ErrAlreadyOurs) {
			t.Errorf("%s after it was confirmed: %v", flag, err)
		}
	}
}

// wantProvisioner checks which driver the claim's annotations name: the controller may not write a
// claim of another.
func wantProvisioner(t *testing.T, claim *corev1.PersistentVolumeClaim, want string) {
	t.Helper()
	for _, key := range []string{volume.AnnStorageProvisioner, volume.AnnBetaStorageProvisioner} {
		if got := claim.Annotations[key]; got != want {
			t.Errorf("annotation %s names %q, want %s", key, got, want)
		}
	}
}

func TestInterruptedConfirmationIsContinued(t *testing.T) {
	for at := 1; ; at++ {
		a := newAdopting(t, nil)
		a.must("state: adopted", "--yes")
		count := 0
		a.client.PrependReactor("patch", "*", func(k8stesting.Action) (bool, runtime.Object, error) {
			count++
			return count == at, nil, errNode
		})
		if _, err := a.call("--confirm"); err == nil {
			if at < 3 {
				t.Errorf("a confirmation makes %d writes", count)
			}
			return
		}
		if _, started := a.claim().Annotations[adoption.Annotation]; !started {
			t.Errorf("write %d failed, and the claim has no annotation to continue with", at)
		}
		wantProvisioner(t, a.claim(), "topolvm.io")
		a.must("state: confirmed", "--confirm")
		wantProvisioner(t, a.claim(), names.Driver)
	}
}

// An earlier version confirmed an adoption without changing the claim's annotations.
func TestConfirmCorrectsClaimOfConfirmedAdoption(t *testing.T) {
	for name, remove := range map[string]string{"both annotations": "", "the former one only": volume.AnnStorageProvisioner} {
		t.Run(name, func(t *testing.T) {
			a := newAdopting(t, func(pv *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) {
				pv.Spec.CSI.Driver, pv.Spec.CSI.VolumeHandle = names.Driver, "cvadopted"
				delete(claim.Annotations, remove)
			})
			before := a.claim().Annotations
			for _, flags := range [][]string{nil, {"--yes"}, {"--revert"}} {
				if _, err := a.call(flags...); !errors.Is(err, ErrAlreadyOurs) {
					t.Errorf("%q: %v", flags, err)
				}
			}
			if got := a.claim().Annotations; !maps.Equal(got, before) {
				t.Errorf("without --confirm the annotations are %q, want %q", got, before)
			}
			a.must("claim: team/"+claimName+" state: confirmed volume: cvadopted", "--confirm")
			if got := a.claim().Annotations; len(got) != len(before) || got[volume.AnnBetaStorageProvisioner] != names.Driver {
				t.Errorf("the annotations are %q, and were %q", got, before)
			}
			if _, err := a.call("--confirm"); !errors.Is(err, ErrAlreadyOurs) {
				t.Errorf("again: %v", err)
			}
		})
	}
}

// Kubernetes writes a claim while it binds it, and others may add a finalizer.
func TestAClaimThatChangesMeanwhileIsReadAgain(t *testing.T) {
	a := newAdopting(t, nil)
	const finalizer = "example.com/kept"
	conflicts := 0
	a.client.PrependReactor("patch", "persistentvolumeclaims", func(k8stesting.Action) (bool, runtime.Object, error) {
		if conflicts++; conflicts%2 == 0 {
			return false, nil, nil
		}
		claims := corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims")
		// The client would wait for its own reactors.
		now, ok := must.Get(a.client.Tracker().Get(claims, "team", claimName))(t).(*corev1.PersistentVolumeClaim)
		if !ok {
			t.Error("the claim is something else")
		}
		claim := now.DeepCopy()
		claim.Finalizers = append(claim.Finalizers, finalizer)
		must.Succeed(t, a.client.Tracker().Update(claims, claim, claim.Namespace))
		return true, nil, apierrors.NewConflict(claims.GroupResource(), claim.Name, errors.New("the object has been modified"))
	})
	a.must("state: adopted", "--yes")
	a.must("state: confirmed", "--confirm")
	if got, want := a.claim().Finalizers, []string{"kubernetes.io/pvc-protection", finalizer, finalizer}; !slices.Equal(got, want) {
		t.Errorf("finalizers %q, want %q: those that were added meanwhile are kept", got, want)
	}
}

func TestAnAdoptionIsReverted(t *testing.T) {
	a := newAdopting(t, nil)
	before, claimBefore := a.volume(), a.claim()
	if _, err := a.call("--revert"); !errors.Is(err, ErrNotAdopting) {
		t.Errorf("revert of nothing: %v", err)
	}
	a.must("state: adopted", "--yes")
	user := must.Get(a.client.CoreV1().Pods("team").Create(t.Context(), userOf(claimName), metav1.CreateOptions{}))(t)
	if _, err := a.call("--revert"); !errors.Is(err, ErrInUse) {
		t.Errorf("revert while a Pod uses it: %v", err)
	}
	must.Succeed(t, a.client.CoreV1().Pods("team").Delete(t.Context(), user.Name, metav1.DeleteOptions{}))
	a.must("state: reverted", "--revert")
	after, claim := a.volume(), a.claim()
	before.Finalizers, before.Status = []string{provisionerFinalizer}, after.Status // the API server adds its protection again
	before.Spec.ClaimRef.ResourceVersion, after.ManagedFields, after.TypeMeta = "", nil, before.TypeMeta
	if !equal(t, before, after) || !equal(t, claimBefore.ObjectMeta, claim.ObjectMeta) {
		t.Errorf("want %s, got %s\nclaim %s, was %s", inJSON(t, before), inJSON(t, after), inJSON(t, claim.ObjectMeta), inJSON(t, claimBefore.ObjectMeta))
	}
	if a.node.lv != topolvmLV {
		t.Errorf("the logical volume is called %q", a.node.lv)
	}
}

// Each write to the API and each call of the node fails once. Repeating the command must then
// finish the adoption, and revert must undo it.
func TestAnInterruptedAdoptionIsContinuedOrReverted(t *testing.T) {
	for _, then := range []string{"--yes", "--revert"} {
		for at := 1; ; at++ {
			a := newAdopting(t, nil)
			count, failed := 0, false
			a.client.PrependReactor("*", "*", func(action k8stesting.Action) (bool, runtime.Object, error) {
				if slices.Contains([]string{"get", "list"}, action.GetVerb()) {
					return false, nil, nil
				}
				count++
				failed = failed || count == at
				return count == at, nil, errNode
			})
			_, err := a.call("--yes")
			if failed != (err != nil) {
				t.Fatalf("write %d failed: %v, and adopt: %v", at, failed, err)
			}
			if !failed {
				break
			}
			switch _, err := a.call(then); {
			case then == "--revert" && errors.Is(err, ErrNotAdopting) && at == 1: // nothing was done yet
			case err != nil:
				t.Fatalf("write %d failed, then %s: %v", at, then, err)
			}
			if driver := a.volume().Spec.CSI.Driver; (driver == names.Driver) != (then == "--yes") {
				t.Errorf("write %d failed, then %s: the volume is of %s", at, then, driver)
			}
			if then == "--revert" && (a.node.lv != topolvmLV || a.volume().Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete) {
				t.Errorf("write %d failed, then %s: %+v, %+v", at, then, a.node, a.volume().Spec)
			}
		}
	}
	a := newAdopting(t, nil)
	a.node.failing = "adopt"
	if _, err := a.call("--yes"); !errors.Is(err, errNode) {
		t.Errorf("got %v", err)
	}
	if pv := a.volume(); pv.Spec.CSI.Driver != "topolvm.io" || pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain {
		t.Errorf("while the node fails the volume must stay, and be retained: %+v", pv.Spec)
	}
	a.node.failing = ""
	a.must("state: adopted", "--yes")
}

// After a revert that was interrupted between the node and the API, the PersistentVolume names a
// volume that no longer exists.
func TestAnAdoptionThatWasRevertedOnTheNodeOnlyIsMadeAgain(t *testing.T) {
	a := newAdopting(t, nil)
	a.must("state: adopted", "--yes")
	a.node.lv, a.node.id, a.node.from, a.node.as = topolvmLV, "", "", "cvagain"
	a.must("state: adopted", "--yes")
	if got := a.volume().Spec.CSI.VolumeHandle; got != "cvagain" {
		t.Errorf("the PersistentVolume is of volume %s", got)
	}
}

func TestNothingIsAdoptedWithoutTheAgentOfTheNode(t *testing.T) {
	a := newAdopting(t, nil)
	pods := a.client.CoreV1().Pods("carve-system")
	agent := must.Get(pods.Get(t.Context(), "carve-node-n1", metav1.GetOptions{}))(t)
	agent.Status.Conditions = nil
	must.Get(pods.UpdateStatus(t.Context(), agent, metav1.UpdateOptions{}))(t)
	for _, agents := range []string{"one that is not ready", "none"} {
		if _, err := a.call("--yes"); err == nil || !strings.Contains(err.Error(), "the agent of n1 is not ready") {
			t.Errorf("with %s: %v", agents, err)
		}
		if agents != "none" {
			must.Succeed(t, pods.Delete(t.Context(), agent.Name, metav1.DeleteOptions{}))
		}
	}
	if _, started := a.claim().Annotations[adoption.Annotation]; started || len(a.node.asked) > 0 {
		t.Errorf("the node was asked to %q, and the claim has %q", a.node.asked, a.claim().Annotations)
	}
}

func userOf(claim string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "db"},
		Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}}},
	}
}

func TestWhatCannotBeAdoptedIsRefusedBeforeAnythingIsDone(t *testing.T) {
	user := userOf(claimName)
	done := user.DeepCopy()
	done.Name, done.Status.Phase = "job", corev1.PodSucceeded
	ephemeral := user.DeepCopy()
	ephemeral.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}
	failed, another := ephemeral.DeepCopy(), ephemeral.DeepCopy()
	failed.Name, failed.Status.Phase = "db", corev1.PodFailed
	another.Name = "web"
	newAdopting(t, nil, done, failed, another).must("state: planned")
	ours := func(name string) runtime.Object {
		return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: names.Driver}
	}
	for name, test := range map[string]struct {
		change func(*corev1.PersistentVolume, *corev1.PersistentVolumeClaim)
		more   []runtime.Object
		args   []string
		want   string
	}{
		"a Pod uses it":       {nil, []runtime.Object{user}, nil, "stop its Pods first: db"},
		"it is of a Pod":      {nil, []runtime.Object{ephemeral}, nil, "stop its Pods first: db"},
		"two classes":         {nil, []runtime.Object{ours("carve-fast")}, nil, "--storage-class must name"},
		"no class of a name":  {nil, nil, []string{"--storage-class=gone"}, "--storage-class must name"},
		"no volume":           {func(_ *corev1.PersistentVolume, c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "" }, nil, nil, "it has no volume"},
		"another's volume":    {func(pv *corev1.PersistentVolume, _ *corev1.PersistentVolumeClaim) { pv.Spec.ClaimRef.UID = "x" }, nil, nil, "is not bound to it"},
		"another driver":      {func(pv *corev1.PersistentVolume, _ *corev1.PersistentVolumeClaim) { pv.Spec.CSI.Driver = "x" }, nil, nil, "neither TopoLVM nor"},
		"a node that is gone": {func(pv *corev1.PersistentVolume, _ *corev1.PersistentVolumeClaim) { home(pv)[0].Values[0] = "n9" }, nil, nil, "no node has the label topology.topolvm.io/node=n9"},
		"a class of others":   {nil, nil, []string{"--storage-class=other"}, "--storage-class must name"},
		"what lvmd refuses":   {nil, nil, nil, "the node says no"},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAdopting(t, test.change, test.more...)
			if name == "what lvmd refuses" {
				a.node.failing = "try"
			}
			if got, err := a.call(append(test.args, "--yes")...); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("want %q, got %v\n%s", test.want, err, got)
			}
			for _, action := range a.client.Actions() {
				if !slices.Contains([]string{"get", "list"}, action.GetVerb()) {
					t.Errorf("it did %s %s", action.GetVerb(), action.GetResource().Resource)
				}
			}
		})
	}
}

func TestTheClassThatIsNamedSaysTheDeviceClass(t *testing.T) {
	fast := &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "carve-fast"}, Provisioner: names.Driver, Parameters: map[string]string{names.ParamDeviceClass: "fast"}}
	for class, want := range map[string]string{"carve-fast": "--class=fast", "carve": "--class="} {
		a := newAdopting(t, nil, fast)
		a.must("of StorageClass "+class+" ", "--storage-class="+class)
		if !slices.Contains(a.node.given, want) {
			t.Errorf("by StorageClass %s the node was asked %q, want %s", class, a.node.given, want)
		}
	}
}

func home(pv *corev1.PersistentVolume) []corev1.NodeSelectorRequirement {
	return pv.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions
}

func TestAVolumeOfOpenEBSIsFoundInItsGroup(t *testing.T) {
	a := newAdopting(t, func(pv *corev1.PersistentVolume, _ *corev1.PersistentVolumeClaim) {
		pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "local.csi.openebs.io", VolumeHandle: "pvc-" + claimUID,
			VolumeAttributes: map[string]string{"openebs.io/volgroup": "lvmvg", "openebs.io/cas-type": "localpv-lvm"}}
		home(pv)[0].Key = "openebs.io/nodename"
	})
	a.must("from: OpenEBS LVM, logical volume pvc-" + claimUID + " on n1")
	a.must("state: adopted", "--yes")
	if !slices.Contains(a.node.given, "--group=lvmvg") {
		t.Errorf("the node was asked to adopt %q, want it to look in the group lvmvg", a.node.given)
	}
}

func TestARawVolumeIsAdoptedAsOne(t *testing.T) {
	block := corev1.PersistentVolumeBlock
	a := newAdopting(t, func(pv *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) {
		pv.Spec.VolumeMode, claim.Spec.VolumeMode = &block, &block
	})
	a.must("state: adopted", "--yes")
	if !slices.Contains(a.node.given, "--block") {
		t.Errorf("the node was asked to adopt %q, want --block", a.node.given)
	}
}

func inJSON(t *testing.T, o any) []byte {
	t.Helper()
	return must.Get(json.Marshal(o))(t)
}
