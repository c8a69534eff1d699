//go:build apiserver

package controller

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"sigs.k8s.io/yaml"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/objects"
	"github.com/carve-csi/carve/pkg/driver"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/uplink/uplinktest"
	"github.com/carve-csi/carve/pkg/waittest"
)

// karpenter is a world in which Karpenter's kwok provider makes the Node objects, and the test
// plays what runs on them.
type karpenter struct {
	*world
	net     *uplinktest.Network
	objects dynamic.Interface
	// disk is the size of each node's volume group in bytes.
	disk     int64
	smallest atomic.Int64
	// asked counts rounds in which all kubelets asked for the number of volumes.
	asked atomic.Int64
}

var (
	nodePools   = schema.GroupVersionResource{Group: "karpenter.sh", Version: "v1", Resource: "nodepools"}
	nodeClaims  = schema.GroupVersionResource{Group: "karpenter.sh", Version: "v1", Resource: "nodeclaims"}
	nodeClasses = schema.GroupVersionResource{Group: "karpenter.kwok.sh", Version: "v1alpha1", Resource: "kwoknodeclasses"}
)

const (
	nodeClass = `{apiVersion: karpenter.kwok.sh/v1alpha1, kind: KWOKNodeClass, metadata: {name: disks}}`
	// nodePool has a start-up taint, see docs/how-to/autoscaling.md. Karpenter publishes an
	// Event Unconsolidatable once per node in 15 minutes, so it must not find another reason
	// too early.
	nodePool = `
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: disks}
spec:
  disruption: {consolidationPolicy: WhenEmptyOrUnderutilized, consolidateAfter: 1h, budgets: [{nodes: 100%}]}
  template:
    spec:
      expireAfter: Never
      nodeClassRef: {group: karpenter.kwok.sh, kind: KWOKNodeClass, name: disks}
      requirements: []
      startupTaints:
        - {key: carve.csi.local/agent-not-ready, effect: NoExecute}
`
	karpentersNodes = "kwok.x-k8s.io/node=fake"
	ofTheSet        = "app=db"
)

func withKarpenter(t *testing.T, class func(*storagev1.StorageClass), disk int64) *karpenter {
	t.Helper()
	k := &karpenter{world: &world{client: connectToAPIServer(t), namespace: ours, nodes: map[string]*lvmdfake.Server{}}, disk: disk,
		objects: must.Get(dynamic.NewForConfig(must.Get(apiServer())(t)))(t)}
	install(t, k.client)
	apply(t, k.client, "../../deploy/components/startup-taint/rbac.yaml")
	apply(t, k.client, "../../deploy/components/startup-taint/policy.yaml")
	k.class(t, class)
	_, k.net = actOn(t, k.world, Options{Client: asController(t), Namespace: ours, RemoveStartupTaint: true})

	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	t.Cleanup(func() { cancel(); <-done })
	go func() { defer close(done); k.beKubelets(ctx, t) }()
	must.Succeed(t, k.client.CoreV1().Events("default").DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
	startKarpenter(t)
	waittest.Succeeds(t, "there are Karpenter's objects", func() error {
		if err := k.make(nodeClasses, nodeClass); err != nil {
			return err
		}
		return k.make(nodePools, nodePool)
	})
	t.Cleanup(func() { k.end(t) })
	t.Cleanup(func() { logPlacement(t, k.client, ours); k.logEvents(t) })
	return k
}

func startKarpenter(t *testing.T) {
	t.Helper()
	program := os.Getenv("KARPENTER")
	if program == "" {
		t.Fatal("KARPENTER does not name the program; run make test-karpenter")
	}
	var output bytes.Buffer
	command := exec.CommandContext(context.Background(), program)
	command.Env = append(os.Environ(), "INSTANCE_TYPES_FILE_PATH=../../e2e/karpenter/instance-types.json",
		"DISABLE_LEADER_ELECTION=true", "METRICS_PORT=0", "HEALTH_PROBE_PORT=0")
	command.Stdout, command.Stderr = &output, &output
	must.Succeed(t, command.Start())
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
		if t.Failed() {
			t.Log(output.String())
		}
	})
}

func (k *karpenter) make(kind schema.GroupVersionResource, text string) error {
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &object.Object); err != nil {
		return err
	}
	_, err := k.objects.Resource(kind).Create(context.Background(), object, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

func (k *karpenter) end(t *testing.T) {
	ctx := context.Background()
	inBackground := metav1.DeletePropagationBackground
	_ = k.client.AppsV1().ReplicaSets(ours).Delete(ctx, "db", metav1.DeleteOptions{PropagationPolicy: &inBackground})
	waittest.Until(t, "nothing is left of the Pods", func() bool {
		pods, err := k.client.CoreV1().Pods(ours).List(ctx, metav1.ListOptions{LabelSelector: ofTheSet})
		volumes, volumesErr := k.client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
		return errors.Join(err, volumesErr) == nil && len(pods.Items)+len(volumes.Items) == 0
	})
	_ = k.objects.Resource(nodePools).Delete(ctx, "disks", metav1.DeleteOptions{})
	waittest.Until(t, "Karpenter has removed its nodes", func() bool {
		nodes, err := k.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: karpentersNodes})
		_, poolErr := k.objects.Resource(nodePools).Get(ctx, "disks", metav1.GetOptions{})
		return err == nil && len(nodes.Items) == 0 && apierrors.IsNotFound(poolErr)
	})
}

func (k *karpenter) logEvents(t *testing.T) {
	events, err := k.client.CoreV1().Events("default").List(context.Background(), metav1.ListOptions{})
	if err != nil || !t.Failed() {
		return
	}
	for _, e := range events.Items {
		t.Logf("Event on %s %s: %s: %s", e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Reason, e.Message)
	}
}

// beKubelets plays kubelets, node plugins and lvmds until ctx is done.
func (k *karpenter) beKubelets(ctx context.Context, t *testing.T) {
	lvmds := map[string]localLVMD{}
	for ; ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
		// Conflicts are retried in the next round.
		nodes := k.runNodes(ctx, lvmds)
		if nodes == nil {
			k.asked.Add(1)
		}
		if err := errors.Join(nodes, k.runPods(ctx)); err != nil && ctx.Err() == nil {
			t.Logf("kubelets: %v", err)
		}
	}
}

func (k *karpenter) runNodes(ctx context.Context, lvmds map[string]localLVMD) error {
	nodes, err := k.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: karpentersNodes})
	if err != nil {
		return err
	}
	there := map[string]bool{}
	for _, node := range nodes.Items {
		there[node.Name] = true
		if lvmds[node.Name].server == nil {
			lvmds[node.Name] = localLVMD{server: lvmdfake.New(node.Name, lvmdfake.Class{Name: "local", Default: true, Bytes: k.disk,
				Groups: []*lvmdv1.ClassGroup{{VgName: "local", MostVolumes: 1000}}})}
			k.net.Attach(lvmds[node.Name].server)
		}
		if err := k.runNode(ctx, &node, lvmds[node.Name]); err != nil {
			return err
		}
	}
	for name := range lvmds {
		if !there[name] {
			k.net.Detach(name)
			delete(lvmds, name)
		}
	}
	return nil
}

// localLVMD serves the node plugin without a connection.
type localLVMD struct {
	lvmdv1.LVMDClient
	server *lvmdfake.Server
}

func (l localLVMD) ListClasses(ctx context.Context, r *lvmdv1.ListClassesRequest, _ ...grpc.CallOption) (*lvmdv1.ListClassesResponse, error) {
	return l.server.ListClasses(ctx, r)
}

func (l localLVMD) ListVolumes(ctx context.Context, r *lvmdv1.ListVolumesRequest, _ ...grpc.CallOption) (*lvmdv1.ListVolumesResponse, error) {
	return l.server.ListVolumes(ctx, r)
}

func (k *karpenter) runNode(ctx context.Context, node *v1.Node, lvmd localLVMD) error {
	most, err := k.most(ctx, node.Name, lvmd)
	if err != nil {
		return err
	}
	wants := storagev1.CSINodeDriver{Name: names.Driver, NodeID: node.Name, TopologyKeys: []string{names.TopologyNode}, Allocatable: &storagev1.VolumeNodeResources{Count: &most}}
	now, err := k.client.StorageV1().CSINodes().Get(ctx, node.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = k.client.StorageV1().CSINodes().Create(ctx, &storagev1.CSINode{Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{wants}},
			ObjectMeta: metav1.ObjectMeta{Name: node.Name, OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}}},
		}, metav1.CreateOptions{})
	case err == nil && *now.Spec.Drivers[0].Allocatable.Count != most:
		now.Spec.Drivers[0] = wants
		_, err = k.client.StorageV1().CSINodes().Update(ctx, now, metav1.UpdateOptions{})
	}
	if err != nil || node.Labels[names.TopologyNode] != "" {
		return err
	}
	ready := `{"status":{"conditions":[{"type":"Ready","status":"True","reason":"KubeletReady"}]}}`
	if _, err := k.client.CoreV1().Nodes().Patch(ctx, node.Name, types.StrategicMergePatchType, []byte(ready), metav1.PatchOptions{}, "status"); err != nil {
		return err
	}
	return patchNode(k.client, node.Name, fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, names.TopologyNode, node.Name))
}

// most is the answer to a kubelet that asks repeatedly.
func (k *karpenter) most(ctx context.Context, node string, lvmd localLVMD) (int32, error) {
	log, metrics := slog.New(slog.DiscardHandler), driver.NewMetrics()
	registration := driver.NewRegistration("/csi.sock", metrics, log)
	_, err := registration.NotifyRegistrationStatus(ctx, &registerapi.RegistrationStatus{PluginRegistered: true})
	if err != nil {
		return 0, err
	}
	plugin, err := driver.New(ctx, driver.Options{NodeName: node, SmallestVolume: k.smallest.Load(), Registration: registration,
		KubeletDir: "/var/lib/kubelet", LVMD: lvmd, Metrics: metrics, Log: log})
	if err != nil {
		return 0, err
	}
	info, err := plugin.NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
	return int32(info.GetMaxVolumesPerNode()), err
}

func (k *karpenter) runPods(ctx context.Context) error {
	pods, err := k.client.CoreV1().Pods(ours).List(ctx, metav1.ListOptions{LabelSelector: ofTheSet, FieldSelector: "status.phase=Pending"})
	if err != nil {
		return err
	}
	var errs []error
	for _, pod := range pods.Items {
		if pod.Spec.NodeName == "" {
			continue
		}
		patch := `{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}`
		_, err := k.client.CoreV1().Pods(ours).Patch(ctx, pod.Name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// startPods makes a ReplicaSet of one Pod with a generic ephemeral volume of 100 MiB. Its Pods
// tolerate no taints: Karpenter does not move Pods that tolerate its own.
func (k *karpenter) startPods(t *testing.T, changes ...func(*v1.PodSpec)) {
	t.Helper()
	pod, _ := scheduledPod(true)
	pod.Tolerations = nil
	for _, change := range changes {
		change(&pod)
	}
	labels := map[string]string{"app": "db"}
	must.Get(k.client.AppsV1().ReplicaSets(ours).Create(t.Context(), &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "db"}, Spec: appsv1.ReplicaSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod}}}, metav1.CreateOptions{}))(t)
}

func (k *karpenter) scale(t *testing.T, pods int) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, pods)
	must.Get(k.client.AppsV1().ReplicaSets(ours).Patch(t.Context(), "db", types.StrategicMergePatchType, patch, metav1.PatchOptions{}))(t)
}

func (k *karpenter) running(t *testing.T, number int) map[string][]v1.Pod {
	t.Helper()
	on, last := map[string][]v1.Pod{}, 0
	waittest.Until(t, fmt.Sprintf("%d Pods run", number), func() bool {
		pods := must.Get(k.client.CoreV1().Pods(ours).List(t.Context(), metav1.ListOptions{LabelSelector: ofTheSet}))(t)
		on, last = map[string][]v1.Pod{}, 0
		for _, pod := range pods.Items {
			if pod.Status.Phase == v1.PodRunning && pod.DeletionTimestamp == nil {
				on[pod.Spec.NodeName], last = append(on[pod.Spec.NodeName], pod), last+1
			}
		}
		return last >= number
	}, func() any { return last })
	for node, pods := range on {
		for _, pod := range pods {
			if where, _ := objects.NodeOf(k.volume(t, pod)); where != node {
				t.Errorf("Pod %s is on node %s, its volume on node %s", pod.Name, node, where)
			}
		}
	}
	return on
}

func (k *karpenter) volume(t *testing.T, pod v1.Pod) *v1.PersistentVolume {
	t.Helper()
	return k.pv(must.Get(k.client.CoreV1().PersistentVolumeClaims(ours).Get(t.Context(), pod.Name+"-data", metav1.GetOptions{}))(t))
}

// claims returns Karpenter's planned number of Pods by node, or by NodeClaim before the node
// exists.
func (k *karpenter) claims(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, claim := range must.Get(k.objects.Resource(nodeClaims).List(t.Context(), metav1.ListOptions{}))(t).Items {
		node, _, _ := unstructured.NestedString(claim.Object, "status", "nodeName")
		pods, _, _ := unstructured.NestedString(claim.Object, "spec", "resources", "requests", "pods")
		all[cmp.Or(node, claim.GetName())] = pods
	}
	return all
}

func (k *karpenter) waiting(t *testing.T, number int) []v1.Pod {
	t.Helper()
	var pods *v1.PodList
	waittest.Until(t, fmt.Sprintf("%d Pods wait", number), func() bool {
		pods = must.Get(k.client.CoreV1().Pods(ours).List(t.Context(), metav1.ListOptions{LabelSelector: ofTheSet, FieldSelector: "spec.nodeName="}))(t)
		return len(pods.Items) == number
	})
	return pods.Items
}

func (k *karpenter) says(t *testing.T, reason, words string, objects ...string) {
	t.Helper()
	k.saysOrDrains(t, reason, words, nil, objects...)
}

func (k *karpenter) saysOrDrains(t *testing.T, reason, words string, nodes map[string][]v1.Pod, objects ...string) {
	t.Helper()
	waittest.Until(t, fmt.Sprintf("an Event %s on one of %v: …%s…", reason, objects, words), func() bool {
		k.drainsNone(t, nodes)
		events := must.Get(k.client.CoreV1().Events("").List(t.Context(), metav1.ListOptions{FieldSelector: "reason=" + reason}))(t)
		for _, e := range events.Items {
			if e.Source.Component == "karpenter" && slices.Contains(objects, e.InvolvedObject.Name) && strings.Contains(e.Message, words) {
				t.Logf("%s: %s", e.Reason, e.Message)
				return true
			}
		}
		return false
	})
}

func (k *karpenter) drainsNone(t *testing.T, nodes map[string][]v1.Pod) {
	t.Helper()
	for name, pods := range nodes {
		node, err := k.client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && slices.ContainsFunc(node.Spec.Taints, func(taint v1.Taint) bool { return taint.Key == "karpenter.sh/disrupted" }) || apierrors.IsNotFound(err) {
			t.Fatalf("Karpenter drains node %s, on which Pod %s has its volume", name, pods[0].Name)
		}
	}
}

func (k *karpenter) change(t *testing.T, patch string) {
	t.Helper()
	must.Get(k.objects.Resource(nodePools).Patch(t.Context(), "disks", types.MergePatchType, []byte(patch), metav1.PatchOptions{}))(t)
}

func only[V any](t *testing.T, all map[string]V) (key string) {
	t.Helper()
	if len(all) != 1 {
		t.Fatalf("%d nodes, want one", len(all))
	}
	for key = range all {
	}
	return key
}

func TestKarpenterAddsANodeWhenDisksAreFull(t *testing.T) {
	k := withKarpenter(t, nil, 150*mib)
	k.startPods(t)
	full := only(t, k.running(t, 1))
	k.scale(t, 3)
	for _, pod := range k.waiting(t, 2) { // Karpenter does not know the disk.
		k.says(t, "Nominated", "node/"+full, pod.Name)
	}
	only(t, k.claims(t))

	k.smallest.Store(100 * mib)
	k.running(t, 2)
	on, claims := k.running(t, 3), k.claims(t)
	// A new node reports no number yet: the second was made for both Pods.
	if made := slices.Sorted(maps.Values(claims)); len(on) != 3 || !slices.Equal(made, []string{"1", "1", "2"}) {
		t.Errorf("Pods on %d nodes, which were made for %v Pods", len(on), made)
	}
}

// Pods can limit a node that does not exist yet, and reports no number of volumes.
func TestKarpenterPlansEachNodeForAsManyPodsAsFit(t *testing.T) {
	for name, say := range map[string]func(*v1.PodSpec){
		"spread": func(pod *v1.PodSpec) {
			pod.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{MaxSkew: 2, TopologyKey: v1.LabelHostname,
				WhenUnsatisfiable: v1.DoNotSchedule, LabelSelector: must.Get(metav1.ParseToLabelSelector(ofTheSet))(t)}}
		},
		"cpu": func(pod *v1.PodSpec) { // A node has 7.9.
			pod.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse("3")}
		},
	} {
		t.Run(name, func(t *testing.T) {
			k := withKarpenter(t, nil, 250*mib)
			k.startPods(t, say)
			k.running(t, 1)
			k.scale(t, 5)
			on, claims := k.running(t, 5), slices.Sorted(maps.Values(k.claims(t)))
			// It may have planned before it knew all Pods.
			if len(claims) != 3 || slices.Max(claims) > "2" {
				t.Errorf("Pods on %d nodes; Karpenter made nodes for %v Pods", len(on), claims)
			}
		})
	}
}

func twoNodes(t *testing.T, class func(*storagev1.StorageClass), disk, smallest int64) (k *karpenter, pods map[string][]v1.Pod) {
	t.Helper()
	k = withKarpenter(t, class, disk)
	k.smallest.Store(smallest)
	k.startPods(t)
	first := only(t, k.running(t, 1))
	must.Succeed(t, patchNode(k.client, first, `{"spec":{"unschedulable":true}}`))
	k.scale(t, 2)
	pods = k.running(t, 2)
	if len(pods) != 2 {
		t.Fatalf("Pods on %d nodes, want 2", len(pods))
	}
	must.Succeed(t, patchNode(k.client, first, `{"spec":{"unschedulable":false}}`))
	// The current round may have asked before the second volume existed.
	before := k.asked.Load()
	waittest.Until(t, "the kubelets have asked for the number of volumes", func() bool { return k.asked.Load() >= before+2 })
	for node := range pods {
		// Karpenter checks a node when it changes.
		must.Succeed(t, patchNode(k.client, node, `{"metadata":{"annotations":{"changed":"yes"}}}`))
	}
	k.change(t, `{"spec":{"disruption":{"consolidateAfter":"0s"}}}`)
	return k, pods
}

const drift = `{"spec":{"template":{"metadata":{"labels":{"image":"new"}}}}}`

func TestKarpenterMovesNoPinnedVolumes(t *testing.T) {
	k, before := twoNodes(t, nil, gib, 0)
	for _, pods := range before {
		// The controller adds a missing nodeAffinity, but Pods can be bound before.
		pv := k.volume(t, pods[0])
		if _, movable := objects.RecordedNode(pv); movable || pv.Spec.NodeAffinity == nil {
			t.Errorf("volume %s was made without nodeAffinity, though its class does not say that it may move", pv.Name)
		}
	}
	// The Event on the other node may have had another reason, and is then repeated only after
	// minutes.
	nodes := slices.Collect(maps.Keys(before))
	k.saysOrDrains(t, "Unconsolidatable", names.TopologyNode, before, nodes...)
	k.change(t, drift)
	k.saysOrDrains(t, "DisruptionBlocked", names.TopologyNode, before, nodes...)
	k.noneMoves(t, before)
}

// noneMoves fails if Karpenter moves Pods, though it has reported on one node only. Karpenter
// checks nodes in rounds: it reports the changed budget in a later round than the one that
// marks nodes for removal.
func (k *karpenter) noneMoves(t *testing.T, before map[string][]v1.Pod) {
	t.Helper()
	k.change(t, `{"spec":{"disruption":{"budgets":[{"nodes":"100%"},{"nodes":"0","reasons":["Drifted"]}]},"template":{"metadata":{"labels":{"image":"newer"}}}}}`)
	k.says(t, "DisruptionBlocked", "No allowed disruptions for disruption reason Drifted", "disks")
	k.drainsNone(t, before)
	same := func(before, after []v1.Pod) bool {
		return slices.EqualFunc(before, after, func(a, b v1.Pod) bool { return a.UID == b.UID })
	}
	if after := k.running(t, 2); len(k.claims(t)) != 2 || !maps.EqualFunc(before, after, same) {
		t.Errorf("Pods are on %v, were on %v", after, before)
	}
}

func TestKarpenterMovesMovableVolumes(t *testing.T) {
	k, _ := twoNodes(t, movable, gib, 0)
	waittest.Until(t, "there is one node", func() bool { return len(k.claims(t)) == 1 })
	left := only(t, k.running(t, 2))
	k.change(t, drift)
	waittest.Until(t, "there is another node", func() bool {
		claims := k.claims(t)
		return len(claims) == 1 && claims[left] == ""
	})
	only(t, k.running(t, 2))
}

// The number of volumes prevents this drain: Karpenter would not even add a node for the Pod.
func TestKarpenterDrainsANodeThoughTheOtherDiskIsFull(t *testing.T) {
	k, _ := twoNodes(t, movable, 150*mib, 0)
	waittest.Until(t, "there is one node", func() bool { return len(k.claims(t)) == 1 })
	k.says(t, "Nominated", "node/"+only(t, k.claims(t)), k.waiting(t, 1)[0].Name)
}

func TestKarpenterDrainsNoNodeWhenTheNumberSaysThatTheOtherIsFull(t *testing.T) {
	k, before := twoNodes(t, movable, 150*mib, 100*mib)
	k.saysOrDrains(t, "Unconsolidatable", "Can't replace with a cheaper node", before, slices.Collect(maps.Keys(before))...)
	k.noneMoves(t, before)
}
