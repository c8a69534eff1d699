package plugin

import (
	"fmt"
	"maps"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/volumebinding"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/objects"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/scheduler"
)

// cluster creates the nodes n0, n1 …, with free space in GiB for each class.
func cluster(t *testing.T, c *caches, gib []int64, classes ...*storagev1.StorageClass) (nodes []fwk.NodeInfo) {
	c.put(t, driver(true))
	for _, class := range classes {
		class.Provisioner, class.VolumeBindingMode = names.Driver, new(storagev1.VolumeBindingWaitForFirstConsumer)
		c.put(t, class)
	}
	for i, free := range gib {
		name := fmt.Sprint("n", i)
		node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{names.TopologyNode: name}}}
		c.put(t, node)
		info := framework.NewNodeInfo()
		info.SetNode(node)
		nodes = append(nodes, info)
		for _, class := range classes {
			capacity := shows(name+"-"+class.Name, free)
			capacity.StorageClassName, capacity.NodeTopology = class.Name, &metav1.LabelSelector{MatchLabels: node.Labels}
			c.put(t, capacity)
		}
	}
	return nodes
}

func putWanted(t *testing.T, c *caches, name, class string, gib int64) *v1.PersistentVolumeClaim {
	claim := asks(name, gib, nil).PVC
	claim.Name, claim.Namespace, claim.Spec.StorageClassName = name, namespace, &class
	c.put(t, claim)
	return claim
}

func held(name, node string) *v1.PersistentVolume {
	return &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1.PersistentVolumeStatus{Phase: v1.VolumeBound}, Spec: v1.PersistentVolumeSpec{
		StorageClassName: "late", NodeAffinity: objects.NodeAffinity(node), ClaimRef: &v1.ObjectReference{Namespace: namespace, Name: "of-" + name},
		PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: names.Driver}}}}
}

func classOf(policy scheduler.Policy) *storagev1.StorageClass {
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "class-" + string(policy)}, Parameters: map[string]string{names.ParamPlacement: string(policy)}}
}

func newPlugin(t *testing.T, c *caches) *binding {
	return must.Get(newBinding(quiet(t), must.Get(arguments(nil))(t), c.handle(quiet(t), t), feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate)))(t)
}

// The nodes have 4, 8 and 6 GiB; n0 has no volume, n1 one and n2 two.
func TestNodesAreScoredAsTheClassesSay(t *testing.T) {
	for name, test := range map[string]struct {
		classes  []scheduler.Policy
		inFlight int64 // GiB of a claim on n1
		want     map[string]int64
	}{
		"the default":                   {classes: []scheduler.Policy{""}, want: map[string]int64{"n0": 0, "n1": 100, "n2": 50}},
		"most free":                     {classes: []scheduler.Policy{scheduler.MostFree}, want: map[string]int64{"n0": 0, "n1": 100, "n2": 50}},
		"least free":                    {classes: []scheduler.Policy{scheduler.LeastFree}, want: map[string]int64{"n0": 100, "n1": 0, "n2": 50}},
		"fewest volumes":                {classes: []scheduler.Policy{scheduler.FewestVolumes}, want: map[string]int64{"n0": 100, "n1": 50, "n2": 0}},
		"most free, some in flight":     {classes: []scheduler.Policy{scheduler.MostFree}, inFlight: 3, want: map[string]int64{"n0": 0, "n1": 50, "n2": 100}},
		"fewest volumes, one in flight": {classes: []scheduler.Policy{scheduler.FewestVolumes}, inFlight: 1, want: map[string]int64{"n0": 100, "n1": 0, "n2": 0}},
		"several claims":                {classes: []scheduler.Policy{scheduler.MostFree, scheduler.FewestVolumes}, want: map[string]int64{"n0": 50, "n1": 75, "n2": 25}},
		"a placement that is none":      {classes: []scheduler.Policy{"widest"}, want: map[string]int64{"n0": 0, "n1": 0, "n2": 0}},
	} {
		t.Run(name, func(t *testing.T) {
			c := &caches{SharedInformerFactory: informers.NewSharedInformerFactory(nil, 0)}
			var classes []*storagev1.StorageClass
			var claims []string
			for _, policy := range test.classes {
				class := classOf(policy)
				classes, claims = append(classes, class), append(claims, "data-"+class.Name)
				putWanted(t, c, "data-"+class.Name, class.Name, 1)
			}
			nodes := cluster(t, c, []int64{4, 8, 6}, classes...)
			plugin := newPlugin(t, c)
			for i, node := range []string{"n1", "n2", "n2"} {
				c.put(t, held(fmt.Sprint("held-", i), node))
			}
			if test.inFlight > 0 {
				plugin.binder.inFlight.add([]*volumebinding.DynamicProvision{asks("in-flight", test.inFlight, shows("n1-"+classes[0].Name, 8))})
			}
			pod, state := naming("p", claims...), framework.NewCycleState()
			if _, s := plugin.PreFilter(quiet(t), state, pod, nodes); !s.IsSuccess() {
				t.Fatal(s)
			}
			if s := plugin.PreScore(quiet(t), state, pod, nodes); !s.IsSuccess() {
				t.Fatal(s)
			}
			got := map[string]int64{}
			for _, node := range nodes {
				score, s := plugin.Score(quiet(t), state, pod, node)
				if !s.IsSuccess() {
					t.Fatal(s)
				}
				got[node.Node().Name] = score
			}
			if !maps.Equal(got, test.want) {
				t.Errorf("scores: got %v, want %v", got, test.want)
			}
		})
	}
}

func TestPodsWithoutNewVolumesOfCarveAreScoredByVolumeBinding(t *testing.T) {
	c := &caches{SharedInformerFactory: informers.NewSharedInformerFactory(nil, 0)}
	class := classOf(scheduler.MostFree)
	nodes := cluster(t, c, []int64{4, 8}, class)
	c.put(t, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "other"}, Provisioner: other, VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer)})
	putWanted(t, c, "ours", class.Name, 1)
	putWanted(t, c, "others", "other", 1)
	bound := putWanted(t, c, "bound", class.Name, 1)
	boundTo("v")(bound)
	c.put(t, held("v", "n0"))
	plugin := newPlugin(t, c)
	for claim, want := range map[string]bool{"others": false, "bound": false, "ours": true} {
		state, pod := framework.NewCycleState(), naming("p", claim)
		if _, s := plugin.PreFilter(quiet(t), state, pod, nodes); !s.IsSuccess() {
			t.Fatal(s)
		}
		plugin.PreScore(quiet(t), state, pod, nodes)
		if _, err := state.Read(scoresKey); (err == nil) != want {
			t.Errorf("claim %s: scored by placement %t, want %t", claim, err == nil, want)
		}
	}
}

// A whole scheduler chooses among nodes that only differ in their volumes.
func TestTheSchedulerFollowsThePlacement(t *testing.T) {
	for policy, want := range map[scheduler.Policy]string{scheduler.MostFree: "n1", scheduler.LeastFree: "n2", scheduler.FewestVolumes: "n0"} {
		t.Run(string(policy), func(t *testing.T) {
			s, snapshot := newScheduler(t)
			class := classOf(policy)
			for _, node := range cluster(t, s.caches, []int64{4, 8, 2}, class) {
				node.Node().Status.Allocatable = roomy()
				s.Cache.AddNode(klog.Logger{}, node.Node())
			}
			for i, node := range []string{"n1", "n1", "n2"} {
				s.put(t, held(fmt.Sprint("held-", i), node))
			}
			putWanted(t, s.caches, "data", class.Name, 1)
			must.Succeed(t, s.Cache.UpdateSnapshot(klog.Background(), snapshot))
			s.pod = naming("pod", "data")
			if got := s.schedule(t, Name); got != want {
				t.Errorf("the scheduler chooses %s, want %s", got, want)
			}
		})
	}
}

func TestAPodsClaimsMustFitTogether(t *testing.T) {
	for name, test := range map[string]struct {
		gib      []int64 // of the claims
		inFlight int64
		want     bool
	}{
		"one fits":                           {gib: []int64{3}, want: true},
		"two fit":                            {gib: []int64{1, 2}, want: true},
		"each of two fits alone":             {gib: []int64{2, 2}},
		"each of three fits alone":           {gib: []int64{1, 1, 2}},
		"two fit, but not beside one placed": {gib: []int64{1, 1}, inFlight: 2},
	} {
		t.Run(name, func(t *testing.T) {
			c := &caches{SharedInformerFactory: informers.NewSharedInformerFactory(nil, 0)}
			class := classOf(scheduler.MostFree)
			nodes := cluster(t, c, []int64{3}, class)
			var claims []string
			for i, gib := range test.gib {
				claims = append(claims, putWanted(t, c, fmt.Sprint("data-", i), class.Name, gib).Name)
			}
			plugin, pod, state := newPlugin(t, c), naming("p", claims...), framework.NewCycleState()
			if test.inFlight > 0 {
				plugin.binder.inFlight.add([]*volumebinding.DynamicProvision{asks("in-flight", test.inFlight, shows("n0-"+class.Name, 3))})
			}
			if _, s := plugin.PreFilter(quiet(t), state, pod, nodes); !s.IsSuccess() {
				t.Fatal(s)
			}
			got := plugin.Filter(quiet(t), state, pod, nodes[0])
			if got.IsSuccess() != test.want || !test.want && got.Message() != string(volumebinding.ErrReasonNotEnoughSpace) {
				t.Errorf("Filter returns %v, want that they fit: %t", got, test.want)
			}
		})
	}
}

func TestAPodIsKeptWithItsMovableVolumes(t *testing.T) {
	for name, test := range map[string]struct {
		volumes map[string]func(*v1.PersistentVolume) // by claim
		want    string                                // all nodes if empty, none if "none"
	}{
		"a movable volume": {volumes: map[string]func(*v1.PersistentVolume){"a": movableFrom("n1")}, want: "n1"},
		"two on a node":    {volumes: map[string]func(*v1.PersistentVolume){"a": movableFrom("n1"), "b": movableFrom("n1")}, want: "n1"},
		"two on two nodes": {volumes: map[string]func(*v1.PersistentVolume){"a": movableFrom("n0"), "b": movableFrom("n1")}, want: "none"},
		"one that has a nodeAffinity now": {volumes: map[string]func(*v1.PersistentVolume){"a": func(pv *v1.PersistentVolume) {
			affinity := pv.Spec.NodeAffinity
			movableFrom("n1")(pv)
			pv.Spec.NodeAffinity = affinity
		}}},
		"another driver's": {volumes: map[string]func(*v1.PersistentVolume){"a": func(pv *v1.PersistentVolume) {
			movableFrom("n1")(pv)
			pv.Spec.CSI.Driver = other
		}}},
	} {
		t.Run(name, func(t *testing.T) {
			c := &caches{SharedInformerFactory: informers.NewSharedInformerFactory(nil, 0)}
			nodes := cluster(t, c, []int64{3, 3}, classOf(scheduler.MostFree))
			var claims []string
			for claim, change := range test.volumes {
				pv := held("v-"+claim, "n0")
				change(pv)
				c.put(t, pv)
				object := putWanted(t, c, claim, "class-most-free", 1)
				boundTo(pv.Name)(object)
				claims = append(claims, claim)
			}
			result, s := newPlugin(t, c).PreFilter(quiet(t), framework.NewCycleState(), naming("p", claims...), nodes)
			got := "none"
			switch {
			case s.IsSuccess() && result.AllNodes():
				got = ""
			case s.IsSuccess():
				got = fmt.Sprint(result.NodeNames.UnsortedList())
			}
			if want := test.want; got != want && got != "["+want+"]" {
				t.Errorf("PreFilter leaves %q, %v; want %q", got, s, want)
			}
		})
	}
}
