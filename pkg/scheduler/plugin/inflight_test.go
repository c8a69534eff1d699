package plugin

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/volumebinding"

	"github.com/carve-csi/carve/api/names"
)

func shows(name string, gib int64) *storagev1.CSIStorageCapacity {
	size := resource.NewQuantity(gib<<30, resource.BinarySI)
	return &storagev1.CSIStorageCapacity{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Capacity: size, MaximumVolumeSize: size}
}

// asks returns a claim that was placed by an object.
func asks(claim string, gib int64, by *storagev1.CSIStorageCapacity) *volumebinding.DynamicProvision {
	return &volumebinding.DynamicProvision{NodeCapacity: by, PVC: &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{UID: types.UID(claim)},
		Spec: v1.PersistentVolumeClaimSpec{Resources: v1.VolumeResourceRequirements{
			Requests: v1.ResourceList{v1.ResourceStorage: *resource.NewQuantity(gib<<30, resource.BinarySI)}}},
	}}
}

func TestPlacedClaimsTakeCapacityUntilItShowsThem(t *testing.T) {
	shared := informers.NewSharedInformerFactory(nil, 0)
	ten := shows("a", 10)
	for name, test := range map[string]struct {
		then func(*inFlight)
		now  *storagev1.CSIStorageCapacity
		want int64
	}{
		"none is shown yet":                    {now: ten, want: 5},
		"the first is shown":                   {then: func(f *inFlight) { f.published(ten, shows("a", 8)) }, now: shows("a", 8), want: 5},
		"both are shown":                       {then: func(f *inFlight) { f.published(ten, shows("a", 5)) }, now: shows("a", 5), want: 5},
		"less than the first takes is shown":   {then: func(f *inFlight) { f.published(ten, shows("a", 9)) }, now: shows("a", 9), want: 4},
		"space was freed":                      {then: func(f *inFlight) { f.published(ten, shows("a", 12)) }, now: shows("a", 12), want: 7},
		"another node shows less":              {then: func(f *inFlight) { f.published(shows("b", 10), shows("b", 1)) }, now: ten, want: 5},
		"another node":                         {now: shows("b", 10), want: 10},
		"the first was bound":                  {then: func(f *inFlight) { f.forget("first") }, now: ten, want: 7},
		"both were bound, and are shown then":  {then: func(f *inFlight) { f.forget("first"); f.forget("second"); f.published(ten, shows("a", 5)) }, now: shows("a", 5), want: 5},
		"the second has another node":          {then: func(f *inFlight) { f.add([]*volumebinding.DynamicProvision{asks("second", 3, shows("b", 10))}) }, now: ten, want: 8},
		"the second is placed there once more": {then: func(f *inFlight) { f.add([]*volumebinding.DynamicProvision{asks("second", 3, ten)}) }, now: ten, want: 5},
		"more is placed than there is":         {then: func(f *inFlight) { f.add([]*volumebinding.DynamicProvision{asks("third", 30, ten)}) }, now: ten, want: 0},
		"a claim of another driver":            {then: func(f *inFlight) { f.add([]*volumebinding.DynamicProvision{asks("third", 1, nil)}) }, now: ten, want: 5},
		"the size is not known any more":       {then: func(f *inFlight) { f.published(ten, &storagev1.CSIStorageCapacity{ObjectMeta: ten.ObjectMeta}) }, now: ten, want: 10},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := newInFlight(shared.Storage().V1().CSIStorageCapacities().Informer(), shared.Core().V1().PersistentVolumes().Informer())
			if err != nil {
				t.Fatal(err)
			}
			f.add([]*volumebinding.DynamicProvision{asks("first", 2, ten), asks("second", 3, ten)})
			if test.then != nil {
				test.then(f)
			}
			left := f.left(test.now)
			if got := fmt.Sprint(left.Capacity.Value()>>30, left.MaximumVolumeSize.Value()>>30); got != fmt.Sprint(test.want, test.want) {
				t.Errorf("%s GiB are left, in all and for one volume; want %d", got, test.want)
			}
			if ten.Capacity.Value() != 10<<30 {
				t.Error("the object in the cache was changed")
			}
		})
	}
}

// MaximumVolumeSize changes only if less than that is left.
func TestTheLargestVolumeIsBoundedByWhatIsLeft(t *testing.T) {
	shared := informers.NewSharedInformerFactory(nil, 0)
	f, err := newInFlight(shared.Storage().V1().CSIStorageCapacities().Informer(), shared.Core().V1().PersistentVolumes().Informer())
	if err != nil {
		t.Fatal(err)
	}
	split := shows("a", 10)
	split.MaximumVolumeSize = resource.NewQuantity(4<<30, resource.BinarySI)
	f.add([]*volumebinding.DynamicProvision{asks("first", 2, split)})
	if left := f.left(split); left.MaximumVolumeSize.Value() != 4<<30 || left.Capacity.Value() != 8<<30 {
		t.Errorf("got %v of %v, want 4Gi of 8Gi", left.MaximumVolumeSize, left.Capacity)
	}
}

func TestAPlacedClaimLeavesItsSpaceToNoOther(t *testing.T) {
	ctx, node := quiet(t), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n0", Labels: map[string]string{names.TopologyNode: "n0"}}}
	c := &caches{SharedInformerFactory: informers.NewSharedInformerFactory(nil, 0)}
	c.put(t, node)
	c.put(t, &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: names.Driver}, Spec: storagev1.CSIDriverSpec{StorageCapacity: new(true)}})
	c.put(t, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "late"}, Provisioner: names.Driver, VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer)})
	capacity := shows("capacity", 3)
	capacity.StorageClassName, capacity.NodeTopology = "late", &metav1.LabelSelector{MatchLabels: node.Labels}
	c.put(t, capacity)
	args, err := arguments(nil)
	if err != nil {
		t.Fatal(err)
	}
	plugin, err := newBinding(ctx, args, c.handle(ctx, t), feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate))
	if err != nil {
		t.Fatal(err)
	}
	at := framework.NewNodeInfo()
	at.SetNode(node)
	pods, states := make([]*v1.Pod, 2), make([]fwk.CycleState, 2)
	for i := range pods {
		claim := asks(fmt.Sprint("claim-", i), 2, nil).PVC
		claim.Name, claim.Namespace, claim.Spec.StorageClassName = fmt.Sprint("data-", i), namespace, new("late")
		c.put(t, claim)
		pods[i] = &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("p", i), Namespace: namespace}, Spec: v1.PodSpec{Volumes: []v1.Volume{{
			VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name}}}}}}
		states[i] = framework.NewCycleState()
		if _, s := plugin.PreFilter(ctx, states[i], pods[i], []fwk.NodeInfo{at}); !s.IsSuccess() {
			t.Fatalf("PreFilter of Pod %d: %v", i, s)
		}
	}
	fits := func(i int) bool { return plugin.Filter(ctx, states[i], pods[i], at).IsSuccess() }
	if !fits(0) || !fits(1) {
		t.Fatal("each Pod fits at first, and does not")
	}
	if s := plugin.Reserve(ctx, states[0], pods[0], node.Name); !s.IsSuccess() {
		t.Fatal(s)
	}
	if fits(1) {
		t.Error("the second Pod fits beside the first, which has the space")
	}
	plugin.Unreserve(ctx, states[0], pods[0], node.Name)
	if !fits(1) {
		t.Error("the second Pod does not fit when the first has the node no more")
	}
}
