//go:build apiserver

package controller

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	sidecar "github.com/kubernetes-csi/external-provisioner/v6/pkg/controller"
	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	upstream "sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/provision"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// nothingMigrates is for drivers that never were in-tree.
type nothingMigrates struct {
	sidecar.ProvisionerCSITranslator
}

func (nothingMigrates) IsPVMigratable(*v1.PersistentVolume) bool { return false }

// sidecarActs runs external-provisioner, the upstream library with a nodesDriver. It needs its
// own process, as the library registers types with the scheme of all clients.
func sidecarActs(t *testing.T, w *world) {
	t.Helper()
	for name := range w.nodes {
		node := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{
			{Name: names.Driver, NodeID: name, TopologyKeys: []string{names.TopologyNode}}}}}
		must.Get(w.client.StorageV1().CSINodes().Create(t.Context(), node, metav1.CreateOptions{}))(t)
		t.Cleanup(func() { _ = w.client.StorageV1().CSINodes().Delete(context.Background(), name, metav1.DeleteOptions{}) })
	}
	socket := serveDriver(t, w.nodes)
	if w.snapshots != nil {
		_, _, stop := runOn(t, w, Options{Client: w.client, Snapshots: w.snapshots, Namespace: "default"}, (*Controller).runSnapshotter)
		t.Cleanup(stop)
	}
	w.isUpstream = true
	w.actsIn(t, func() func() {
		command := exec.Command(os.Args[0])
		command.Env, command.Stderr = append(os.Environ(), sidecarSocket+"="+socket), os.Stderr
		stdin, err := command.StdinPipe()
		if err == nil {
			err = command.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		return func() {
			_ = stdin.Close()
			if err := command.Wait(); err != nil {
				t.Errorf("external-provisioner: %v", err)
			}
		}
	})
}

// sidecarSocket makes this program run external-provisioner on that CSI socket instead of
// tests.
const sidecarSocket = "CARVE_TEST_SIDECAR_SOCKET"

func TestMain(m *testing.M) {
	socket := os.Getenv(sidecarSocket)
	if socket == "" {
		os.Exit(m.Run())
	}
	// It ends with its standard input, so it does not outlive a killed test.
	ctx, cancel := context.WithCancel(context.Background())
	go func() { _, _ = io.Copy(io.Discard, os.Stdin); cancel() }()
	klog.SetLogger(logr.FromSlogHandler(slog.NewTextHandler(io.Discard, nil)))
	if err := runSidecar(ctx, socket); err != nil {
		fmt.Fprintln(os.Stderr, "external-provisioner:", err)
		os.Exit(1)
	}
}

func runSidecar(ctx context.Context, socket string) error {
	config, err := apiServer()
	if err != nil {
		return err
	}
	client, snapshots := kubernetes.NewForConfigOrDie(config), snapshotclient.NewForConfigOrDie(config)
	connection, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	plugin, controller, err := sidecar.GetDriverCapabilities(connection, time.Minute)
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	claims := factory.Core().V1().PersistentVolumeClaims()
	provisioner := sidecar.NewCSIProvisioner(client, 5*time.Minute, "upstream", "pvc", -1, connection, snapshots, names.Driver, plugin, controller, "",
		true, true, nothingMigrates{}, factory.Storage().V1().StorageClasses().Lister(), factory.Storage().V1().CSINodes().Lister(),
		factory.Core().V1().Nodes().Lister(), claims.Lister(), nil, nil, true, "ext4", nil, false, true, sidecar.NewInMemoryStore())
	library := upstream.NewProvisionController(ctx, client, names.Driver, provisioner,
		upstream.LeaderElection(false), upstream.AddFinalizer(true), upstream.FailedProvisionThreshold(0),
		upstream.FailedDeleteThreshold(0), upstream.Threadiness(10), upstream.RateLimiter(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](100*time.Millisecond, time.Second)))
	protection := sidecar.NewCloningProtectionController(client, claims.Lister(), claims.Informer(),
		workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](100*time.Millisecond, time.Second)), controller)
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	var working sync.WaitGroup
	working.Go(func() { protection.Run(ctx, 1, &working) })
	library.Run(ctx)
	working.Wait()
	factory.Shutdown()
	return nil
}

// held blocks creates from a source until letGo. The channel receives once per request to a
// node.
func (w *world) held() (asked <-chan struct{}, letGo func()) {
	entered, release := make(chan struct{}, 100), make(chan struct{})
	for _, node := range w.nodes {
		node.SetHooks(lvmdfake.Hooks{BeforeCreate: func(ctx context.Context, r *lvmdv1.CreateVolumeRequest) error {
			if r.GetSource() == nil {
				return nil
			}
			entered <- struct{}{}
			select {
			case <-release:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}})
	}
	return entered, func() { close(release) }
}

func (w *world) guards(claim *v1.PersistentVolumeClaim) []string {
	now := w.get(claim)
	if now == nil {
		return []string{"gone"}
	}
	return slices.Sorted(slices.Values(now.Finalizers))
}

func (w *world) noteProtection(t *testing.T, source *v1.PersistentVolumeClaim) {
	t.Helper()
	guards := w.guards(source)
	if !slices.Contains(guards, provision.CloneFinalizer) {
		t.Errorf("the source is not protected: %v", guards)
	}
	w.note("while it is cloned, the source is kept by %v", guards)
}

func (w *world) source(t *testing.T) *v1.PersistentVolumeClaim {
	t.Helper()
	source := w.claim(t, w.class(t, nil), "n2", named("source", nil))
	w.waitBound(t, source)
	return source
}

// deleteSource deletes an unneeded source. That ends upstream's protection; ours ends with the
// clone.
func (w *world) deleteSource(t *testing.T, source *v1.PersistentVolumeClaim) {
	t.Helper()
	w.delete(t, source)
	w.waitNothingLeft(t, source)
	w.note("source: %v", w.guards(source))
}

func sized(size string, change func(*v1.PersistentVolumeClaim)) func(*v1.PersistentVolumeClaim) {
	return func(c *v1.PersistentVolumeClaim) {
		change(c)
		c.Spec.Resources.Requests[v1.ResourceStorage] = resource.MustParse(size)
	}
}

func (w *world) refused(t *testing.T, claim *v1.PersistentVolumeClaim) {
	t.Helper()
	waittest.Until(t, "the claim is refused", func() bool { return slices.Contains(w.observe(t, claim).Events, "Warning ProvisioningFailed") })
}

var sourceScenarios = []scenario{
	{name: "a larger clone", run: func(t *testing.T, w *world) *v1.PersistentVolumeClaim {
		source := w.source(t)
		asked, letGo := w.held()
		clone := w.claim(t, "scenario", "n2", named("clone", sized("200Mi", cloneOf("source"))))
		<-asked
		w.noteProtection(t, source)
		letGo()
		w.waitBound(t, clone)
		w.deleteSource(t, source)
		return clone
	}},
	{name: "a clone that binds immediately", run: func(t *testing.T, w *world) *v1.PersistentVolumeClaim {
		source := w.source(t)
		class := w.class(t, func(c *storagev1.StorageClass) { immediate(c); c.Name = "at-once" })
		clone := w.claim(t, class, "", named("clone", cloneOf("source")))
		w.waitBound(t, clone)
		w.deleteSource(t, source)
		return clone
	}},
	{name: "a clone during which the controller is restarted", run: func(t *testing.T, w *world) *v1.PersistentVolumeClaim {
		source := w.source(t)
		asked, letGo := w.held()
		clone := w.claim(t, "scenario", "n2", named("clone", cloneOf("source")))
		<-asked
		w.restart()
		<-asked
		w.noteProtection(t, source)
		letGo()
		w.waitBound(t, clone)
		w.deleteSource(t, source)
		return clone
	}, spared: []string{"Warning ProvisioningFailed"}}, // the call that ends with its caller
	{name: "a source that is deleted while it is cloned", run: func(t *testing.T, w *world) *v1.PersistentVolumeClaim {
		source := w.source(t)
		asked, letGo := w.held()
		clone := w.claim(t, "scenario", "n2", named("clone", cloneOf("source")))
		<-asked
		must.Succeed(t, w.client.CoreV1().PersistentVolumeClaims(w.namespace).Delete(t.Context(), "source", metav1.DeleteOptions{}))
		waittest.Until(t, "others let the source go", func() bool { return !slices.Contains(w.guards(source), "kubernetes.io/pvc-protection") })
		w.noteProtection(t, source)
		letGo()
		w.waitBound(t, clone)
		waittest.Until(t, "the source is gone", func() bool { return w.get(source) == nil })
		w.waitNothingLeft(t, source)
		return clone
	}},
	{name: "a clone before its source", run: func(t *testing.T, w *world) *v1.PersistentVolumeClaim {
		class := w.class(t, nil)
		clone := w.claim(t, class, "n2", named("clone", cloneOf("source")))
		source := w.claim(t, class, "n2", named("source", nil))
		w.waitBound(t, clone)
		w.deleteSource(t, source)
		return clone
	}, spared: []string{"Warning ProvisioningFailed"}}, // ours waits for objects applied together, without an Event
	{name: "a clone that is smaller than its source", run: func(t *testing.T, w *world) *v1.PersistentVolumeClaim {
		source := w.source(t)
		clone := w.claim(t, "scenario", "n2", named("clone", sized("50Mi", cloneOf("source"))))
		w.refused(t, clone)
		w.note("the source is kept by %v", w.guards(source))
		w.deleteSource(t, source)
		return clone
	}},
}

func (w *world) snapshot(t *testing.T) {
	t.Helper()
	source := w.source(t)
	takeSnapshot(t, w.snapshots.SnapshotV1().VolumeSnapshots(w.namespace))
	w.delete(t, source)
	w.waitNothingLeft(t, source)
	t.Cleanup(func() { w.waitNoSnapshot(t) })
}

// deleteSnapshot does not wait: a restore keeps the snapshot.
func (w *world) deleteSnapshot(t *testing.T) {
	t.Helper()
	must.Succeed(t, w.snapshots.SnapshotV1().VolumeSnapshots(w.namespace).Delete(t.Context(), "s", metav1.DeleteOptions{}))
}

func (w *world) waitNoSnapshot(t *testing.T) {
	t.Helper()
	waittest.Until(t, "snapshot is gone", func() bool {
		_, err := w.snapshots.SnapshotV1().VolumeSnapshots(w.namespace).Get(context.Background(), "s", metav1.GetOptions{})
		return apierrors.IsNotFound(err) && len(w.nodes["n2"].Snapshots()) == 0
	})
}

var snapshotScenarios = []scenario{
	{name: "a larger restore, after which the snapshot is deleted", run: func(t *testing.T, w *world) *v1.PersistentVolumeClaim {
		w.snapshot(t)
		restore := w.claim(t, "scenario", "n2", sized("200Mi", restoreOf("s")))
		w.waitBound(t, restore)
		w.deleteSnapshot(t)
		w.waitNoSnapshot(t)
		return restore
	}},
	{name: "a snapshot that is deleted while it is restored", run: func(t *testing.T, w *world) *v1.PersistentVolumeClaim {
		w.snapshot(t)
		asked, letGo := w.held()
		restore := w.claim(t, "scenario", "n2", restoreOf("s"))
		<-asked
		w.deleteSnapshot(t)
		letGo()
		w.waitBound(t, restore)
		w.waitNoSnapshot(t)
		return restore
	}},
	{name: "a restore that is smaller than its snapshot", run: func(t *testing.T, w *world) *v1.PersistentVolumeClaim {
		w.snapshot(t)
		restore := w.claim(t, "scenario", "n2", sized("50Mi", restoreOf("s")))
		w.refused(t, restore)
		w.deleteSnapshot(t)
		return restore
	}},
}

func TestUsersSeeOfSourcesWhatExternalProvisionerWouldShowThem(t *testing.T) {
	client := connectToAPIServer(t)
	both := actors{"ours": oursActs, "upstream": sidecarActs}
	for i, s := range sourceScenarios {
		t.Run(s.name, func(t *testing.T) {
			s.compare(t, both, func(t *testing.T, who string) *world {
				w := newWorld(t, client)
				w.namespace = fmt.Sprintf("source-%d-%s", i, who)
				return w
			})
		})
	}
	snapshots := snapshotclient.NewForConfigOrDie(installSnapshots(t, client))
	for i, s := range snapshotScenarios {
		t.Run(s.name, func(t *testing.T) {
			s.compare(t, both, func(t *testing.T, who string) *world {
				w := newWorld(t, client)
				w.namespace, w.snapshots = fmt.Sprintf("snapshot-%d-%s", i, who), snapshots
				for name := range w.nodes {
					w.nodes[name] = lvmdfake.New(name, lvmdfake.Class{Name: "thin", Default: true, Bytes: gib, Thin: true})
				}
				return w
			})
		})
	}
}
