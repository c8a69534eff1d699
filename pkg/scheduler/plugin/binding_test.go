package plugin

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	goruntime "runtime"
	"slices"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/volumebinding"
	"k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
	"pgregory.net/rapid"

	"github.com/carve-csi/carve/api/names"
)

// caches holds the objects that the schedulers of a test see, in informers that do not run.
type caches struct {
	informers.SharedInformerFactory
	version int
	client  kubernetes.Interface // nil if the test writes nothing
}

func (c *caches) put(t rapid.TB, object metav1.Object) {
	c.version++
	object.SetResourceVersion(fmt.Sprint(c.version))
	indexer := c.Core().V1().Nodes().Informer().GetIndexer()
	switch object.(type) {
	case *v1.PersistentVolumeClaim:
		indexer = c.Core().V1().PersistentVolumeClaims().Informer().GetIndexer()
	case *v1.PersistentVolume:
		indexer = c.Core().V1().PersistentVolumes().Informer().GetIndexer()
	case *storagev1.StorageClass:
		indexer = c.Storage().V1().StorageClasses().Informer().GetIndexer()
	case *storagev1.CSIDriver:
		indexer = c.Storage().V1().CSIDrivers().Informer().GetIndexer()
	case *storagev1.CSIStorageCapacity:
		indexer = c.Storage().V1().CSIStorageCapacities().Informer().GetIndexer()
	}
	if err := indexer.Add(object); err != nil {
		t.Fatal(err)
	}
}

func (c *caches) handle(ctx context.Context, t rapid.TB) fwk.Handle {
	metrics.Register()
	handle, err := runtime.NewFramework(ctx, nil, nil, runtime.WithInformerFactory(c), runtime.WithClientSet(c.client))
	if err != nil {
		t.Fatal(err)
	}
	return handle
}

const (
	namespace = "default"
	other     = "other.example.com"
)

var (
	nodeNames = []string{"n0", "n1", "n2", "n3"}
	zones     = []string{"a", "b"}
	classes   = []string{"late", "late-too", "now", "other", "other-now", "by-hand", "zone-a"}
	late      = []string{"late", "late", "late", "late", "late-too", "other", "by-hand", "zone-a"}
)

func newCaches(t *rapid.T) *caches {
	c := &caches{SharedInformerFactory: informers.NewSharedInformerFactory(nil, 0)}
	for _, name := range nodeNames {
		labels := map[string]string{"zone": one(t, zones...)}
		if one(t, true, true, true, false) {
			labels[names.TopologyNode] = one(t, name, name, name, "", "n0")
		}
		c.put(t, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}})
	}
	for _, driver := range []string{names.Driver, other} {
		if one(t, true, true, true, false) {
			checked := one(t, new(true), new(true), new(true), new(false), nil)
			c.put(t, &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driver}, Spec: storagev1.CSIDriverSpec{StorageCapacity: checked}})
		}
	}
	for _, name := range classes {
		class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: names.Driver, VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer)}
		switch name {
		case "now":
			class.VolumeBindingMode = new(storagev1.VolumeBindingImmediate)
		case "other":
			class.Provisioner = other
		case "other-now":
			class.Provisioner, class.VolumeBindingMode = other, new(storagev1.VolumeBindingImmediate)
		case "by-hand":
			class.Provisioner = volume.NotSupportedProvisioner
		case "zone-a":
			class.AllowedTopologies = []v1.TopologySelectorTerm{{MatchLabelExpressions: []v1.TopologySelectorLabelRequirement{{Key: "zone", Values: []string{"a"}}}}}
		}
		c.put(t, class)
	}
	for i := range rapid.IntRange(0, 12).Draw(t, "capacities") {
		c.putCapacity(t, i)
	}
	for i := range 5 {
		c.putClaim(t, i)
	}
	for i := range rapid.IntRange(0, 8).Draw(t, "volumes") {
		c.putVolume(t, i)
	}
	return c
}

func (c *caches) putCapacity(t *rapid.T, i int) {
	on := map[string]string{names.TopologyNode: one(t, append([]string{"", "*"}, nodeNames...)...)}
	inZone := map[string]string{"zone": one(t, zones...)}
	both := maps.Clone(on)
	maps.Copy(both, inZone)
	among := func(operator metav1.LabelSelectorOperator, values ...string) []metav1.LabelSelectorRequirement {
		return []metav1.LabelSelectorRequirement{{Key: names.TopologyNode, Operator: operator, Values: values}}
	}
	topology := one(t, &metav1.LabelSelector{MatchLabels: on}, &metav1.LabelSelector{MatchLabels: on}, &metav1.LabelSelector{MatchLabels: on},
		nil, &metav1.LabelSelector{}, &metav1.LabelSelector{MatchLabels: both}, &metav1.LabelSelector{MatchLabels: inZone},
		&metav1.LabelSelector{MatchExpressions: among(metav1.LabelSelectorOpIn, "n1", "n2")},
		&metav1.LabelSelector{MatchExpressions: among(metav1.LabelSelectorOpDoesNotExist)},
		&metav1.LabelSelector{MatchLabels: on, MatchExpressions: among(metav1.LabelSelectorOpNotIn, "n1")},
		&metav1.LabelSelector{MatchLabels: inZone, MatchExpressions: among("Invalid")})
	c.put(t, &storagev1.CSIStorageCapacity{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("capacity-", i), Namespace: namespace}, StorageClassName: one(t, classes...), NodeTopology: topology,
		Capacity: one(t, nil, size(1), size(2), size(3), size(9)), MaximumVolumeSize: one(t, nil, nil, size(1), size(2), size(9)),
	})
}

// putClaim draws the claim of Pod i's ephemeral volume. Other Pods may refer to it, too.
func (c *caches) putClaim(t *rapid.T, i int) {
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Name: fmt.Sprintf("p%d-data", i), Namespace: namespace, UID: types.UID(fmt.Sprint("claim-", i)),
		OwnerReferences: []metav1.OwnerReference{{UID: types.UID(fmt.Sprint("p", i)), Name: fmt.Sprint("p", i), Kind: "Pod", Controller: new(true)}},
	}, Spec: v1.PersistentVolumeClaimSpec{StorageClassName: new(one(t, late...))}}
	if one(t, true, true, true, false) {
		claim.Spec.Resources.Requests = v1.ResourceList{v1.ResourceStorage: *size(one[int64](t, 1, 2, 3))}
	}
	switch one(t, "free", "free", "free", "free", "selected", "named", "bound", "immediate") {
	case "selected":
		claim.Annotations = map[string]string{volume.AnnSelectedNode: one(t, nodeNames...)}
	case "named":
		claim.Spec.VolumeName = fmt.Sprint("volume-", one(t, 0, 1, 2))
	case "bound":
		claim.Spec.VolumeName = fmt.Sprint("volume-", one(t, 0, 1, 2))
		claim.Annotations = map[string]string{volume.AnnBindCompleted: "yes"}
	case "immediate":
		claim.Spec.StorageClassName = new(one(t, classes...))
	}
	c.put(t, claim)
}

// putVolume draws a volume. Each has its own size and claim: among equal ones, upstream chooses
// any.
func (c *caches) putVolume(t *rapid.T, i int) {
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("volume-", i)}, Spec: v1.PersistentVolumeSpec{
		StorageClassName: one(t, late...),
		Capacity:         v1.ResourceList{v1.ResourceStorage: *resource.NewQuantity(one[int64](t, 1, 2, 4)<<30+int64(i), resource.BinarySI)},
	}}
	term := func(key, value string) *v1.VolumeNodeAffinity {
		return &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
			MatchExpressions: []v1.NodeSelectorRequirement{{Key: key, Operator: v1.NodeSelectorOpIn, Values: []string{value}}},
		}}}}
	}
	pv.Spec.NodeAffinity = one(t, nil, term(names.TopologyNode, one(t, nodeNames...)), term("zone", one(t, zones...)))
	pv.Status.Phase = one(t, v1.VolumeAvailable, v1.VolumeAvailable, v1.VolumeAvailable, v1.VolumePending, v1.VolumeBound, v1.VolumeBound, v1.VolumeReleased)
	if one(t, true, false) {
		pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: one(t, namespace, namespace, namespace, "another"), Name: fmt.Sprintf("p%d-data", i),
			UID: types.UID(one(t, "", fmt.Sprint("claim-", i), fmt.Sprint("claim-", i), "former"))}
	}
	if one(t, true, false, false, false, false) {
		pv.DeletionTimestamp = new(metav1.Now())
	}
	c.put(t, pv)
}

// forgetVolumes drops assumed volumes, with which two could belong to one claim.
func (c *caches) forgetVolumes(t *rapid.T) {
	for _, object := range c.Core().V1().PersistentVolumes().Informer().GetIndexer().List() {
		c.put(t, object.(*v1.PersistentVolume).DeepCopy())
	}
}

// pod draws Pod i, whose volumes are distinct: its own claim or, sometimes, those of others.
func pod(t *rapid.T, i int) *v1.Pod {
	name := fmt.Sprint("p", i)
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, UID: types.UID(name)}}
	ephemeral := one(t, true, false)
	if ephemeral {
		pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: "data", VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}})
	}
	for _, of := range rapid.SliceOfNDistinct(rapid.SampledFrom([]int{0, 1, 2, 3, 4}), 0, 2, rapid.ID).Draw(t, "claims") {
		if of == i && ephemeral {
			continue
		}
		pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: fmt.Sprint("v", of), VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: fmt.Sprintf("p%d-data", of)},
		}})
	}
	return pod
}

// Only Carve's plugin compares the sum of a Pod's claims; otherwise both must agree.
func TestNodesAreFilteredAsByUpstream(t *testing.T) {
	features := feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate)
	args, err := arguments(nil)
	if err != nil {
		t.Fatal(err)
	}
	draw := func(t *rapid.T) {
		c := newCaches(t)
		handle := c.handle(quiet(t), t)
		made, err := volumebinding.New(quiet(t), args, handle, features)
		if err != nil {
			t.Fatal(err)
		}
		ours, err := newBinding(quiet(t), args, handle, features)
		if err != nil {
			t.Fatal(err)
		}
		ours.space.above = 0
		both := &pair{c, made.(*volumebinding.VolumeBinding), ours}
		for range 20 {
			both.schedule(t, pod(t, one(t, 0, 1, 2, 3, 4)))
			switch one(t, "", "capacity", "volume", "claim") {
			case "capacity":
				c.putCapacity(t, one(t, 0, 1, 2, 3))
			case "volume":
				c.forgetVolumes(t)
				c.putVolume(t, one(t, 0, 1, 2, 3))
			case "claim":
				c.forgetVolumes(t)
				c.putClaim(t, one(t, 0, 1, 2, 3, 4))
			}
		}
	}
	for range 4 { // a hundred draws miss some rare cases
		rapid.Check(t, draw)
	}
}

// pair holds both plugins of one scheduler.
type pair struct {
	*caches
	upstream *volumebinding.VolumeBinding
	ours     *binding
}

// schedule assigns a Pod to a suitable node, if any, and sometimes removes it again.
func (p *pair) schedule(t *rapid.T, pod *v1.Pod) {
	ctx := quiet(t)
	want, got := framework.NewCycleState(), framework.NewCycleState()
	same := func(what string, upstream, ours *fwk.Status) {
		if upstream.Code() != ours.Code() || upstream.Message() != ours.Message() {
			t.Fatalf("%s: upstream's answer is %v, %q, ours %v, %q", what, upstream.Code(), upstream.Message(), ours.Code(), ours.Message())
		}
	}
	nodes, answers := make([]fwk.NodeInfo, len(nodeNames)), make([]*fwk.Status, len(nodeNames))
	for i, name := range nodeNames {
		node, err := p.Core().V1().Nodes().Lister().Get(name)
		if err != nil {
			t.Fatal(err)
		}
		info := framework.NewNodeInfo()
		info.SetNode(node)
		nodes[i] = info
	}
	_, upstream := p.upstream.PreFilter(ctx, want, pod, nodes)
	limit, ours := p.ours.PreFilter(ctx, got, pod, nodes)
	full := upstream.IsSuccess() && ours.Code() == fwk.UnschedulableAndUnresolvable && ours.Message() == "node(s) did not have enough free storage"
	if !full {
		same("PreFilter of "+pod.Name, upstream, ours)
	}
	if !upstream.IsSuccess() {
		return
	}
	var asked sync.WaitGroup
	for i := range nodes {
		asked.Go(func() { answers[i] = p.ours.Filter(ctx, got, pod, nodes[i]) })
	}
	asked.Wait()
	var suitable []string
	for i, name := range nodeNames {
		upstream = p.upstream.Filter(ctx, want, pod, nodes[i])
		together := map[bool]bool{true: true}
		if upstream.IsSuccess() {
			if full || !limit.AllNodes() && !limit.NodeNames.Has(name) {
				t.Fatalf("PreFilter of %s leaves out %s, which suits it: all are full is %v, nodes %v", pod.Name, name, full, limit)
			}
			together = p.fitTogether(t, pod, nodes[i].Node())
		}
		if together[false] && (!together[true] || !answers[i].IsSuccess()) {
			upstream = fwk.NewStatus(fwk.UnschedulableAndUnresolvable, string(volumebinding.ErrReasonNotEnoughSpace))
		}
		same(fmt.Sprintf("Filter of %s on %s", pod.Name, name), upstream, answers[i])
		if upstream.IsSuccess() {
			suitable = append(suitable, name)
		}
	}
	if len(suitable) == 0 {
		return
	}
	node := one(t, suitable...)
	same(fmt.Sprintf("Reserve of %s on %s", pod.Name, node), p.upstream.Reserve(ctx, want, pod, node), p.ours.Reserve(ctx, got, pod, node))
	if one(t, true, false) {
		p.upstream.Unreserve(ctx, want, pod, node)
		p.ours.Unreserve(ctx, got, pod, node)
		return
	}
	// Upstream does not count claims in flight.
	for _, object := range p.Core().V1().PersistentVolumeClaims().Informer().GetIndexer().List() {
		p.ours.binder.inFlight.forget(object.(*v1.PersistentVolumeClaim).UID)
	}
}

// fitTogether returns whether a Pod's new volumes fit together on a node with space for each. Both
// answers are possible if several objects have the space for a claim: upstream chooses any.
func (p *pair) fitTogether(t *rapid.T, pod *v1.Pod, node *v1.Node) map[bool]bool {
	claims, err := p.upstream.Binder.GetPodVolumeClaims(klog.Logger{}, pod)
	if err != nil {
		t.Fatal(err)
	}
	found, _, err := p.upstream.Binder.FindPodVolumes(klog.Logger{}, pod, claims, node)
	if err != nil {
		t.Fatal(err)
	}
	answers := map[bool]bool{}
	p.choose(found.DynamicProvisions, node, map[*storagev1.CSIStorageCapacity][]int64{}, answers)
	return answers
}

func (p *pair) choose(left []*volumebinding.DynamicProvision, node *v1.Node, chosen map[*storagev1.CSIStorageCapacity][]int64, answers map[bool]bool) {
	if len(left) == 0 {
		fit := true
		for capacity, sizes := range chosen {
			var sum int64
			for _, bytes := range sizes {
				sum += bytes
			}
			_, ofNode := capacity.NodeTopology.MatchLabels[names.TopologyNode]
			fit = fit && (len(sizes) < 2 || !ofNode || sum <= cmp.Or(capacity.Capacity, capacity.MaximumVolumeSize).Value())
		}
		answers[fit] = true
		return
	}
	if left[0].NodeCapacity == nil {
		p.choose(left[1:], node, chosen, answers)
		return
	}
	bytes := left[0].PVC.Spec.Resources.Requests.Storage().Value()
	for _, object := range p.Storage().V1().CSIStorageCapacities().Informer().GetIndexer().List() {
		capacity := object.(*storagev1.CSIStorageCapacity)
		most := cmp.Or(capacity.MaximumVolumeSize, capacity.Capacity)
		selector, err := metav1.LabelSelectorAsSelector(capacity.NodeTopology)
		if err == nil && selector.Matches(labels.Set(node.Labels)) && capacity.StorageClassName == *left[0].PVC.Spec.StorageClassName && most != nil && most.Value() >= bytes {
			others := chosen[capacity]
			chosen[capacity] = append(slices.Clone(others), bytes)
			p.choose(left[1:], node, chosen, answers)
			chosen[capacity] = others
		}
	}
}

// slowFinder yields while it checks a node, and reports if its node changes meanwhile.
type slowFinder struct {
	volumebinding.SchedulerVolumeBinder
	capacities *nodeCapacities
}

func (f slowFinder) FindPodVolumes(_ klog.Logger, _ *v1.Pod, _ *volumebinding.PodVolumeClaims, node *v1.Node) (*volumebinding.PodVolumes, volumebinding.ConflictReasons, error) {
	goruntime.Gosched()
	if f.capacities.node != node {
		return nil, nil, fmt.Errorf("the finder for %s looks at %s", node.Name, f.capacities.node.Name)
	}
	return &volumebinding.PodVolumes{}, nil, nil
}

func TestAFinderLooksAtOneNodeAtATime(t *testing.T) {
	b := &binder{finders: make(chan *finder, 2)}
	for range cap(b.finders) {
		capacities := &nodeCapacities{}
		b.finders <- &finder{slowFinder{capacities: capacities}, capacities}
	}
	var asked sync.WaitGroup
	for i := range 1000 {
		asked.Go(func() {
			if _, _, err := b.FindPodVolumes(klog.Logger{}, nil, nil, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i)}}); err != nil {
				t.Error(err)
			}
		})
	}
	asked.Wait()
}

func one[T any](t *rapid.T, of ...T) T { return rapid.SampledFrom(of).Draw(t, "one") }

// quiet returns a context without the log, which upstream fills with invalid selectors.
func quiet(t interface{ Context() context.Context }) context.Context {
	return klog.NewContext(t.Context(), klog.Logger{})
}

func size(gib int64) *resource.Quantity { return resource.NewQuantity(gib<<30, resource.BinarySI) }
