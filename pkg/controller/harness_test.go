package controller

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-helpers/storage/volume"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/audit"
	"github.com/carve-csi/carve/pkg/controller/capacity"
	"github.com/carve-csi/carve/pkg/controller/clientfake"
	"github.com/carve-csi/carve/pkg/controller/pvcontrollerfake"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/uplink/uplinktest"
	"github.com/carve-csi/carve/pkg/waittest"
)

const (
	gib  = 1 << 30
	mib  = 1 << 20
	soon = time.Minute
)

// harness is a leading controller over a fake API server, with fake nodes on a real uplink.
type harness struct {
	t      *testing.T
	c      *Controller
	client *fake.Clientset
	net    *uplinktest.Network
	events *record.FakeRecorder
	stop   func()
	// pvController is nil if the API server existed before.
	pvController *pvcontrollerfake.PVController
	passed       int
}

type harnessOption func(*Controller)

// withoutPods disables the wait for the Pods of claims with a selected node.
func withoutPods(c *Controller) { c.core.podLag = -1 }

func newHarness(t *testing.T, opts ...harnessOption) *harness {
	t.Helper()
	client := newClientset()
	binds := pvcontrollerfake.Start(client)
	h := newHarnessOn(t, client, opts...)
	h.pvController = binds
	return h
}

func newHarnessOn(t *testing.T, client *fake.Clientset, opts ...harnessOption) *harness {
	t.Helper()
	h := &harness{t: t, client: client, events: record.NewFakeRecorder(1000)}
	log := slog.New(slog.DiscardHandler)
	if testing.Verbose() {
		log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	c := must.Get(New(Options{
		Client: h.client, Namespace: "carve-system",
		Registerer: prometheus.NewRegistry(), Log: log,
	}))(t)
	withoutPods(c)
	for _, o := range opts {
		o(c)
	}
	for _, informer := range c.core.Informers() {
		// The fake returns the objects that it stores: never change them.
		must.Succeed(t, informer.SetTransform(func(obj any) (any, error) { return obj, nil }))
	}
	c.core.Losses.Grace = 50 * time.Millisecond
	c.core.Recorder, c.core.ID = h.events, "cluster"
	h.c = c
	h.net = must.Get(uplinktest.NewNetwork(t.TempDir(), c.core.Fleet.Add))(t)
	return h
}

// newClientset gives capacity objects resource versions, as the real API server does: the
// publisher needs them to distinguish its own writes from older events.
func newClientset(objects ...runtime.Object) *fake.Clientset {
	client := clientfake.New(objects...)
	var version atomic.Int64
	client.PrependReactor("*", "csistoragecapacities", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if write, ok := action.(clienttesting.UpdateActionImpl); ok {
			stampVersion(write.GetObject(), &version)
		}
		if write, ok := action.(clienttesting.CreateActionImpl); ok {
			stampVersion(write.GetObject(), &version)
		}
		return false, nil, nil
	})
	return client
}

// react answers requests before the fake API server does.
func (h *harness) react(verb, resource string, reaction clienttesting.ReactionFunc) {
	clientfake.React(h.client, verb, resource, reaction)
}

func stampVersion(obj runtime.Object, version *atomic.Int64) {
	if c, ok := obj.(*storagev1.CSIStorageCapacity); ok {
		c.ResourceVersion = strconv.FormatInt(version.Add(1), 10)
	}
}

func (h *harness) run() {
	ctx, cancel := context.WithCancel(context.Background())
	h.c.all.Start(ctx.Done())
	h.c.own.Start(ctx.Done())
	h.c.core.owner.Start(ctx.Done())
	done := make(chan error, 1)
	go func() { done <- h.c.lead(ctx) }()
	stopped := false
	h.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			h.t.Errorf("act: %v", err)
		}
		h.c.all.Shutdown()
		h.c.own.Shutdown()
		h.c.core.owner.Shutdown()
	}
	h.t.Cleanup(func() {
		h.logState()
		h.stop()
		h.c.core.Fleet.Close()
		h.net.Close()
	})
}

func (h *harness) logState() {
	if !h.t.Failed() {
		return
	}
	published, err := h.client.StorageV1().CSIStorageCapacities("").List(context.Background(), metav1.ListOptions{})
	if err != nil {
		h.t.Error(err)
		return
	}
	for _, c := range published.Items {
		h.t.Logf("published as %s: node %s, class %s, %v, at most %v", c.Name, capacity.TopologyNode(&c), c.StorageClassName, c.Capacity, c.MaximumVolumeSize)
	}
	for _, obj := range h.c.core.Capacities.GetStore().List() {
		c := obj.(*storagev1.CSIStorageCapacity).DeepCopy() // logging writes to it
		h.t.Logf("in the cache: %s: %v, at most %v", c.GetName(), c.Capacity, c.MaximumVolumeSize)
	}
	for _, view := range h.c.core.Fleet.Views() {
		h.t.Logf("node %s: connected %t, generation %d, classes %v, volumes %v", view.Node, view.Connected, view.Generation, view.Classes, view.ByName)
		for _, class := range view.Classes {
			free, known := h.c.core.ledger.FreeSpace(view.Node, class.GetName())
			h.t.Logf("free space on node %s in class %s: %+v, known %t", view.Node, class.GetName(), free, known)
		}
	}
	h.t.Logf("%d reservations, claims %v", h.c.core.ledger.Reservations(), h.c.core.Claims.GetStore().ListKeys())
}

// node adds a Node object and, unless bytes is 0, its lvmd.
func (h *harness) node(name string, bytes int64) *lvmdfake.Server {
	h.t.Helper()
	must.Get(h.client.CoreV1().Nodes().Create(h.t.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: map[string]string{names.TopologyNode: name, "zone": "z-" + name}}}, metav1.CreateOptions{}))(h.t)
	s := lvmdfake.New(name, lvmdfake.Class{Name: "local", Default: true, Bytes: bytes})
	if bytes > 0 {
		h.attach(s, name)
	}
	return s
}

func (h *harness) attach(s *lvmdfake.Server, name string) {
	h.t.Helper()
	h.net.Attach(s)
	waittest.Until(h.t, "node "+name+" connects", func() bool {
		v, ok := h.c.core.Fleet.View(name)
		return ok && v.Connected
	})
}

func (h *harness) class(name string, change func(*storagev1.StorageClass)) *storagev1.StorageClass {
	h.t.Helper()
	mode, reclaim := storagev1.VolumeBindingWaitForFirstConsumer, v1.PersistentVolumeReclaimDelete
	class := &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: names.Driver,
		VolumeBindingMode: &mode, ReclaimPolicy: &reclaim, MountOptions: []string{"noatime"},
	}
	if change != nil {
		change(class)
	}
	must.Get(h.client.StorageV1().StorageClasses().Create(h.t.Context(), class, metav1.CreateOptions{}))(h.t)
	return class
}

func immediate(c *storagev1.StorageClass) {
	mode := storagev1.VolumeBindingImmediate
	c.VolumeBindingMode = &mode
}

// claim makes a claim of 100 MiB in class "carve" with the selected node.
func (h *harness) claim(name, node string, change func(*v1.PersistentVolumeClaim)) *v1.PersistentVolumeClaim {
	h.t.Helper()
	class := "carve"
	claim := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("uid-" + name), Annotations: map[string]string{}},
		Spec: v1.PersistentVolumeClaimSpec{
			StorageClassName: &class, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("100Mi")}},
		},
		Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimPending},
	}
	if node != "" {
		claim.Annotations[volume.AnnSelectedNode] = node
	}
	if change != nil {
		change(claim)
	}
	created := must.Get(h.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Create(h.t.Context(), claim, metav1.CreateOptions{}))(h.t)
	return created
}

func (h *harness) getClaim(name string) *v1.PersistentVolumeClaim {
	h.t.Helper()
	claim := must.Get(h.client.CoreV1().PersistentVolumeClaims("default").Get(context.Background(), name, metav1.GetOptions{}))(h.t)
	return claim
}

func (h *harness) selectNode(name, node string) {
	h.t.Helper()
	claim := h.getClaim(name)
	if claim.Annotations == nil {
		claim.Annotations = map[string]string{}
	}
	claim.Annotations[volume.AnnSelectedNode] = node
	must.Get(h.client.CoreV1().PersistentVolumeClaims("default").Update(context.Background(), claim, metav1.UpdateOptions{}))(h.t)
}

func (h *harness) deleteClaim(name string) {
	h.t.Helper()
	must.Succeed(h.t, h.client.CoreV1().PersistentVolumeClaims("default").Delete(context.Background(), name, metav1.DeleteOptions{}))
}

func (h *harness) pv(name string) *v1.PersistentVolume {
	pv, err := h.client.CoreV1().PersistentVolumes().Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		return nil
	}
	return pv
}

func (h *harness) volumes() int {
	list := must.Get(h.client.CoreV1().PersistentVolumes().List(context.Background(), metav1.ListOptions{}))(h.t)
	return len(list.Items)
}

func (h *harness) event(parts ...string) {
	h.t.Helper()
	deadline := time.After(soon)
	var seen []string
	for {
		select {
		case e := <-h.events.Events:
			seen = append(seen, e)
			ok := true
			for _, part := range parts {
				ok = ok && strings.Contains(e, part)
			}
			if ok {
				return
			}
		case <-deadline:
			h.t.Fatalf("no event with %q, but %q", parts, seen)
		}
	}
}

func (h *harness) unread() (found []string) {
	for {
		select {
		case e := <-h.events.Events:
			found = append(found, e)
		default:
			return found
		}
	}
}

func (h *harness) warnings() []string {
	return slices.DeleteFunc(h.unread(), func(e string) bool { return !strings.HasPrefix(e, v1.EventTypeWarning) })
}

func (h *harness) capacity(node string) *storagev1.CSIStorageCapacity {
	key := capacity.Key{Node: node, Class: "carve"}
	c, err := h.client.StorageV1().CSIStorageCapacities("carve-system").Get(context.Background(), key.ObjectName(), metav1.GetOptions{})
	if err != nil {
		return nil
	}
	return c
}

func (h *harness) capacityIs(node string, bytes int64) func() bool {
	return func() bool {
		c := h.capacity(node)
		return c != nil && c.Capacity.Value() == bytes && c.MaximumVolumeSize.Value() == bytes
	}
}

func (h *harness) bound(name string) func() bool {
	return func() bool {
		claim := h.getClaim(name)
		return claim.Status.Phase == v1.ClaimBound && claim.Spec.VolumeName == fmt.Sprintf("pvc-%s", claim.UID)
	}
}

func (h *harness) leader() *acting {
	h.t.Helper()
	var a *acting
	waittest.Until(h.t, "the controller leads", func() bool {
		a = h.c.acting.Load()
		return a != nil
	})
	return a
}

func newAuditor(c *core, remove bool, grace time.Duration, busy func(string) bool) *audit.Auditor {
	return audit.New(c.Cluster, audit.Options{RemoveOrphans: remove, Grace: grace, Since: c.Now(), Busy: busy, Metrics: c.metrics.audit})
}

func claimVolume(name string) v1.Volume {
	return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name}}}
}
