//go:build apiserver

package controller

import (
	"context"
	"log/slog"
	"os"
	"testing"

	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/uplink/uplinktest"
	"github.com/carve-csi/carve/pkg/waittest"
)

// world is a real API server with the real PV controller and scheduler, and nodes with fake
// lvmds. Either our provisioner or upstream's acts.
type world struct {
	client     kubernetes.Interface
	snapshots  snapshotclient.Interface // nil if the cluster has none
	namespace  string
	nodes      map[string]*lvmdfake.Server
	isUpstream bool
	// restart replaces the acting provisioner.
	restart func()
	volume  string
	// notes are a scenario's observations, which are compared, too.
	notes []string
}

func apiServer() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	return config, nil
}

// apiServerAs has only the rights of an account of our namespace and of groups.
func apiServerAs(t *testing.T, account string, groups ...string) *rest.Config {
	t.Helper()
	config := must.Get(apiServer())(t)
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + ours + ":" + account,
		Groups: append(groups, "system:serviceaccounts", "system:serviceaccounts:"+ours, "system:authenticated")}
	return config
}

func connectToAPIServer(t *testing.T) kubernetes.Interface {
	t.Helper()
	client := must.Get(kubernetes.NewForConfig(must.Get(apiServer())(t)))(t)
	t.Cleanup(func() {
		// A stopped controller leaves its published capacity, which the scheduler would use in
		// the next test.
		all, err := client.StorageV1().CSIStorageCapacities("").List(context.Background(), metav1.ListOptions{})
		if err != nil {
			t.Errorf("list capacities: %v", err)
			return
		}
		for _, one := range all.Items {
			err := client.StorageV1().CSIStorageCapacities(one.Namespace).Delete(context.Background(), one.Name, metav1.DeleteOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				t.Errorf("delete capacity %s/%s: %v", one.Namespace, one.Name, err)
			}
		}
	})
	return client
}

func logPlacement(t *testing.T, client kubernetes.Interface, namespace string) {
	t.Helper()
	if !t.Failed() {
		return
	}
	ctx := context.Background()
	if nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{}); err == nil {
		for _, n := range nodes.Items {
			t.Logf("node %s: unschedulable %t, taints %v, allocatable %v", n.Name, n.Spec.Unschedulable, n.Spec.Taints, n.Status.Allocatable)
		}
	}
	if pods, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{}); err == nil {
		for _, p := range pods.Items {
			t.Logf("Pod %s: node %q, %v", p.Name, p.Spec.NodeName, p.Status.Conditions)
		}
	}
	if claims, err := client.CoreV1().PersistentVolumeClaims(namespace).List(ctx, metav1.ListOptions{}); err == nil {
		for _, c := range claims.Items {
			t.Logf("claim %s: %s, %v", c.Name, c.Status.Phase, c.Annotations)
		}
	}
	if capacities, err := client.StorageV1().CSIStorageCapacities("").List(ctx, metav1.ListOptions{}); err == nil {
		for _, c := range capacities.Items {
			t.Logf("capacity of class %s on %v: %v", c.StorageClassName, c.NodeTopology, c.MaximumVolumeSize)
		}
	}
	if events, err := client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{}); err == nil {
		for _, e := range events.Items {
			t.Logf("Event on %s: %s: %s", e.InvolvedObject.Name, e.Reason, e.Message)
		}
	}
}

func newWorld(t *testing.T, client kubernetes.Interface) *world {
	t.Helper()
	w := &world{client: client, nodes: map[string]*lvmdfake.Server{}}
	for _, name := range []string{"n1", "n2"} {
		w.node(t, name, lvmdfake.Class{Name: "local", Default: true, Bytes: gib})
	}
	t.Cleanup(func() { logPlacement(t, w.client, w.namespace) })
	return w
}

// node adds a node; call it before a provisioner acts.
func (w *world) node(t *testing.T, name string, class lvmdfake.Class) {
	t.Helper()
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{names.TopologyNode: name}}, Status: forPods()}
	must.Get(w.client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}))(t)
	t.Cleanup(func() { _ = w.client.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{}) })
	w.nodes[name] = lvmdfake.New(name, class)
}

// forPods is the capacity of nodes for Pods that tolerate everything, which no kubelet runs.
// It must be set from the start, as nothing makes the scheduler retry later, and be large:
// Pods of earlier tests still occupy nodes of the same names.
func forPods() v1.NodeStatus {
	offered := v1.ResourceList{v1.ResourcePods: resource.MustParse("10000"), v1.ResourceCPU: resource.MustParse("4"), v1.ResourceMemory: resource.MustParse("4Gi")}
	return v1.NodeStatus{Capacity: offered, Allocatable: offered}
}

func oursActs(t *testing.T, w *world) {
	t.Helper()
	w.actsIn(t, func() func() {
		_, _, stop := startOn(t, w, Options{Client: w.client, Snapshots: w.snapshots, Namespace: "default"}, withoutPods)
		return stop
	})
}

func (w *world) actsIn(t *testing.T, start func() (stop func())) {
	t.Helper()
	stop := start()
	w.restart = func() { stop(); stop = start() }
	t.Cleanup(func() { stop() })
}

// actWith fills in the options common to all tests.
func actWith(t *testing.T, w *world, o Options) {
	t.Helper()
	actOn(t, w, o)
}

// actOn also returns what tests need to attach and detach nodes.
func actOn(t *testing.T, w *world, o Options, changes ...harnessOption) (*Controller, *uplinktest.Network) {
	t.Helper()
	c, net, stop := startOn(t, w, o, changes...)
	t.Cleanup(stop)
	return c, net
}

// startOn is actOn for tests that stop the controller themselves.
func startOn(t *testing.T, w *world, o Options, changes ...harnessOption) (c *Controller, net *uplinktest.Network, stop func()) {
	t.Helper()
	return runOn(t, w, o, (*Controller).lead, changes...)
}

// runOn is startOn with another function than lead.
func runOn(t *testing.T, w *world, o Options, run func(*Controller, context.Context) error, changes ...harnessOption) (c *Controller, net *uplinktest.Network, stop func()) {
	t.Helper()
	o.Registerer, o.Log = prometheus.NewRegistry(), slog.New(slog.DiscardHandler)
	c = must.Get(New(o))(t)
	for _, change := range changes {
		change(c)
	}
	recorder, stopEvents := cluster.NewRecorder(o.Client)
	c.core.Recorder, c.core.ID = recorder, "cluster"
	net = must.Get(uplinktest.NewNetwork(t.TempDir(), c.core.Fleet.Add))(t)
	for _, node := range w.nodes {
		net.Attach(node)
	}
	waittest.Until(t, "nodes connect", func() bool { return c.core.Fleet.Connected() == len(w.nodes) })
	ctx, cancel := context.WithCancel(context.Background())
	c.all.Start(ctx.Done())
	c.own.Start(ctx.Done())
	c.core.owner.Start(ctx.Done())
	done := make(chan error, 1)
	go func() { done <- run(c, ctx) }()
	return c, net, func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		c.all.Shutdown()
		c.own.Shutdown()
		c.core.owner.Shutdown()
		stopEvents()
		c.core.Fleet.Close()
		net.Close()
	}
}

// placedBy returns the node of a Pod with an ephemeral volume.
func (w *world) placedBy(t *testing.T, scheduler, name, class string) string {
	t.Helper()
	spec, _ := scheduledPod(true)
	spec.SchedulerName = scheduler
	spec.Volumes[0].Ephemeral.VolumeClaimTemplate.Spec.StorageClassName = &class
	pods := w.client.CoreV1().Pods(w.namespace)
	waittest.Until(t, "the Pod is taken", func() bool { // once the namespace has its service account
		_, err := pods.Create(t.Context(), &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
		return err == nil
	})
	t.Cleanup(func() { _ = pods.Delete(context.Background(), name, metav1.DeleteOptions{}) })
	var node string
	waittest.Until(t, "the Pod has a node", func() bool {
		pod, err := pods.Get(t.Context(), name, metav1.GetOptions{})
		if err == nil {
			node = pod.Spec.NodeName
		}
		return node != ""
	})
	return node
}
