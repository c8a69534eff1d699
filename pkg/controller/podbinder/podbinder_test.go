package podbinder

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/component-helpers/storage/volume"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/clientfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// world is a fake API server with nodes n1 and n2, and StorageClasses: late, of a driver that
// binds late; soon, that binds immediately; by-hand, late and without a provisioner.
type world struct {
	t      *testing.T
	client *fake.Clientset
	binder *Binder
	known  corelisters.PersistentVolumeClaimLister // the binder's

	mu      sync.Mutex
	bound   map[string]string // the node by Pod
	failing error             // what the API server answers once to a binding that it carried out
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, client: clientfake.New(), bound: map[string]string{}}
	w.versionClaims()
	for _, node := range []string{"n1", "n2"} {
		must.Get(w.client.CoreV1().Nodes().Create(t.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, Labels: map[string]string{v1.LabelHostname: node}}}, metav1.CreateOptions{}))(t)
	}
	late, immediate := storagev1.VolumeBindingWaitForFirstConsumer, storagev1.VolumeBindingImmediate
	for _, class := range []storagev1.StorageClass{
		{ObjectMeta: metav1.ObjectMeta{Name: "late"}, Provisioner: "a.example.com", VolumeBindingMode: &late},
		{ObjectMeta: metav1.ObjectMeta{Name: "soon"}, Provisioner: "a.example.com", VolumeBindingMode: &immediate},
		{ObjectMeta: metav1.ObjectMeta{Name: "by-hand"}, Provisioner: noProvisioner, VolumeBindingMode: &late},
	} {
		must.Get(w.client.StorageV1().StorageClasses().Create(t.Context(), &class, metav1.CreateOptions{}))(t)
	}
	// A binding gives the Pod its node, if it has none.
	w.client.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		create, ok := action.(clienttesting.CreateAction)
		if !ok || action.GetSubresource() != "binding" {
			return false, nil, nil
		}
		binding, ok := create.GetObject().(*v1.Binding)
		if !ok {
			return true, nil, errors.New("no binding")
		}
		obj, err := w.client.Tracker().Get(v1.SchemeGroupVersion.WithResource("pods"), binding.Namespace, binding.Name)
		pod, isPod := obj.(*v1.Pod)
		switch {
		case err != nil || !isPod:
			return true, nil, err
		case pod.UID != binding.UID || pod.Spec.NodeName != "":
			return true, nil, apierrors.NewConflict(v1.Resource("pods/binding"), binding.Name, errors.New("it is assigned already"))
		}
		pod = pod.DeepCopy()
		pod.Spec.NodeName = binding.Target.Name
		must.Succeed(t, w.client.Tracker().Update(v1.SchemeGroupVersion.WithResource("pods"), pod, binding.Namespace))
		w.mu.Lock()
		defer w.mu.Unlock()
		w.bound[binding.Name] = binding.Target.Name
		failing := w.failing
		w.failing = nil
		return true, binding, failing
	})
	w.start()
	return w
}

// versionClaims has the fake API server give claims their versions, and refuse a patch of an
// older one.
func (w *world) versionClaims() {
	var mu sync.Mutex
	last := 1
	next := func() string {
		mu.Lock()
		defer mu.Unlock()
		last++
		return strconv.Itoa(last)
	}
	w.client.PrependReactor("*", "persistentvolumeclaims", func(action clienttesting.Action) (bool, runtime.Object, error) {
		switch a := action.(type) {
		case clienttesting.PatchAction:
			obj, err := w.client.Tracker().Get(a.GetResource(), a.GetNamespace(), a.GetName())
			claim, ok := obj.(*v1.PersistentVolumeClaim)
			if err != nil || !ok {
				return true, nil, err
			}
			var changed v1.PersistentVolumeClaim
			patched, err := strategicpatch.StrategicMergePatch(must.Get(json.Marshal(claim))(w.t), a.GetPatch(), changed)
			if err != nil {
				return true, nil, err
			}
			must.Succeed(w.t, json.Unmarshal(patched, &changed))
			if changed.ResourceVersion != claim.ResourceVersion {
				return true, nil, apierrors.NewConflict(v1.Resource("persistentvolumeclaims"), claim.Name, errors.New("it has changed"))
			}
			changed.ResourceVersion = next()
			return true, &changed, w.client.Tracker().Update(a.GetResource(), &changed, a.GetNamespace())
		case clienttesting.CreateAction: // and updates
			if claim, ok := a.GetObject().(*v1.PersistentVolumeClaim); ok {
				claim.ResourceVersion = next()
			}
		}
		return false, nil, nil
	})
}

// start makes the binder, or replaces it, as a restart does.
func (w *world) start() {
	w.t.Helper()
	b := must.Get(New(Options{Client: w.client, SchedulerName: "carve", Registerer: prometheus.NewRegistry()}))(w.t)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
	})
	waittest.Until(w.t, "the binder is ready", func() bool { return b.Ready(ctx) == nil })
	w.binder, w.known = b, b.claims
}

// claim makes a claim of 10 GiB.
func (w *world) claim(name, class string, change func(*v1.PersistentVolumeClaim)) {
	w.t.Helper()
	claim := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("uid-" + name), Annotations: map[string]string{}},
		Spec: v1.PersistentVolumeClaimSpec{StorageClassName: &class, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("10Gi")}}},
		Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimPending},
	}
	if change != nil {
		change(claim)
	}
	must.Get(w.client.CoreV1().PersistentVolumeClaims("default").Create(w.t.Context(), claim, metav1.CreateOptions{}))(w.t)
	w.seen()
}

func onNode(node string) *v1.VolumeNodeAffinity {
	return &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
		MatchExpressions: []v1.NodeSelectorRequirement{{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{node}}}}}}}
}

// volume makes a PersistentVolume on a node that no claim has.
func (w *world) volume(name, class, node, size string) {
	w.t.Helper()
	w.volumeFor(nil, name, class, node, size)
}

func (w *world) volumeFor(claim *v1.ObjectReference, name, class, node, size string) {
	w.t.Helper()
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.PersistentVolumeSpec{
		StorageClassName: class, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, NodeAffinity: onNode(node), ClaimRef: claim,
		Capacity: v1.ResourceList{v1.ResourceStorage: resource.MustParse(size)},
	}, Status: v1.PersistentVolumeStatus{Phase: v1.VolumeAvailable}}
	must.Get(w.client.CoreV1().PersistentVolumes().Create(w.t.Context(), pv, metav1.CreateOptions{}))(w.t)
	w.seen()
}

// seen waits until the binder has seen all claims and volumes.
func (w *world) seen() {
	w.t.Helper()
	waittest.Until(w.t, "the binder sees what there is", func() bool {
		claims := must.Get(w.client.CoreV1().PersistentVolumeClaims("default").List(w.t.Context(), metav1.ListOptions{}))(w.t)
		for _, c := range claims.Items {
			if now, err := w.known.PersistentVolumeClaims("default").Get(c.Name); err != nil || now.ResourceVersion != c.ResourceVersion {
				return false
			}
		}
		volumes := must.Get(w.client.CoreV1().PersistentVolumes().List(w.t.Context(), metav1.ListOptions{}))(w.t)
		return len(w.binder.volumes.List()) == len(volumes.Items)
	})
}

func (w *world) getClaim(name string) *v1.PersistentVolumeClaim {
	return must.Get(w.client.CoreV1().PersistentVolumeClaims("default").Get(context.Background(), name, metav1.GetOptions{}))(w.t)
}

func (w *world) update(name string, change func(*v1.PersistentVolumeClaim)) {
	w.t.Helper()
	claim := w.getClaim(name).DeepCopy()
	if claim.Annotations == nil {
		claim.Annotations = map[string]string{}
	}
	change(claim)
	must.Get(w.client.CoreV1().PersistentVolumeClaims("default").Update(context.Background(), claim, metav1.UpdateOptions{}))(w.t)
}

// boundTo is what the PV controller does in the end.
func boundTo(pv string) func(*v1.PersistentVolumeClaim) {
	return func(c *v1.PersistentVolumeClaim) {
		c.Spec.VolumeName, c.Status.Phase = pv, v1.ClaimBound
		c.Annotations[volume.AnnBindCompleted] = "yes"
	}
}

// provision is what a provisioner and the PV controller do, once a node was selected.
func (w *world) provision(claim string) {
	w.t.Helper()
	waittest.Until(w.t, "a node is selected for "+claim, func() bool { return w.getClaim(claim).Annotations[volume.AnnSelectedNode] != "" })
	w.volumeFor(&v1.ObjectReference{Namespace: "default", Name: claim, UID: types.UID("uid-" + claim)},
		"pvc-"+claim, "late", w.getClaim(claim).Annotations[volume.AnnSelectedNode], "10Gi")
	w.update(claim, boundTo("pvc-"+claim))
}

// pod makes a Pod with claims.
func (w *world) pod(name string, claims ...string) extenderv1.ExtenderBindingArgs {
	w.t.Helper()
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("uid-" + name)}, Spec: v1.PodSpec{SchedulerName: "carve"}}
	for _, claim := range claims {
		pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: claim, VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}})
	}
	must.Get(w.client.CoreV1().Pods("default").Create(w.t.Context(), pod, metav1.CreateOptions{}))(w.t)
	return extenderv1.ExtenderBindingArgs{PodName: name, PodNamespace: "default", PodUID: pod.UID, Node: "n1"}
}

// bind begins to bind a Pod, and returns what waits for the outcome.
func (w *world) bind(args extenderv1.ExtenderBindingArgs) func() error {
	outcome := make(chan error, 1)
	ctx, cancel := context.WithTimeout(context.Background(), waittest.Limit)
	go func() { outcome <- w.binder.Bind(ctx, args) }()
	return func() error {
		defer cancel()
		return <-outcome
	}
}

func (w *world) nodeOf(pod string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.bound[pod]
}

// reads counts how often a binder reads a claim.
type reads struct {
	corelisters.PersistentVolumeClaimLister
	count atomic.Int32
}

func (r *reads) PersistentVolumeClaims(namespace string) corelisters.PersistentVolumeClaimNamespaceLister {
	r.count.Add(1)
	return r.PersistentVolumeClaimLister.PersistentVolumeClaims(namespace)
}

// looked returns when the binder, which waits for the claims a and b, has decided by what is
// known of them now: it began to read them once more after that.
func (w *world) looked(r *reads) {
	w.t.Helper()
	w.seen()
	for range 2 {
		before := r.count.Load()
		w.update("a", func(c *v1.PersistentVolumeClaim) { c.Annotations["touched"] += "x" })
		waittest.Until(w.t, "the binder looks at the claims", func() bool { return r.count.Load() >= before+2 || len(w.nodeOf("p")) > 0 })
	}
}

// isBound fails the test unless the Pod was bound to n1 without an error.
func (w *world) isBound(pod string, err error) {
	w.t.Helper()
	if node := w.nodeOf(pod); err != nil || node != "n1" {
		w.t.Fatalf("Pod %s is on %q: %v", pod, node, err)
	}
}

func TestAPodWithoutClaimsIsBoundAtOnce(t *testing.T) {
	w := newWorld(t)
	w.isBound("p", w.bind(w.pod("p"))())
}

func TestAPodIsBoundWhenAllItsClaimsAre(t *testing.T) {
	w := newWorld(t)
	w.claim("a", "late", nil)
	w.claim("b", "late", nil)
	counted := &reads{PersistentVolumeClaimLister: w.known}
	w.binder.claims = counted
	outcome := w.bind(w.pod("p", "a", "b"))
	w.provision("a")
	if claim := w.getClaim("b"); claim.Annotations[volume.AnnSelectedNode] != "n1" {
		t.Errorf("no node was selected for the second claim meanwhile: %v", claim.Annotations)
	}
	w.looked(counted)
	if node := w.nodeOf("p"); node != "" {
		t.Fatalf("the Pod is on %s before its second claim is bound", node)
	}
	w.volumeFor(&v1.ObjectReference{Namespace: "default", Name: "b", UID: "uid-b"}, "pvc-b", "late", "n1", "10Gi")
	// The PV controller writes the claim's phase last. A kubelet that meets the Pod before fails, and looks again
	// after ten seconds.
	w.update("b", func(c *v1.PersistentVolumeClaim) {
		c.Spec.VolumeName = "pvc-b"
		metav1.SetMetaDataAnnotation(&c.ObjectMeta, volume.AnnBindCompleted, "yes")
	})
	w.looked(counted)
	if node := w.nodeOf("p"); node != "" {
		t.Fatalf("the Pod is on %s before its second claim is bound completely", node)
	}
	w.update("b", boundTo("pvc-b"))
	w.isBound("p", outcome())
}

func TestAStaticVolumeIsGivenToAClaimBeforeOneIsMade(t *testing.T) {
	for _, class := range []string{"late", "by-hand"} {
		t.Run(class, func(t *testing.T) {
			w := newWorld(t)
			w.volume("elsewhere", class, "n2", "10Gi")
			w.volume("larger", class, "n1", "30Gi")
			w.volume("fits", class, "n1", "20Gi")
			w.claim("large", class, func(c *v1.PersistentVolumeClaim) {
				c.Spec.Resources.Requests[v1.ResourceStorage] = resource.MustParse("15Gi")
			})
			w.claim("small", class, func(c *v1.PersistentVolumeClaim) {
				c.Spec.Resources.Requests[v1.ResourceStorage] = resource.MustParse("5Gi")
			})
			outcome := w.bind(w.pod("p", "large", "small"))
			// As the scheduler chooses: the smallest claim first, each the smallest volume.
			for pv, claim := range map[string]string{"fits": "small", "larger": "large"} {
				waittest.Until(t, pv+" is given to "+claim, func() bool {
					ref := must.Get(w.client.CoreV1().PersistentVolumes().Get(t.Context(), pv, metav1.GetOptions{}))(t).Spec.ClaimRef
					return ref != nil && ref.Name == claim && ref.UID == types.UID("uid-"+claim)
				})
				if selected := w.getClaim(claim).Annotations[volume.AnnSelectedNode]; selected != "" {
					t.Errorf("a provisioner is asked for claim %s on %s, too", claim, selected)
				}
				w.update(claim, boundTo(pv))
			}
			w.isBound("p", outcome())
		})
	}
}

func TestBindingGoesOnWhereItWasLeft(t *testing.T) {
	w := newWorld(t)
	w.claim("a", "late", nil)
	args := w.pod("p", "a")
	ctx, cancel := context.WithCancel(t.Context())
	outcome := make(chan error, 1)
	go func() { outcome <- w.binder.Bind(ctx, args) }()
	waittest.Until(t, "the node is selected", func() bool { return w.getClaim("a").Annotations[volume.AnnSelectedNode] == "n1" })
	cancel() // the scheduler is gone
	if err := <-outcome; !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "claims a are not bound yet") {
		t.Errorf("the first call: %v", err)
	}
	w.start()
	again := w.bind(args)
	w.provision("a")
	w.isBound("p", again())
	// The answer was lost, and the scheduler asks once more.
	w.isBound("p", w.bind(args)())
	args.Node = "n2"
	if err := w.bind(args)(); err == nil || !strings.Contains(err.Error(), "on node n1 already") {
		t.Errorf("bound to another node: %v", err)
	}
}

func TestABindingWhoseAnswerWasLostIsLookedFor(t *testing.T) {
	w := newWorld(t)
	args := w.pod("p")
	w.failing = errors.New("connection lost")
	w.isBound("p", w.bind(args)())
}

// TestNothingIsDoneForAPodThatCannotBeOnTheNode has a second claim for which the node would have
// been selected.
func TestNothingIsDoneForAPodThatCannotBeOnTheNode(t *testing.T) {
	const name = "c"
	mine := []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "other", UID: "uid-other", Controller: new(bool)}}
	for what, test := range map[string]struct {
		class  string
		change func(*v1.PersistentVolumeClaim)
		says   string
	}{
		"a claim that selected another node": {"late", func(c *v1.PersistentVolumeClaim) { c.Annotations[volume.AnnSelectedNode] = "n2" }, "has selected node n2"},
		"one whose volume is elsewhere":      {"late", boundTo("on-n2"), "is bound to volume on-n2, which node n1 cannot use"},
		"one whose movable volume is":        {"late", boundTo("records-n2"), "is bound to volume records-n2, which node n1 cannot use"},
		"one that binds immediately":         {"soon", nil, "binds immediately"},
		"one without a volume by hand":       {"by-hand", nil, "finds no volume on node n1"},
		"one that is being deleted": {"late", func(c *v1.PersistentVolumeClaim) {
			now := metav1.Now()
			c.DeletionTimestamp, c.Finalizers = &now, []string{"kubernetes.io/pvc-protection"}
		}, "being deleted"},
		"one that lost its volume": {"late", func(c *v1.PersistentVolumeClaim) { c.Status.Phase, c.Spec.VolumeName = v1.ClaimLost, "x" }, "has lost its volume x"},
		"one of no class":          {"missing", nil, "binds immediately"},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t)
			w.volume("on-n2", "late", "n2", "10Gi")
			w.volume("records-n2", "late", "n2", "10Gi")
			movable := must.Get(w.client.CoreV1().PersistentVolumes().Get(t.Context(), "records-n2", metav1.GetOptions{}))(t).DeepCopy()
			movable.Spec.NodeAffinity, movable.Spec.CSI = nil, &v1.CSIPersistentVolumeSource{Driver: names.Driver, VolumeAttributes: map[string]string{names.ContextNode: "n2"}}
			must.Get(w.client.CoreV1().PersistentVolumes().Update(t.Context(), movable, metav1.UpdateOptions{}))(t)
			w.seen()
			w.claim("a", "late", nil)
			w.claim(name, test.class, test.change)
			err := w.bind(w.pod("p", "a", name))()
			var claim *ClaimError
			if !errors.As(err, &claim) || claim.Claim != name || !strings.Contains(err.Error(), test.says) {
				t.Errorf("%v, want one that says %q", err, test.says)
			}
			if selected := w.getClaim("a").Annotations[volume.AnnSelectedNode]; selected != "" || w.nodeOf("p") != "" {
				t.Errorf("the node %q was selected for the other claim, the Pod is on %q", selected, w.nodeOf("p"))
			}
		})
	}
	t.Run("one that does not exist", func(t *testing.T) {
		w := newWorld(t)
		if err := w.bind(w.pod("p", "missing"))(); err == nil || !strings.Contains(err.Error(), "claim missing does not exist") {
			t.Error(err)
		}
	})
	t.Run("another Pod's claim under the name of an ephemeral volume's", func(t *testing.T) {
		w := newWorld(t)
		w.claim("p-scratch", "late", func(c *v1.PersistentVolumeClaim) { c.OwnerReferences = mine })
		args := w.pod("p")
		pod := must.Get(w.client.CoreV1().Pods("default").Get(t.Context(), "p", metav1.GetOptions{}))(t).DeepCopy()
		pod.Spec.Volumes = []v1.Volume{{Name: "scratch", VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}}}
		must.Get(w.client.CoreV1().Pods("default").Update(t.Context(), pod, metav1.UpdateOptions{}))(t)
		if err := w.bind(args)(); err == nil || !strings.Contains(err.Error(), "is not the Pod's own") {
			t.Error(err)
		}
	})
}

func TestAPodThatIsNotMeantIsNotBound(t *testing.T) {
	for what, test := range map[string]struct {
		args func(*extenderv1.ExtenderBindingArgs)
		pod  func(*v1.Pod)
		says string
	}{
		"another Pod of the name":       {args: func(a *extenderv1.ExtenderBindingArgs) { a.PodUID = "old" }, says: "replaced"},
		"a Pod that is gone":            {args: func(a *extenderv1.ExtenderBindingArgs) { a.PodName = "gone" }, says: "not found"},
		"a node that is gone":           {args: func(a *extenderv1.ExtenderBindingArgs) { a.Node = "n3" }, says: "n3"},
		"a Pod of another scheduler":    {pod: func(p *v1.Pod) { p.Spec.SchedulerName = "default-scheduler" }, says: `for the scheduler "default-scheduler"`},
		"a Pod that is being deleted":   {pod: func(p *v1.Pod) { now := metav1.Now(); p.DeletionTimestamp = &now }, says: "being deleted"},
		"a Pod that is on another node": {pod: func(p *v1.Pod) { p.Spec.NodeName = "n2" }, says: "on node n2 already"},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t)
			args := w.pod("p")
			if test.args != nil {
				test.args(&args)
			}
			if test.pod != nil {
				pod := must.Get(w.client.CoreV1().Pods("default").Get(t.Context(), "p", metav1.GetOptions{}))(t).DeepCopy()
				test.pod(pod)
				must.Succeed(t, w.client.Tracker().Update(v1.SchemeGroupVersion.WithResource("pods"), pod, "default"))
			}
			if err := w.bind(args)(); err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("%v, want one that says %q", err, test.says)
			}
			if node := w.nodeOf("p"); node != "" {
				t.Errorf("it is on %s", node)
			}
		})
	}
}

// TestWhatHappensToAClaimMeanwhileEndsTheBinding begins when the node was selected.
func TestWhatHappensToAClaimMeanwhileEndsTheBinding(t *testing.T) {
	for what, test := range map[string]struct {
		change func(*world)
		says   string
	}{
		"its provisioner asks for another node": {func(w *world) {
			w.update("a", func(c *v1.PersistentVolumeClaim) { delete(c.Annotations, volume.AnnSelectedNode) })
		}, "could not be provisioned on node n1"},
		"another Pod took it to another node": {func(w *world) {
			w.update("a", func(c *v1.PersistentVolumeClaim) { c.Annotations[volume.AnnSelectedNode] = "n2" })
		}, "has selected node n2"},
		"it is bound elsewhere": {func(w *world) {
			w.volume("far", "late", "n2", "10Gi")
			w.update("a", boundTo("far"))
		}, "node n1 cannot use"},
		"it is deleted": {func(w *world) {
			must.Succeed(w.t, w.client.CoreV1().PersistentVolumeClaims("default").Delete(w.t.Context(), "a", metav1.DeleteOptions{}))
		}, "does not exist"},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t)
			w.claim("a", "late", nil)
			outcome := w.bind(w.pod("p", "a"))
			waittest.Until(t, "the node is selected", func() bool { return w.getClaim("a").Annotations[volume.AnnSelectedNode] == "n1" })
			w.seen()
			test.change(w)
			if err := outcome(); err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("%v, want one that says %q", err, test.says)
			}
			if node := w.nodeOf("p"); node != "" {
				t.Errorf("it is on %s", node)
			}
		})
	}
}

func TestPodsThatShareAClaimComeToOneNode(t *testing.T) {
	w := newWorld(t)
	w.claim("a", "late", nil)
	first, second := w.pod("first", "a"), w.pod("second", "a")
	second.Node = "n2"
	outcomes := []func() error{w.bind(first), w.bind(second)}
	w.provision("a")
	nodes, failed := map[string]string{}, 0
	for i, outcome := range outcomes {
		name := []string{"first", "second"}[i]
		if err := outcome(); err != nil {
			failed++
		} else {
			nodes[name] = w.nodeOf(name)
		}
	}
	selected := w.getClaim("a").Annotations[volume.AnnSelectedNode]
	for name, node := range nodes {
		if node != selected {
			t.Errorf("Pod %s is on %s, the claim on %s", name, node, selected)
		}
	}
	if failed != 1 {
		t.Errorf("%d of the two were sent away", failed)
	}
}

// TestAVolumeIsGivenToOneOfTwoClaims has the API server refuse what was read before.
func TestAVolumeIsGivenToOneOfTwoClaims(t *testing.T) {
	w := newWorld(t)
	w.volume("v", "by-hand", "n1", "10Gi")
	w.claim("a", "by-hand", nil)
	clientfake.React(w.client, "update", "persistentvolumes", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewConflict(v1.Resource("persistentvolumes"), "v", errors.New("it has changed"))
	})
	if err := w.bind(w.pod("p", "a"))(); !apierrors.IsConflict(err) || w.nodeOf("p") != "" {
		t.Errorf("%v, the Pod is on %q", err, w.nodeOf("p"))
	}
}

func TestManyPodsAreBoundAtOnce(t *testing.T) {
	w := newWorld(t)
	const pods = 50
	var outcomes []func() error
	for i := range pods {
		name := fmt.Sprintf("c-%d", i)
		w.claim(name, "late", nil)
		outcomes = append(outcomes, w.bind(w.pod(fmt.Sprintf("p-%d", i), name)))
	}
	for i := range pods {
		w.provision(fmt.Sprintf("c-%d", i))
	}
	for i, outcome := range outcomes {
		w.isBound(fmt.Sprintf("p-%d", i), outcome())
	}
	if left := len(w.binder.changes.byKey); left != 0 {
		t.Errorf("%d claims are still waited for", left)
	}
}

func TestOnlyLabelsAreKeptOfNodes(t *testing.T) {
	obj := must.Get(labelsOnly(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"x": "y"}},
		Status: v1.NodeStatus{Images: []v1.ContainerImage{{Names: []string{"i"}}}}}))(t)
	node, ok := obj.(*v1.Node)
	if !ok || node.Name != "n" || node.Labels["a"] != "b" || len(node.Annotations) != 0 || len(node.Status.Images) != 0 {
		t.Errorf("%+v", obj)
	}
}

// TestAClaimIsNotCheckedByWhatTheCacheShowedBefore has a cache that lags behind what was written.
func TestAClaimIsNotCheckedByWhatTheCacheShowedBefore(t *testing.T) {
	w := newWorld(t)
	task := &task{Binder: w.binder, pod: &v1.Pod{}, node: &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, selected: map[string]string{"c": "7"}}
	class := "late"
	for version, test := range map[string]struct {
		annotations map[string]string
		fails       bool
	}{
		"6": {},
		"7": {annotations: map[string]string{volume.AnnSelectedNode: "n1"}},
		"8": {fails: true},
	} {
		got, err := task.check(&v1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: "c", ResourceVersion: version, Annotations: test.annotations},
			Spec:       v1.PersistentVolumeClaimSpec{StorageClassName: &class}})
		if (err != nil) != test.fails || !test.fails && got != waiting {
			t.Errorf("version %s: %v, %v", version, got, err)
		}
	}
}
