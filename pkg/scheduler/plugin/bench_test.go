package plugin

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	clientfake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/volumebinding"
	"k8s.io/kubernetes/pkg/scheduler/framework/runtime"

	pvcluster "github.com/carve-csi/carve/pkg/controller/cluster"

	"github.com/carve-csi/carve/api/names"
)

// BenchmarkSchedulePod has a scheduler with all its plugins choose a node for a Pod with one claim, by a profile with
// VolumeBinding and by one with Carve's plugin in its place. In a full fleet, one node of twenty has free space.
func BenchmarkSchedulePod(b *testing.B) {
	for _, nodes := range []int{1000, 5000, 10000} {
		for _, volumes := range []int{0, 20} {
			for _, full := range []bool{false, true} {
				fleet := fmt.Sprintf("nodes=%d/volumes=%d/full=%t", nodes, volumes, full)
				b.Run(fleet, func(b *testing.B) {
					s, profiles, snapshot := newScheduler(b)
					s.fill(b, nodes, volumes, full)
					if err := s.Cache.UpdateSnapshot(klog.Background(), snapshot); err != nil {
						b.Fatal(err)
					}
					for _, profile := range profiles {
						b.Run(profile, func(b *testing.B) {
							began := used(b)
							for b.Loop() {
								s.schedule(b, profile)
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

func newScheduler(b *testing.B) (*benchmarked, []string, *cache.Snapshot) {
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
	s := &benchmarked{caches: &caches{SharedInformerFactory: informers.NewSharedInformerFactory(nil, 0)}}
	snapshot := cache.NewEmptySnapshot()
	ctx := klog.NewContext(b.Context(), klog.Logger{})
	s.Scheduler, err = scheduler.New(ctx, clientfake.NewClientset(), s.caches, nil,
		func(string) events.EventRecorderLogger { return events.NewFakeRecorder(0) },
		scheduler.WithProfiles(upstream, ours), scheduler.WithNodeInfoSnapshot(snapshot),
		scheduler.WithFrameworkOutOfTreeRegistry(runtime.Registry{Name: New}))
	if err != nil {
		b.Fatal(err)
	}
	return s, []string{upstream.SchedulerName, ours.SchedulerName}, snapshot
}

// fill gives the scheduler nodes with volumes, and a Pod with a claim.
func (s *benchmarked) fill(b *testing.B, nodes, volumes int, full bool) {
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "local"}, Provisioner: names.Driver, VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer)}
	s.put(b, class)
	s.put(b, &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: names.Driver}, Spec: storagev1.CSIDriverSpec{StorageCapacity: new(true)}})
	resources := v1.ResourceList{v1.ResourceCPU: *resource.NewQuantity(64, resource.DecimalSI), v1.ResourceMemory: *size(256), v1.ResourcePods: *resource.NewQuantity(110, resource.DecimalSI)}
	for i := range nodes {
		name := fmt.Sprint("n", i)
		labels := map[string]string{v1.LabelHostname: name, names.TopologyNode: name}
		node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Status: v1.NodeStatus{Capacity: resources, Allocatable: resources}}
		s.put(b, node)
		s.Cache.AddNode(klog.Logger{}, node)
		free := size(100)
		if full && i%20 != 0 {
			free = size(0)
		}
		s.put(b, &storagev1.CSIStorageCapacity{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}, StorageClassName: class.Name, Capacity: free, MaximumVolumeSize: free,
			NodeTopology: &metav1.LabelSelector{MatchLabels: map[string]string{names.TopologyNode: name}},
		})
		for j := range volumes {
			claim := &v1.ObjectReference{Namespace: namespace, Name: fmt.Sprint(name, "-", j), UID: types.UID(name)}
			s.put(b, &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: claim.Name}, Status: v1.PersistentVolumeStatus{Phase: v1.VolumeBound}, Spec: v1.PersistentVolumeSpec{
				StorageClassName: class.Name, ClaimRef: claim, NodeAffinity: pvcluster.NodeAffinity(name), Capacity: v1.ResourceList{v1.ResourceStorage: *size(1)},
			}})
		}
	}
	requests := v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: *size(1)}}
	s.put(b, &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data", Namespace: namespace}, Spec: v1.PersistentVolumeClaimSpec{StorageClassName: &class.Name, Resources: requests}})
	data := v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}
	s.pod = &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pod", Namespace: namespace}, Spec: v1.PodSpec{Volumes: []v1.Volume{{Name: "data", VolumeSource: data}}}}
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
