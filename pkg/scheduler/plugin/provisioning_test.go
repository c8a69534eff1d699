package plugin

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/volume"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/clientfake"
	"github.com/carve-csi/carve/pkg/controller/objects"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

type world struct {
	t      *testing.T
	client *fake.Clientset
	caches *caches
	plugin *binding
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, client: clientfake.New()}
	w.versionClaims()
	for _, name := range []string{"n1", "n2"} {
		must.Get(w.client.CoreV1().Nodes().Create(t.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{names.TopologyNode: name}}}, metav1.CreateOptions{}))(t)
	}
	for name, provisioner := range map[string]string{"late": "a.example.com", "by-hand": volume.NotSupportedProvisioner} {
		class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner, VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer)}
		must.Get(w.client.StorageV1().StorageClasses().Create(t.Context(), class, metav1.CreateOptions{}))(t)
	}
	ctx, cancel := context.WithCancel(quiet(t))
	w.caches = &caches{SharedInformerFactory: informers.NewSharedInformerFactory(w.client, 0), client: w.client}
	w.plugin = must.Get(newBinding(ctx, must.Get(arguments(nil))(t), w.caches.handle(ctx, t), feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate)))(t)
	w.caches.Start(ctx.Done())
	w.caches.WaitForCacheSync(ctx.Done())
	t.Cleanup(func() { cancel(); w.caches.Shutdown() })
	return w
}

// versionClaims makes the API server version claims, and reject updates of older versions.
func (w *world) versionClaims() {
	var mu sync.Mutex
	last := 1
	w.client.PrependReactor("*", "persistentvolumeclaims", func(action clienttesting.Action) (bool, runtime.Object, error) {
		write, ok := action.(clienttesting.CreateAction) // or an update
		if !ok {
			return false, nil, nil
		}
		mu.Lock()
		defer mu.Unlock()
		claim := write.GetObject().(*v1.PersistentVolumeClaim).DeepCopy()
		now, err := w.client.Tracker().Get(action.GetResource(), claim.Namespace, claim.Name)
		if err == nil && now.(*v1.PersistentVolumeClaim).ResourceVersion != claim.ResourceVersion {
			return true, nil, apierrors.NewConflict(v1.Resource("persistentvolumeclaims"), claim.Name, errors.New("it has changed"))
		}
		last++
		claim.ResourceVersion = strconv.Itoa(last)
		if err == nil {
			return true, claim, w.client.Tracker().Update(action.GetResource(), claim, claim.Namespace)
		}
		return true, claim, w.client.Tracker().Create(action.GetResource(), claim, claim.Namespace)
	})
}

func (w *world) claim(name, class string) {
	w.t.Helper()
	claim := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, UID: types.UID("uid-" + name)},
		Spec: v1.PersistentVolumeClaimSpec{StorageClassName: &class, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: *size(1)}}},
		Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimPending},
	}
	must.Get(w.client.CoreV1().PersistentVolumeClaims(namespace).Create(w.t.Context(), claim, metav1.CreateOptions{}))(w.t)
	waittest.Until(w.t, "the scheduler sees claim "+name, func() bool {
		_, err := w.caches.Core().V1().PersistentVolumeClaims().Lister().PersistentVolumeClaims(namespace).Get(name)
		return err == nil
	})
}

func (w *world) volume(name, class, node, claim string, changes ...func(*v1.PersistentVolume)) {
	w.t.Helper()
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1.PersistentVolumeStatus{Phase: v1.VolumeAvailable}, Spec: v1.PersistentVolumeSpec{
		StorageClassName: class, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, NodeAffinity: objects.NodeAffinity(node),
		Capacity: v1.ResourceList{v1.ResourceStorage: *size(1)}}}
	if claim != "" {
		pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: namespace, Name: claim, UID: types.UID("uid-" + claim)}
	}
	for _, change := range changes {
		change(pv)
	}
	must.Get(w.client.CoreV1().PersistentVolumes().Create(w.t.Context(), pv, metav1.CreateOptions{}))(w.t)
	waittest.Until(w.t, "the scheduler sees volume "+name, func() bool {
		_, err := w.caches.Core().V1().PersistentVolumes().Lister().Get(name)
		return err == nil
	})
}

func (w *world) getClaim(name string) *v1.PersistentVolumeClaim {
	return must.Get(w.client.CoreV1().PersistentVolumeClaims(namespace).Get(context.Background(), name, metav1.GetOptions{}))(w.t).DeepCopy()
}

func (w *world) update(name string, change func(*v1.PersistentVolumeClaim)) {
	w.t.Helper()
	claim := w.getClaim(name)
	if claim.Annotations == nil {
		claim.Annotations = map[string]string{}
	}
	change(claim)
	must.Get(w.client.CoreV1().PersistentVolumeClaims(namespace).Update(context.Background(), claim, metav1.UpdateOptions{}))(w.t)
}

// boundTo does the PV controller's final update.
func boundTo(pv string) func(*v1.PersistentVolumeClaim) {
	return func(c *v1.PersistentVolumeClaim) {
		c.Spec.VolumeName, c.Status.Phase = pv, v1.ClaimBound
		metav1.SetMetaDataAnnotation(&c.ObjectMeta, volume.AnnBindCompleted, "yes")
	}
}

func (w *world) isSelected(claim string) {
	w.t.Helper()
	waittest.Until(w.t, "the node is selected for "+claim, func() bool { return w.getClaim(claim).Annotations[volume.AnnSelectedNode] == "n1" })
}

// provision acts as the provisioner and the PV controller, once the node is selected.
func (w *world) provision(claim string) {
	w.t.Helper()
	w.isSelected(claim)
	w.volume("pvc-"+claim, "late", "n1", claim)
	w.update(claim, boundTo("pvc-"+claim))
}

type attempt struct {
	state fwk.CycleState
	pod   *v1.Pod
}

func (w *world) suits(a attempt, name string) *fwk.Status {
	node := framework.NewNodeInfo()
	node.SetNode(must.Get(w.client.CoreV1().Nodes().Get(context.Background(), name, metav1.GetOptions{}))(w.t))
	if _, s := w.plugin.PreFilter(quiet(w.t), a.state, a.pod, []fwk.NodeInfo{node}); !s.IsSuccess() {
		return s
	}
	return w.plugin.Filter(quiet(w.t), a.state, a.pod, node)
}

func (w *world) reserve(name string, claims ...string) attempt {
	w.t.Helper()
	a := attempt{framework.NewCycleState(), naming(name, claims...)}
	must.Get(w.client.CoreV1().Pods(namespace).Create(w.t.Context(), a.pod, metav1.CreateOptions{}))(w.t)
	waittest.Until(w.t, "the scheduler sees Pod "+name, func() bool {
		_, err := w.caches.Core().V1().Pods().Lister().Pods(namespace).Get(name)
		return err == nil
	})
	if s := w.suits(a, "n1"); !s.IsSuccess() {
		w.t.Fatalf("n1 does not suit Pod %s: %v", name, s)
	}
	a.pod = a.pod.DeepCopy()
	a.pod.Spec.NodeName = "n1"
	if s := w.plugin.Reserve(quiet(w.t), a.state, a.pod, "n1"); !s.IsSuccess() {
		w.t.Fatal(s)
	}
	return a
}

// preBind starts to bind the Pod's volumes, and returns a function that waits for the result.
func (w *world) preBind(a attempt) func() error {
	outcome := make(chan error, 1)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(quiet(w.t)), waittest.Limit)
	go func() { outcome <- w.plugin.PreBind(ctx, a.state, a.pod, "n1").AsError() }()
	return func() error {
		defer cancel()
		return <-outcome
	}
}

func naming(name string, claims ...string) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, UID: types.UID(name)}}
	for _, claim := range claims {
		pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: claim, VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}})
	}
	return pod
}

func TestPreBindReturnsWhenAllClaimsAreBound(t *testing.T) {
	w := newWorld(t)
	w.claim("a", "late")
	w.claim("b", "late")
	outcome, ended := w.preBind(w.reserve("p", "a", "b")), make(chan error, 1)
	go func() { ended <- outcome() }()
	w.isSelected("b") // before claim a is bound
	w.provision("a")
	if len(ended) > 0 {
		t.Fatal("PreBind returned before claim b was bound")
	}
	w.provision("b")
	if err := <-ended; err != nil {
		t.Errorf("got %v, want none", err)
	}
}

func TestPreBindReservesStaticVolumes(t *testing.T) {
	w := newWorld(t)
	w.claim("a", "by-hand")
	w.volume("static", "by-hand", "n1", "")
	outcome := w.preBind(w.reserve("p", "a"))
	waittest.Until(t, "the volume is given to the claim", func() bool {
		ref := must.Get(w.client.CoreV1().PersistentVolumes().Get(t.Context(), "static", metav1.GetOptions{}))(t).Spec.ClaimRef
		return ref != nil && ref.Name == "a" && ref.UID == "uid-a"
	})
	w.update("a", boundTo("static"))
	if err := outcome(); err != nil {
		t.Errorf("got %v, want none", err)
	}
}

// The changes happen after the selection of the node.
func TestPreBindFailsWhenTheClaimCannotBeBound(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*world)
		want   string
	}{
		"its provisioner asks for another node": {func(w *world) {
			w.update("a", func(c *v1.PersistentVolumeClaim) { delete(c.Annotations, volume.AnnSelectedNode) })
		}, "claim a could not be provisioned on node n1"},
		"another Pod took it to another node": {func(w *world) {
			w.update("a", func(c *v1.PersistentVolumeClaim) { c.Annotations[volume.AnnSelectedNode] = "n2" })
		}, "claim a has selected node n2"},
		"it is bound elsewhere": {func(w *world) {
			w.volume("far", "late", "n2", "a")
			w.update("a", boundTo("far"))
		}, "claim a is bound to volume far, which node n1 cannot use"},
		"its movable volume is elsewhere": {func(w *world) {
			w.volume("far", "late", "n2", "a", movableFrom("n2"))
			w.update("a", boundTo("far"))
		}, "claim a is bound to volume far, which node n1 cannot use"},
		"it has lost its volume": {func(w *world) {
			w.update("a", func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeName, c.Status.Phase = "gone", v1.ClaimLost })
		}, "claim a has lost its volume gone"},
		"it is being deleted": {func(w *world) {
			w.update("a", func(c *v1.PersistentVolumeClaim) {
				c.DeletionTimestamp, c.Finalizers = new(metav1.Now()), []string{"kubernetes.io/pvc-protection"}
			})
		}, "claim a is being deleted"},
		"it was deleted": {func(w *world) {
			must.Succeed(w.t, w.client.CoreV1().PersistentVolumeClaims(namespace).Delete(w.t.Context(), "a", metav1.DeleteOptions{}))
		}, `"a" not found`},
		"the Pod was deleted": {func(w *world) {
			must.Succeed(w.t, w.client.CoreV1().Pods(namespace).Delete(w.t.Context(), "p", metav1.DeleteOptions{}))
		}, "the Pod was deleted"},
		"the Pod was replaced": {func(w *world) {
			pods := w.client.CoreV1().Pods(namespace)
			pod := must.Get(pods.Get(w.t.Context(), "p", metav1.GetOptions{}))(w.t)
			pod.UID = "another"
			must.Get(pods.Update(w.t.Context(), pod, metav1.UpdateOptions{}))(w.t)
		}, "the Pod was deleted"},
		"the node was deleted": {func(w *world) {
			must.Succeed(w.t, w.client.CoreV1().Nodes().Delete(w.t.Context(), "n1", metav1.DeleteOptions{}))
		}, `"n1" not found`},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.claim("a", "late")
			outcome := w.preBind(w.reserve("p", "a"))
			w.isSelected("a")
			test.change(w)
			if err := outcome(); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want an error with %q", err, test.want)
			}
		})
	}
}

func movableFrom(node string) func(*v1.PersistentVolume) {
	return func(pv *v1.PersistentVolume) {
		pv.Spec.NodeAffinity = nil
		pv.Spec.CSI = &v1.CSIPersistentVolumeSource{Driver: names.Driver, VolumeAttributes: map[string]string{names.ContextNode: node}}
	}
}

func TestPreBindNamesTheClaimWhenItsTimeIsOver(t *testing.T) {
	w := newWorld(t)
	w.claim("a", "late")
	a := w.reserve("p", "a")
	ctx, cancel := context.WithCancel(quiet(t))
	outcome := make(chan error, 1)
	go func() { outcome <- w.plugin.PreBind(ctx, a.state, a.pod, "n1").AsError() }()
	w.isSelected("a")
	cancel()
	if err := <-outcome; !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "claim a is not bound yet") {
		t.Errorf("got %v, want one that names the claim", err)
	}
}

func TestPodsThatShareAClaimAreBothBound(t *testing.T) {
	w := newWorld(t)
	w.claim("a", "late")
	first, second := w.reserve("first", "a"), w.reserve("second", "a")
	outcomes := []func() error{w.preBind(first), w.preBind(second)}
	w.provision("a")
	for i, outcome := range outcomes {
		if err := outcome(); err != nil {
			t.Errorf("Pod %d: got %v, want none", i, err)
		}
	}
}

func TestAClaimThatCouldNotBeWrittenIsFree(t *testing.T) {
	w := newWorld(t)
	w.claim("a", "late")
	a := w.reserve("p", "a")
	if s := w.suits(attempt{framework.NewCycleState(), a.pod}, "n2"); s.IsSuccess() {
		t.Fatal("n2 suits a claim that is assumed to have selected n1")
	}
	w.update("a", func(c *v1.PersistentVolumeClaim) { c.Labels = map[string]string{"changed": "yes"} }) // Reserve saw an older version
	if err := w.preBind(a)(); !apierrors.IsConflict(err) {
		t.Errorf("got %v, want a conflict", err)
	}
	w.plugin.Unreserve(quiet(t), a.state, a.pod, "n1")
	if s := w.suits(attempt{framework.NewCycleState(), a.pod}, "n2"); !s.IsSuccess() {
		t.Errorf("n2 does not suit the claim after that: %v", s)
	}
}

func TestManyPodsAreBoundAtOnce(t *testing.T) {
	w := newWorld(t)
	const pods = 50
	var outcomes []func() error
	for i := range pods {
		name := fmt.Sprint("c-", i)
		w.claim(name, "late")
		outcomes = append(outcomes, w.preBind(w.reserve(fmt.Sprint("p-", i), name)))
	}
	for i := range pods {
		w.provision(fmt.Sprint("c-", i))
	}
	for i, outcome := range outcomes {
		if err := outcome(); err != nil {
			t.Errorf("Pod %d: got %v, want none", i, err)
		}
	}
	if left := len(w.plugin.binder.provisioning.changes.byKey); left != 0 {
		t.Errorf("%d claims are still waited for, want none", left)
	}
}

func TestEventsWakeCallsThatWaitForTheirClaims(t *testing.T) {
	claim := func(name string) *v1.PersistentVolumeClaim {
		return &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}}
	}
	volumeFor := func(claim string) *v1.PersistentVolume {
		return &v1.PersistentVolume{Spec: v1.PersistentVolumeSpec{ClaimRef: &v1.ObjectReference{Namespace: namespace, Name: claim}}}
	}
	for name, test := range map[string]struct {
		object any
		want   bool
	}{
		"the claim":                  {object: claim("a"), want: true},
		"another claim":              {object: claim("b")},
		"its volume":                 {object: volumeFor("a"), want: true},
		"another claim's volume":     {object: volumeFor("b")},
		"a volume without a claim":   {object: &v1.PersistentVolume{}},
		"its Pod":                    {object: naming("p", "a"), want: true},
		"another Pod":                {object: naming("p", "b")},
		"a node":                     {object: &v1.Node{}, want: true},
		"a Pod whose end was missed": {object: cache.DeletedFinalStateUnknown{Obj: naming("p", "a")}, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			p := &provisioning{}
			wake, stop := p.changes.subscribe([]string{namespace + "/a"})
			defer stop()
			p.changed(test.object)
			if got := len(wake) > 0; got != test.want {
				t.Errorf("awake: got %t, want %t", got, test.want)
			}
		})
	}
}

// The scheduler wrote the claims as version 7.
func TestAClaimIsBoundWhenTheAPISaysSo(t *testing.T) {
	selected := func(c *v1.PersistentVolumeClaim) { c.Annotations = map[string]string{volume.AnnSelectedNode: "n1"} }
	named := func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeName = "v" }
	completed := func(c *v1.PersistentVolumeClaim) {
		metav1.SetMetaDataAnnotation(&c.ObjectMeta, volume.AnnBindCompleted, "yes")
	}
	phase := func(c *v1.PersistentVolumeClaim) { c.Status.Phase = v1.ClaimBound }
	for name, test := range map[string]struct {
		version int
		changes []func(*v1.PersistentVolumeClaim)
		lacksPV bool
		want    bool
		fails   bool
	}{
		"the cache is older":              {version: 6},
		"the node is selected":            {version: 7, changes: []func(*v1.PersistentVolumeClaim){selected}},
		"the node is selected no longer":  {version: 8, fails: true},
		"it names a volume":               {version: 8, changes: []func(*v1.PersistentVolumeClaim){selected, named}},
		"the phase is not written yet":    {version: 9, changes: []func(*v1.PersistentVolumeClaim){selected, named, completed}},
		"the binding is not complete yet": {version: 9, changes: []func(*v1.PersistentVolumeClaim){selected, named, phase}},
		"the volume is not known yet":     {version: 9, changes: []func(*v1.PersistentVolumeClaim){selected, named, completed, phase}, lacksPV: true},
		"it is bound":                     {version: 9, changes: []func(*v1.PersistentVolumeClaim){selected, named, completed, phase}, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			c := &caches{SharedInformerFactory: informers.NewSharedInformerFactory(nil, 0)}
			p := must.Get(newProvisioning(c.handle(quiet(t), t), waittest.Limit))(t)
			if !test.lacksPV {
				c.put(t, &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}})
			}
			claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: namespace}}
			for _, change := range test.changes {
				change(claim)
			}
			c.version = test.version - 1
			c.put(t, claim)
			written := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: namespace, ResourceVersion: "7"}}
			bound, err := p.isBound(written, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
			if bound != test.want || (err != nil) != test.fails {
				t.Errorf("got bound %t, error %v; want bound %t, an error %t", bound, err, test.want, test.fails)
			}
		})
	}
}
