package plugin

import (
	"context"
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
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/volumebinding"
	"k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/profile"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/objects"
)

var profiles = map[string]string{"VolumeBinding": "default-scheduler", "CarveVolumes": Name}

// BenchmarkSchedulePod measures a scheduler with all plugins that chooses a node for a Pod with one
// claim. In a full fleet, one node in twenty has free space.
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
					s.publish(b, nodes, full)
					for name, profile := range profiles {
						b.Run(name, func(b *testing.B) {
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

func newScheduler(b testing.TB) (*benchmarked, *cache.Snapshot) {
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
	ctx := klog.NewContext(b.Context(), klog.Logger{})
	client := clientfake.NewClientset()
	s.Scheduler, err = scheduler.New(ctx, client, s.caches, nil,
		profile.NewRecorderFactory(events.NewBroadcaster(&events.EventSinkImpl{Interface: client.EventsV1()})),
		scheduler.WithProfiles(upstream, ours),
		scheduler.WithFrameworkOutOfTreeRegistry(runtime.Registry{Name: New}))
	if err != nil {
		b.Fatal(err)
	}
	snapshot, ok := s.Profiles[Name].SnapshotSharedLister().(*cache.Snapshot)
	if !ok {
		b.Fatal("the scheduler has another snapshot")
	}
	return s, snapshot
}

func (s *benchmarked) fill(b *testing.B, nodes, volumes int, full bool) {
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "local"}, Provisioner: names.Driver, VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer)}
	s.put(b, class)
	resources := roomy()
	for i := range nodes {
		name := fmt.Sprint("n", i)
		labels := map[string]string{v1.LabelHostname: name, names.TopologyNode: name}
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

// roomy returns resources of a node that the Pods of the benchmark never fill.
func roomy() v1.ResourceList {
	return v1.ResourceList{v1.ResourceCPU: *resource.NewQuantity(64, resource.DecimalSI), v1.ResourceMemory: *size(256), v1.ResourcePods: *resource.NewQuantity(110, resource.DecimalSI)}
}

func free(i int, full bool) *resource.Quantity {
	if full && i%20 != 0 {
		return size(0)
	}
	return size(100)
}

func (s *benchmarked) publish(b *testing.B, nodes int, full bool) {
	s.put(b, driver(true))
	for i := range nodes {
		name := fmt.Sprint("n", i)
		capacity := &storagev1.CSIStorageCapacity{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}, StorageClassName: "local", Capacity: free(i, full), MaximumVolumeSize: free(i, full),
			NodeTopology: &metav1.LabelSelector{MatchLabels: map[string]string{names.TopologyNode: name}},
		}
		s.put(b, capacity)
	}
}

func (s *benchmarked) schedule(b testing.TB, profile string) string {
	info, err := framework.NewPodInfo(s.pod)
	if err != nil {
		b.Fatal(err)
	}
	ctx := klog.NewContext(b.Context(), klog.Logger{})
	var result scheduler.ScheduleResult
	switch schedule := any(s.SchedulePod).(type) {
	case func(context.Context, framework.Framework, fwk.CycleState, *framework.QueuedPodInfo) (scheduler.ScheduleResult, error):
		result, err = schedule(ctx, s.Profiles[profile], framework.NewCycleState(), &framework.QueuedPodInfo{PodInfo: info})
	case func(context.Context, framework.Framework, fwk.CycleState, *v1.Pod) (scheduler.ScheduleResult, error): // Kubernetes 1.35
		result, err = schedule(ctx, s.Profiles[profile], framework.NewCycleState(), s.pod)
	default:
		b.Fatalf("SchedulePod is a %T", schedule)
	}
	if err != nil {
		b.Fatal(err)
	}
	return result.SuggestedHost
}

// used returns the processor time of the process, which hardly depends on the load of the machine.
func used(b *testing.B) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
