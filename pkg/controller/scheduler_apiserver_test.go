//go:build apiserver

package controller

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/component-helpers/storage/volume"
	"sigs.k8s.io/yaml"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/objects"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/scheduler"
	"github.com/carve-csi/carve/pkg/waittest"
)

const (
	schedulerComponent = "../../deploy/components/scheduler/"
	carveScheduler     = "carve"
	schedulerAccount   = "carve-scheduler"
)

// runScheduler uses the component's configuration and rights.
func runScheduler(t *testing.T) {
	t.Helper()
	program := os.Getenv("CARVE_SCHEDULER")
	if program == "" {
		t.Fatal("CARVE_SCHEDULER does not name the scheduler; run make test-apiserver")
	}
	var shipped v1.ConfigMap
	must.Succeed(t, yaml.UnmarshalStrict(must.Get(os.ReadFile(schedulerComponent+"config.yaml"))(t), &shipped))
	// The Go type would write fields that an older scheduler does not know.
	var config map[string]any
	must.Succeed(t, yaml.UnmarshalStrict([]byte(shipped.Data["kube-scheduler.yaml"]), &config))
	dir := t.TempDir()
	access := must.Get(clientcmd.LoadFromFile(os.Getenv("KUBECONFIG")))(t)
	for _, user := range access.AuthInfos {
		user.Impersonate, user.ImpersonateGroups = "system:serviceaccount:"+ours+":"+schedulerAccount, []string{"system:serviceaccounts", "system:authenticated"}
	}
	kubeconfig := filepath.Join(dir, "kubeconfig")
	must.Succeed(t, clientcmd.WriteToFile(*pathsResolved(t, access), kubeconfig))
	config["leaderElection"] = map[string]any{"leaderElect": false}
	config["clientConnection"] = map[string]any{"kubeconfig": kubeconfig}
	path := filepath.Join(dir, "scheduler.yaml")
	must.Succeed(t, os.WriteFile(path, must.Get(yaml.Marshal(config))(t), 0o600))
	var log bytes.Buffer
	command := exec.Command(program, "--config="+path, "--bind-address=127.0.0.1", "--secure-port=0")
	command.Stdout, command.Stderr = &log, &log
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // it must not outlive a killed test
	must.Succeed(t, command.Start())
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
		if t.Failed() {
			t.Logf("the scheduler's log:\n%s", log.String())
		}
	})
}

func pathsResolved(t *testing.T, config *clientcmdapi.Config) *clientcmdapi.Config {
	t.Helper()
	must.Succeed(t, clientcmd.ResolveLocalPaths(config))
	return config
}

// An empty class means no ephemeral volume.
func (w *world) runPod(t *testing.T, scheduler, name, class string, claims ...string) {
	t.Helper()
	spec, _ := scheduledPod(class != "")
	spec.SchedulerName = scheduler
	if class != "" {
		spec.Volumes[0].Ephemeral.VolumeClaimTemplate.Spec.StorageClassName = &class
	}
	for _, claim := range claims {
		spec.Volumes = append(spec.Volumes, byName(claim))
	}
	w.runPodOf(t, name, spec)
}

func (w *world) runPodOf(t *testing.T, name string, spec v1.PodSpec) {
	t.Helper()
	pods := w.client.CoreV1().Pods(w.namespace)
	waittest.Succeeds(t, "the Pod is taken", func() error { // once the namespace has its service account
		_, err := pods.Create(t.Context(), &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
		return err
	})
	t.Cleanup(func() { _ = pods.Delete(context.Background(), name, metav1.DeleteOptions{}) })
}

func (w *world) nodeOf(t *testing.T, pod string) string {
	t.Helper()
	return must.Get(w.client.CoreV1().Pods(w.namespace).Get(t.Context(), pod, metav1.GetOptions{}))(t).Spec.NodeName
}

func (w *world) isPlaced(t *testing.T, pod string, claims ...string) (node string) {
	t.Helper()
	waittest.Until(t, "Pod "+pod+" has a node", func() bool { node = w.nodeOf(t, pod); return node != "" })
	for _, name := range claims {
		claim := must.Get(w.client.CoreV1().PersistentVolumeClaims(w.namespace).Get(t.Context(), name, metav1.GetOptions{}))(t)
		if claim.Status.Phase != v1.ClaimBound {
			t.Errorf("Pod %s is on %s while claim %s is %s", pod, node, name, claim.Status.Phase)
			continue
		}
		pv := must.Get(w.client.CoreV1().PersistentVolumes().Get(t.Context(), claim.Spec.VolumeName, metav1.GetOptions{}))(t)
		if err := volume.CheckNodeAffinity(pv, map[string]string{names.TopologyNode: node}); err != nil {
			t.Errorf("Pod %s is on %s, and the volume of claim %s elsewhere: %v", pod, node, name, err)
		}
	}
	return node
}

func (w *world) named(t *testing.T, name, class string, change func(*v1.PersistentVolumeClaim)) {
	t.Helper()
	w.claim(t, class, "", func(c *v1.PersistentVolumeClaim) {
		c.Name = name
		if change != nil {
			change(c)
		}
	})
	t.Cleanup(func() {
		_ = w.client.CoreV1().PersistentVolumeClaims(w.namespace).Delete(context.Background(), name, metav1.DeleteOptions{})
	})
}

// static makes an administrator's PersistentVolume on n2 until the test ends.
func (w *world) static(t *testing.T, name, class string, change func(*v1.PersistentVolume)) {
	t.Helper()
	pv := volumeOf(name, otherDriver, "")
	pv.Spec.StorageClassName, pv.Spec.NodeAffinity = class, objects.NodeAffinity("n2")
	if change != nil {
		change(pv)
	}
	must.Get(w.client.CoreV1().PersistentVolumes().Create(t.Context(), pv, metav1.CreateOptions{}))(t)
	t.Cleanup(func() {
		_ = w.client.CoreV1().PersistentVolumes().Delete(context.Background(), name, metav1.DeleteOptions{})
	})
	waittest.Until(t, "the PV controller offers it", func() bool {
		now := must.Get(w.client.CoreV1().PersistentVolumes().Get(t.Context(), name, metav1.GetOptions{}))(t)
		return now.Status.Phase == v1.VolumeAvailable || now.Status.Phase == v1.VolumeBound
	})
}

func schedulerWorld(t *testing.T, change func(*storagev1.StorageClass), changes ...harnessOption) (w *world, class string) {
	t.Helper()
	client := connectToAPIServer(t)
	w = newWorld(t, client)
	w.namespace = ours
	install(t, client)
	installScheduler(t, client)
	w.actsIn(t, func() func() {
		_, _, stop := startOn(t, w, Options{Client: asController(t), Namespace: ours}, changes...)
		return stop
	})
	class = w.class(t, change)
	runScheduler(t)
	return w, class
}

func installScheduler(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	apply(t, client, schedulerComponent+"rbac.yaml")
	apply(t, client, schedulerComponent+"policy.yaml")
}

func (w *world) waits(t *testing.T, pod, message string) {
	t.Helper()
	waittest.Until(t, "Pod "+pod+" waits: "+message, func() bool {
		now := must.Get(w.client.CoreV1().Pods(ours).Get(t.Context(), pod, metav1.GetOptions{}))(t)
		return slices.ContainsFunc(now.Status.Conditions, func(c v1.PodCondition) bool {
			return c.Type == v1.PodScheduled && c.Status == v1.ConditionFalse && strings.Contains(c.Message, message)
		})
	})
}

// refuseVolumes acts as if all nodes were away, until noHooks.
func (w *world) refuseVolumes() *atomic.Int32 {
	refused := new(atomic.Int32)
	for _, node := range w.nodes {
		node.SetHooks(lvmdfake.Hooks{BeforeCreate: func(context.Context, *lvmdv1.CreateVolumeRequest) error {
			refused.Add(1)
			return status.Error(codes.Unavailable, "away")
		}})
	}
	return refused
}

func TestCarveSchedulerStartsPodsWithTheirVolumes(t *testing.T) {
	w, class := schedulerWorld(t, nil)
	t.Run("an ephemeral volume", func(t *testing.T) {
		w.runPod(t, carveScheduler, "ephemeral", class) // once the scheduler has started
		w.isPlaced(t, "ephemeral", "ephemeral-data")
		for scheduler, ephemeral := range map[string]string{carveScheduler: class, v1.DefaultSchedulerName: class, "empty": ""} {
			var took []time.Duration
			for i := range 5 {
				name := fmt.Sprintf("%.5s-%d", scheduler, i)
				began := time.Now()
				if ephemeral == "" {
					w.runPod(t, carveScheduler, name, "")
					w.isPlaced(t, name)
				} else {
					w.runPod(t, scheduler, name, class)
					w.isPlaced(t, name, name+"-data")
				}
				took = append(took, time.Since(began).Round(time.Millisecond))
			}
			slices.Sort(took)
			t.Logf("created → placed, %s: %v", scheduler, took)
		}
	})
	t.Run("several claims", func(t *testing.T) {
		w.named(t, "first", class, nil)
		w.named(t, "second", class, nil)
		w.runPod(t, carveScheduler, "several", class, "first", "second")
		w.isPlaced(t, "several", "several-data", "first", "second")
	})
	t.Run("a claim that two Pods share", func(t *testing.T) {
		w.named(t, "shared", class, nil)
		w.runPod(t, carveScheduler, "one", "", "shared")
		w.runPod(t, carveScheduler, "two", "", "shared")
		if one, two := w.isPlaced(t, "one", "shared"), w.isPlaced(t, "two", "shared"); one != two {
			t.Errorf("on %s and %s", one, two)
		}
	})
	t.Run("no claim at all", func(t *testing.T) {
		w.runPod(t, carveScheduler, "plain", "")
		w.isPlaced(t, "plain")
	})
	t.Run("a claim that binds immediately", func(t *testing.T) {
		soon := w.class(t, func(c *storagev1.StorageClass) { c.Name = "soon"; immediate(c) })
		w.named(t, "immediate", soon, nil)
		w.runPod(t, carveScheduler, "immediate", class, "immediate")
		w.isPlaced(t, "immediate", "immediate", "immediate-data")
	})
	t.Run("static volumes", func(t *testing.T) {
		byHand := w.class(t, func(c *storagev1.StorageClass) { c.Name, c.Provisioner = "by-hand", "kubernetes.io/no-provisioner" })
		w.static(t, "static", byHand, nil)
		w.named(t, "static", byHand, nil)
		w.static(t, "reserved", byHand, func(pv *v1.PersistentVolume) {
			pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: ours, Name: "reserved"}
		})
		w.named(t, "reserved", byHand, nil)
		w.static(t, "named", byHand, nil)
		w.named(t, "named", byHand, func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeName = "named" })
		w.runPod(t, carveScheduler, "static", class, "static", "reserved", "named")
		if node := w.isPlaced(t, "static", "static", "reserved", "named", "static-data"); node != "n2" {
			t.Errorf("on %s", node)
		}
	})
	t.Run("another driver's claim", func(t *testing.T) {
		others := w.class(t, func(c *storagev1.StorageClass) { c.Name, c.Provisioner = "others", otherDriver })
		w.named(t, "others", others, nil)
		w.runPod(t, carveScheduler, "others", class, "others")
		var claim *v1.PersistentVolumeClaim
		waittest.Until(t, "the other driver is asked", func() bool {
			claim = must.Get(w.client.CoreV1().PersistentVolumeClaims(ours).Get(t.Context(), "others", metav1.GetOptions{}))(t)
			return claim.Annotations[volume.AnnSelectedNode] != "" && claim.Annotations[volume.AnnStorageProvisioner] == otherDriver
		})
		w.runPod(t, carveScheduler, "after-others", class)
		w.isPlaced(t, "after-others", "after-others-data")
		if node := w.nodeOf(t, "others"); node != "" {
			t.Fatalf("the Pod is on %s without the other driver's volume", node)
		}
		w.static(t, "others", others, func(pv *v1.PersistentVolume) {
			pv.Annotations = map[string]string{volume.AnnDynamicallyProvisioned: otherDriver}
			pv.Spec.NodeAffinity = objects.NodeAffinity(claim.Annotations[volume.AnnSelectedNode])
			pv.Spec.ClaimRef = &v1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: ours, Name: "others", UID: claim.UID}
		})
		w.isPlaced(t, "others", "others", "others-data")
	})
	t.Run("a node that is full after all", func(t *testing.T) {
		var mu sync.Mutex
		full := ""
		for name, node := range w.nodes {
			node.SetHooks(lvmdfake.Hooks{BeforeCreate: func(context.Context, *lvmdv1.CreateVolumeRequest) error {
				mu.Lock()
				defer mu.Unlock()
				if full == "" {
					full = name
				}
				if full == name {
					// Each time: volumes of earlier Pods may be deleted concurrently.
					used := int64(lvmdfake.AllocationUnit) // too little for the Pod
					for _, v := range node.Volumes() {
						used += v.GetSizeBytes()
					}
					node.Resize("local", used)
					return lvmdfake.Error(codes.ResourceExhausted, names.ReasonNoSpace, "no space")
				}
				return nil
			}})
		}
		defer w.noHooks()
		defer func() { w.nodes[full].Resize("local", gib) }()
		w.runPod(t, carveScheduler, "full", class)
		if node := w.isPlaced(t, "full", "full-data"); node == full {
			t.Errorf("on %s", node)
		}
	})
	t.Run("another leader in the middle", func(t *testing.T) {
		entered, release := make(chan struct{}, 16), make(chan struct{})
		for _, node := range w.nodes {
			node.SetHooks(lvmdfake.Hooks{BeforeCreate: func(ctx context.Context, _ *lvmdv1.CreateVolumeRequest) error {
				entered <- struct{}{}
				select {
				case <-release:
				case <-ctx.Done():
				}
				return ctx.Err()
			}})
		}
		defer w.noHooks()
		w.runPod(t, carveScheduler, "middle", class)
		<-entered
		w.restart()
		if node := w.nodeOf(t, "middle"); node != "" {
			t.Errorf("on %s without its volume", node)
		}
		close(release)
		w.isPlaced(t, "middle", "middle-data")
	})
	t.Run("a Pod that must have another one's place", func(t *testing.T) {
		important := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "important"}, Value: 1000}
		must.Get(w.client.SchedulingV1().PriorityClasses().Create(t.Context(), important, metav1.CreateOptions{}))(t)
		t.Cleanup(func() {
			_ = w.client.SchedulingV1().PriorityClasses().Delete(context.Background(), important.Name, metav1.DeleteOptions{})
		})
		spec, _ := scheduledPod(true)
		spec.SchedulerName, spec.NodeSelector = carveScheduler, map[string]string{names.TopologyNode: "n2"}
		spec.Volumes[0].Ephemeral.VolumeClaimTemplate.Spec.StorageClassName = &class
		spec.Containers[0].Ports = []v1.ContainerPort{{ContainerPort: 80, HostPort: 80}} // a node has it once
		w.runPodOf(t, "victim", spec)
		w.isPlaced(t, "victim", "victim-data")
		spec.PriorityClassName = important.Name
		w.runPodOf(t, "important", spec)
		w.isPlaced(t, "important", "important-data")
		if _, err := w.client.CoreV1().Pods(ours).Get(t.Context(), "victim", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("the Pod whose place it has: error %v, want that it is gone", err)
		}
	})
	t.Run("a node that cannot be asked", func(t *testing.T) {
		refused := w.refuseVolumes()
		defer w.noHooks()
		w.runPod(t, carveScheduler, "waits", class)
		waittest.Until(t, "a node is asked twice", func() bool { return refused.Load() > 1 })
		w.runPod(t, carveScheduler, "goes-on", "")
		w.isPlaced(t, "goes-on")
		if node := w.nodeOf(t, "waits"); node != "" {
			t.Errorf("the Pod is on %s without its volume", node)
		}
		w.noHooks()
		w.isPlaced(t, "waits", "waits-data")
	})
	t.Run("a Pod that names its node", func(t *testing.T) {
		spec, _ := scheduledPod(true)
		spec.NodeName, spec.SchedulerName = "n2", carveScheduler
		spec.Volumes[0].Ephemeral.VolumeClaimTemplate.Spec.StorageClassName = &class
		w.runPodOf(t, "fixed", spec)
		waittest.Until(t, "its volume is made on its node", func() bool {
			claim, err := w.client.CoreV1().PersistentVolumeClaims(ours).Get(t.Context(), "fixed-data", metav1.GetOptions{})
			return err == nil && claim.Status.Phase == v1.ClaimBound && claim.Annotations[volume.AnnSelectedNode] == "n2"
		})
	})
}

func TestCarveSchedulerFollowsThePlacement(t *testing.T) {
	w, _ := schedulerWorld(t, nil)
	w.nodes["n2"].Resize("local", 2*gib)
	const pods, crowd = 3, 20 // more than what the Pods bring to n1
	for i := range crowd {
		name := fmt.Sprintf("crowd-%d", i)
		must.Get(w.nodes["n2"].CreateVolume(t.Context(), &lvmdv1.CreateVolumeRequest{Name: name, RequiredBytes: 4 * mib, Mode: lvmdv1.VolumeMode_VOLUME_MODE_BLOCK}))(t)
		w.static(t, name, "unrelated", func(pv *v1.PersistentVolume) { pv.Spec.CSI.Driver, pv.Spec.CSI.VolumeHandle = names.Driver, name })
	}
	for _, test := range []struct {
		placement scheduler.Policy
		want      string
	}{
		{scheduler.MostFree, "n2"},
		{scheduler.LeastFree, "n1"},
		{scheduler.FewestVolumes, "n1"},
	} {
		t.Run(string(test.placement), func(t *testing.T) {
			class := w.class(t, func(c *storagev1.StorageClass) {
				c.Name, c.Parameters = string(test.placement), map[string]string{names.ParamPlacement: string(test.placement)}
			})
			waittest.Until(t, "the capacity of both nodes is published for the class", func() bool {
				list, err := w.client.StorageV1().CSIStorageCapacities(ours).List(t.Context(), metav1.ListOptions{})
				published := 0
				for i := range list.Items {
					if list.Items[i].StorageClassName == class {
						published++
					}
				}
				return err == nil && published == len(w.nodes)
			})
			for i := range pods {
				name := fmt.Sprintf("%s-%d", test.placement, i)
				w.runPod(t, carveScheduler, name, class)
				if got := w.isPlaced(t, name, name+"-data"); got != test.want {
					t.Errorf("Pod %s is on %s, want %s", name, got, test.want)
				}
			}
		})
	}
	waittest.Until(t, "the volumes go with their Pods", func() bool {
		return len(w.nodes["n1"].Volumes()) == 0 && len(w.nodes["n2"].Volumes()) == crowd
	})
}

func TestCarveSchedulerComparesTheSumOfAPodsClaims(t *testing.T) {
	w, class := schedulerWorld(t, nil)
	for _, name := range []string{"first", "second"} {
		w.named(t, name, class, func(c *v1.PersistentVolumeClaim) {
			c.Spec.Resources.Requests[v1.ResourceStorage] = resource.MustParse("600Mi")
		})
	}
	placed := watchPlacements(t, w.client)
	w.runPod(t, carveScheduler, "pair", "", "first", "second")
	w.waits(t, "pair", "2 node(s) did not have enough free storage")
	w.nodes["n2"].Resize("local", 2*gib)
	if node := w.isPlaced(t, "pair", "first", "second"); node != "n2" {
		t.Errorf("the Pod is on %s, want n2", node)
	}
	if wrong := placed.most("n1"); wrong != 0 {
		t.Errorf("the scheduler chose n1 %d times, where not both claims fit", wrong)
	}
}

// The scheduler retries a Pod whose binding failed; the controller pins nothing.
func TestCarveSchedulerKeepsAPodWithItsMovableVolume(t *testing.T) {
	w, _ := schedulerWorld(t, movable, func(c *Controller) { c.core.pinGrace = time.Hour })
	allow := refuseBindings(t, w.client)
	startSet(t, w.client, true, func(pod *v1.PodSpec) { pod.SchedulerName = carveScheduler })
	claim, before, node := w.claimed(t)
	w.takes(t, node, "0")
	w.waits(t, "db-0", "1 Too many pods, 1 node(s) didn't satisfy plugin(s) [CarveVolumes]")
	allow()
	w.takes(t, node, "10000")
	after, pod := w.running(t, claim.Name, "")
	if pod.UID != before.UID || pod.Spec.NodeName != node || w.pv(after).Spec.NodeAffinity != nil {
		t.Errorf("Pod %s on node %s, it was %s; affinity %v", pod.UID, pod.Spec.NodeName, before.UID, w.pv(after).Spec.NodeAffinity)
	}
	w.endSet(t, true, claim, after)
}

func (w *world) noHooks() {
	for _, node := range w.nodes {
		node.SetHooks(lvmdfake.Hooks{})
	}
}
