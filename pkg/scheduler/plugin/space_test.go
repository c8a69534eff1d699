package plugin

import (
	"fmt"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/volumebinding"

	"github.com/carve-csi/carve/api/names"
)

// The claims need 2 GiB, and those of "large" 5 GiB. The cluster has six nodes.
func TestOnlyNodesWithSpaceAreLookedAt(t *testing.T) {
	late := "late"
	for name, test := range map[string]struct {
		gib    []int64 // of each node
		more   []metav1.Object
		claims []string
		placed int // the number of claims of 2 GiB in flight on the first node
		above  int
		// template means that the first node is an invention of the Cluster Autoscaler.
		template bool
		want     []string
		status   *fwk.Status
	}{
		"most are full":                 {gib: []int64{3, 0, 1, 0, 0, 9}, claims: []string{"data"}, want: []string{"n0", "n5"}},
		"there are few nodes":           {gib: []int64{3, 0, 1, 0, 0, 9}, claims: []string{"data"}, above: 6},
		"half are full":                 {gib: []int64{3, 0, 2, 0, 0, 9}, claims: []string{"data"}, want: []string{"n0", "n2", "n5"}},
		"few are full":                  {gib: []int64{3, 0, 2, 2, 0, 9}, claims: []string{"data"}},
		"all are full":                  {gib: []int64{1, 0, 1, 0, 0, 1}, claims: []string{"data"}, status: fwk.NewStatus(fwk.UnschedulableAndUnresolvable, string(volumebinding.ErrReasonNotEnoughSpace))},
		"a node is full soon":           {gib: []int64{3, 0, 1, 0, 0, 9}, claims: []string{"data"}, placed: 1, want: []string{"n5"}},
		"another claim is larger":       {gib: []int64{3, 5, 1, 0, 0, 9}, claims: []string{"data", "large"}, want: []string{"n1", "n5"}},
		"another claim has a volume":    {gib: []int64{3, 0, 1, 0, 0, 9}, claims: []string{"data", "bound"}, want: []string{"n0", "n5"}},
		"the claim has a volume":        {gib: []int64{3, 0, 1, 0, 0, 9}, claims: []string{"bound"}},
		"a static volume may suit":      {gib: []int64{3, 0, 1, 0, 0, 9}, claims: []string{"data"}, more: []metav1.Object{static()}},
		"there is space of all nodes":   {gib: []int64{3, 0, 1, 0, 0, 9}, claims: []string{"data"}, more: []metav1.Object{ofAll(9)}},
		"a new node would have space":   {gib: []int64{3, 0, 1, 0, 0, 9}, claims: []string{"data"}, more: []metav1.Object{ofTemplate(9)}, want: []string{"n0", "n5"}},
		"a node is made up":             {gib: []int64{3, 0, 1, 0, 0, 9}, claims: []string{"data"}, template: true},
		"all nodes share too little":    {gib: []int64{3, 0, 1, 0, 0, 9}, claims: []string{"data"}, more: []metav1.Object{ofAll(1)}, want: []string{"n0", "n5"}},
		"the driver publishes no space": {gib: []int64{3, 0, 1, 0, 0, 9}, claims: []string{"data"}, more: []metav1.Object{driver(false)}},
	} {
		t.Run(name, func(t *testing.T) {
			c := &caches{SharedInformerFactory: informers.NewSharedInformerFactory(nil, 0)}
			c.put(t, driver(true))
			c.put(t, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: late}, Provisioner: names.Driver, VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer)})
			c.put(t, &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "bound"}})
			for claim, gib := range map[string]int64{"data": 2, "large": 5, "bound": 2} {
				object := asks(claim, gib, nil).PVC
				object.Name, object.Namespace, object.Spec.StorageClassName = claim, namespace, &late
				if claim == "bound" {
					object.Spec.VolumeName = claim
					object.Annotations = map[string]string{"pv.kubernetes.io/bind-completed": "yes"}
				}
				c.put(t, object)
			}
			var nodes []fwk.NodeInfo
			for i, gib := range test.gib {
				name := fmt.Sprint("n", i)
				node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{names.TopologyNode: name}}}
				if i == 0 && test.template {
					node.Labels[names.LabelTemplateNode] = "true"
				}
				c.put(t, node)
				info := framework.NewNodeInfo()
				info.SetNode(node)
				nodes = append(nodes, info)
				capacity := shows(name, gib)
				capacity.StorageClassName, capacity.NodeTopology = late, &metav1.LabelSelector{MatchLabels: node.Labels}
				c.put(t, capacity)
			}
			for _, object := range test.more {
				c.put(t, object)
			}
			args, err := arguments(nil)
			if err != nil {
				t.Fatal(err)
			}
			plugin, err := newBinding(quiet(t), args, c.handle(quiet(t), t), feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate))
			if err != nil {
				t.Fatal(err)
			}
			plugin.space.above = test.above
			for i := range test.placed {
				plugin.binder.inFlight.add([]*volumebinding.DynamicProvision{asks(fmt.Sprint("placed-", i), 2, shows("n0", test.gib[0]))})
			}
			pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: namespace}}
			for _, claim := range test.claims {
				pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}})
			}
			result, status := plugin.PreFilter(quiet(t), framework.NewCycleState(), pod, nodes)
			if status.Code() != test.status.Code() || status.Message() != test.status.Message() {
				t.Fatalf("got %v, want %v", status, test.status)
			}
			var got []string
			if !result.AllNodes() {
				got = slices.Sorted(slices.Values(result.NodeNames.UnsortedList()))
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("the scheduler looks at %v, want %v (none for all)", got, test.want)
			}
		})
	}
}

func driver(publishes bool) *storagev1.CSIDriver {
	return &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: names.Driver}, Spec: storagev1.CSIDriverSpec{StorageCapacity: new(publishes)}}
}

func static() *v1.PersistentVolume {
	return &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "static"}, Status: v1.PersistentVolumeStatus{Phase: v1.VolumeAvailable}, Spec: v1.PersistentVolumeSpec{
		StorageClassName: "late", Capacity: v1.ResourceList{v1.ResourceStorage: *size(2)},
	}}
}

// ofTemplate returns the capacity of a node that the Cluster Autoscaler would add.
func ofTemplate(gib int64) *storagev1.CSIStorageCapacity {
	capacity := ofAll(gib)
	capacity.NodeTopology.MatchLabels = map[string]string{names.LabelTemplateNode: "true", v1.LabelInstanceTypeStable: "large"}
	return capacity
}

// ofAll returns space that all nodes can access.
func ofAll(gib int64) *storagev1.CSIStorageCapacity {
	capacity := shows("all", gib)
	capacity.StorageClassName, capacity.NodeTopology = "late", &metav1.LabelSelector{}
	return capacity
}
