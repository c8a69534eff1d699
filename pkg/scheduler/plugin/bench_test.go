package plugin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	clientfake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/volumebinding"
	"k8s.io/kubernetes/pkg/scheduler/framework/runtime"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/capacity"
	"github.com/carve-csi/carve/pkg/controller/objects"
	carve "github.com/carve-csi/carve/pkg/scheduler"
	"github.com/carve-csi/carve/pkg/scheduler/extender"
)

// way is how a scheduler learns whether nodes have the space.
type way struct {
	name, profile string
	// extender is in the place of published capacity.
	extender bool
	// objects is how many say what is free, if not one for each node: of groups of nodes, or, where most are full, of single
	// ones with space, whose selectors cost least.
	objects int
}

var ways = []way{
	{name: "VolumeBinding", profile: "default-scheduler"},
	{name: "plugin", profile: Name},
	{name: "extender", profile: "default-scheduler", extender: true},
	{name: "extenderOfAllNodes", profile: allNodes, extender: true},
	{name: "25objects", profile: "default-scheduler", objects: 25},
	{name: "100objects", profile: "default-scheduler", objects: 100},
}

// allNodes is the profile in which nodes are not looked at in part: an extender that refuses all is not asked about others.
const allNodes = "all-nodes"

// BenchmarkSchedulePod has a scheduler with all its plugins choose a node for a Pod with one claim, in several ways. In a
// full fleet, one node of twenty has free space.
func BenchmarkSchedulePod(b *testing.B) {
	for _, nodes := range []int{1000, 5000, 10000} {
		for _, volumes := range []int{0, 20} {
			for _, full := range []bool{false, true} {
				fleet := fmt.Sprintf("nodes=%d/volumes=%d/full=%t", nodes, volumes, full)
				b.Run(fleet, func(b *testing.B) {
					s, snapshot := newScheduler(b)
					s.fill(b, nodes, volumes, full)
					if err := s.Cache.UpdateSnapshot(klog.Background(), snapshot); err != nil {
						b.Fatal(err)
					}
					extenders := []fwk.Extender{newExtender(b, nodes, full)}
					for _, way := range ways {
						b.Run(way.name, func(b *testing.B) {
							s.Extenders = nil
							if way.extender {
								s.Extenders = extenders
							}
							s.publish(b, way, nodes, full)
							began := used(b)
							for b.Loop() {
								s.schedule(b, way.profile)
							}
							b.ReportMetric((used(b)-began).Seconds()*1000/float64(b.N), "cpu-ms/op")
						})
					}
				})
			}
		}
	}
}

type benchmarked struct {
	*scheduler.Scheduler
	*caches
	pod *v1.Pod
}

func newScheduler(b *testing.B) (*benchmarked, *cache.Snapshot) {
	defaults, err := latest.Default()
	if err != nil {
		b.Fatal(err)
	}
	upstream, ours := defaults.Profiles[0], *defaults.Profiles[0].DeepCopy()
	ours.SchedulerName = Name
	enabled := ours.Plugins.MultiPoint.Enabled
	for i := range enabled {
		if enabled[i].Name == volumebinding.Name {
			enabled[i].Name = Name
		}
	}
	all := *upstream.DeepCopy()
	all.SchedulerName, all.PercentageOfNodesToScore = allNodes, new(int32(100))
	s := &benchmarked{caches: &caches{SharedInformerFactory: informers.NewSharedInformerFactory(nil, 0)}}
	snapshot := cache.NewEmptySnapshot()
	ctx := klog.NewContext(b.Context(), klog.Logger{})
	s.Scheduler, err = scheduler.New(ctx, clientfake.NewClientset(), s.caches, nil,
		func(string) events.EventRecorderLogger { return events.NewFakeRecorder(0) },
		scheduler.WithProfiles(upstream, ours, all), scheduler.WithNodeInfoSnapshot(snapshot),
		scheduler.WithFrameworkOutOfTreeRegistry(runtime.Registry{Name: New}))
	if err != nil {
		b.Fatal(err)
	}
	return s, snapshot
}

// fill gives the scheduler nodes with volumes, and a Pod with a claim.
func (s *benchmarked) fill(b *testing.B, nodes, volumes int, full bool) {
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "local"}, Provisioner: names.Driver, VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer)}
	s.put(b, class)
	resources := v1.ResourceList{v1.ResourceCPU: *resource.NewQuantity(64, resource.DecimalSI), v1.ResourceMemory: *size(256), v1.ResourcePods: *resource.NewQuantity(110, resource.DecimalSI)}
	for i := range nodes {
		name := fmt.Sprint("n", i)
		labels := map[string]string{v1.LabelHostname: name, names.TopologyNode: name, groupLabel(25): fmt.Sprint(i % 25), groupLabel(100): fmt.Sprint(i % 100)}
		node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Status: v1.NodeStatus{Capacity: resources, Allocatable: resources}}
		s.put(b, node)
		s.Cache.AddNode(klog.Logger{}, node)
		for j := range volumes {
			claim := &v1.ObjectReference{Namespace: namespace, Name: fmt.Sprint(name, "-", j), UID: types.UID(name)}
			s.put(b, &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: claim.Name}, Status: v1.PersistentVolumeStatus{Phase: v1.VolumeBound}, Spec: v1.PersistentVolumeSpec{
				StorageClassName: class.Name, ClaimRef: claim, NodeAffinity: objects.NodeAffinity(name), Capacity: v1.ResourceList{v1.ResourceStorage: *size(1)},
			}})
		}
	}
	requests := v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: *size(1)}}
	s.put(b, &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data", Namespace: namespace}, Spec: v1.PersistentVolumeClaimSpec{StorageClassName: &class.Name, Resources: requests}})
	data := v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}
	s.pod = &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pod", Namespace: namespace}, Spec: v1.PodSpec{Volumes: []v1.Volume{{Name: "data", VolumeSource: data}}}}
}

// groupLabel is the label of nodes of which there are so many groups.
func groupLabel(groups int) string { return fmt.Sprint(names.Prefix, "group-of-", groups) }

// free is what a node has.
func free(i int, full bool) *resource.Quantity {
	if full && i%20 != 0 {
		return size(0)
	}
	return size(100)
}

// publish has the scheduler see capacity in one way.
func (s *benchmarked) publish(b *testing.B, way way, nodes int, full bool) {
	s.put(b, &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: names.Driver}, Spec: storagev1.CSIDriverSpec{StorageCapacity: new(!way.extender)}})
	var objects []any
	add := func(label, value string, free *resource.Quantity) {
		objects = append(objects, &storagev1.CSIStorageCapacity{
			ObjectMeta: metav1.ObjectMeta{Name: value, Namespace: namespace}, StorageClassName: "local", Capacity: free, MaximumVolumeSize: free,
			NodeTopology: &metav1.LabelSelector{MatchLabels: map[string]string{label: value}},
		})
	}
	for i := range nodes {
		switch name := fmt.Sprint("n", i); {
		case way.objects == 0:
			add(names.TopologyNode, name, free(i, full))
		case full && i%20 == 0 && i/20 < way.objects:
			add(names.TopologyNode, name, free(i, full))
		case !full && i < way.objects:
			add(groupLabel(way.objects), fmt.Sprint(i), free(i, full))
		}
	}
	if err := s.Storage().V1().CSIStorageCapacities().Informer().GetIndexer().Replace(objects, ""); err != nil {
		b.Fatal(err)
	}
}

// newExtender serves Carve's extender, which the benchmark's time includes, and returns the scheduler's side of it.
func newExtender(b *testing.B, nodes int, full bool) fwk.Extender {
	ledger, published := carve.NewLedger(time.Now), map[string]int64{}
	for i := range nodes {
		name, free := fmt.Sprint("n", i), free(i, full).Value()
		published[capacity.Key{Node: name, Class: "local"}.ObjectName()] = free
		ledger.Report(name, carve.NodeReport{Classes: []carve.ClassReport{{Name: "local", Default: true, Group: "group", Total: free, Available: free, MaximumVolume: free, AllocationUnit: 4 << 20}}})
	}
	server := httptest.NewUnstartedServer(extender.New(extender.Options{
		Judge: ledger, Log: slog.New(slog.DiscardHandler), Seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "seconds"}, []string{"verb", "code"}),
		Demands: func(context.Context, *v1.Pod) ([]carve.Demand, error) {
			return []carve.Demand{{Claim: "claim", Volume: "volume", Bytes: 1 << 30, StorageClass: "local", Size: 1 << 30}}, nil
		},
		Published: func(node string, d carve.Demand) error {
			if published[capacity.Key{Node: node, Class: d.StorageClass}.ObjectName()] < d.Size {
				return errors.New("too little is published")
			}
			return nil
		},
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	b.Cleanup(server.Close)
	asked, err := scheduler.NewHTTPExtender(&config.Extender{URLPrefix: server.URL, FilterVerb: "filter", PrioritizeVerb: "prioritize", Weight: 1, NodeCacheCapable: true,
		EnableHTTPS: true, TLSConfig: &config.ExtenderTLSConfig{Insecure: true}, HTTPTimeout: metav1.Duration{Duration: time.Minute}})
	if err != nil {
		b.Fatal(err)
	}
	return asked
}

func (s *benchmarked) schedule(b *testing.B, profile string) {
	info, err := framework.NewPodInfo(s.pod)
	if err != nil {
		b.Fatal(err)
	}
	ctx := klog.NewContext(b.Context(), klog.Logger{})
	if _, err := s.SchedulePod(ctx, s.Profiles[profile], framework.NewCycleState(), &framework.QueuedPodInfo{PodInfo: info}); err != nil {
		b.Fatal(err)
	}
}

// used is the time for which processors have run the process. A busy machine makes a benchmark slower, but hardly this.
func used(b *testing.B) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
