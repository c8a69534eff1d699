//go:build apiserver

package controller

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	snapshotclientv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/typed/volumesnapshot/v1"
	snapshotinformers "github.com/kubernetes-csi/external-snapshotter/client/v8/informers/externalversions"
	common "github.com/kubernetes-csi/external-snapshotter/v8/pkg/common-controller"
	snapshotmetrics "github.com/kubernetes-csi/external-snapshotter/v8/pkg/metrics"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/yaml"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/spec"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

const snapshotClass = "carve"

func takeSnapshot(t *testing.T, snapshots snapshotclientv1.VolumeSnapshotInterface) {
	t.Helper()
	askForSnapshot(t, snapshots, "s", "source")
	waitSnapshot(t, snapshots, "s")
}

func askForSnapshot(t *testing.T, snapshots snapshotclientv1.VolumeSnapshotInterface, name, claim string) {
	t.Helper()
	class := snapshotClass
	snapshot := &snapshotv1.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: snapshotv1.VolumeSnapshotSpec{
		VolumeSnapshotClassName: &class, Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: &claim}}}
	must.Get(snapshots.Create(t.Context(), snapshot, metav1.CreateOptions{}))(t)
}

func waitSnapshot(t *testing.T, snapshots snapshotclientv1.VolumeSnapshotInterface, name string) {
	t.Helper()
	waittest.Until(t, "snapshot "+name+" is ready", func() bool {
		now, err := snapshots.Get(t.Context(), name, metav1.GetOptions{})
		return err == nil && now.Status != nil && now.Status.ReadyToUse != nil && *now.Status.ReadyToUse
	})
}

// installSnapshots installs what a cluster must have itself.
func installSnapshots(t *testing.T, admin kubernetes.Interface) *rest.Config {
	t.Helper()
	config := must.Get(apiServer())(t)
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/kubernetes-csi/external-snapshotter/client/v8").Output()
	if err != nil {
		t.Fatalf("find the definitions: %v", err)
	}
	definitions := dynamic.NewForConfigOrDie(config).Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(dir)), "config/crd/snapshot.storage.k8s.io_*.yaml"))
	if err != nil || len(files) != 3 {
		t.Fatalf("definitions %q: %v", files, err)
	}
	for _, file := range files {
		content := must.Get(os.ReadFile(file))(t)
		definition := &unstructured.Unstructured{}
		must.Succeed(t, yaml.Unmarshal(content, &definition.Object))
		// They stay for the next test: a definition being removed cannot be created.
		if _, err := definitions.Create(t.Context(), definition, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	client := snapshotclient.NewForConfigOrDie(config)
	waittest.Until(t, "the definitions are in force", func() bool {
		_, err := client.SnapshotV1().VolumeSnapshotContents().List(t.Context(), metav1.ListOptions{})
		return err == nil
	})
	limiter := func() workqueue.TypedRateLimiter[string] {
		return workqueue.NewTypedItemExponentialFailureRateLimiter[string](100*time.Millisecond, time.Second)
	}
	all, snapshots := informers.NewSharedInformerFactory(admin, 0), snapshotinformers.NewSharedInformerFactory(client, 0)
	objects := snapshots.Snapshot().V1()
	controller := common.NewCSISnapshotCommonController(client, admin, objects.VolumeSnapshots(), objects.VolumeSnapshotContents(), objects.VolumeSnapshotClasses(),
		nil, nil, nil, all.Core().V1().PersistentVolumeClaims(), all.Core().V1().PersistentVolumes(), nil, snapshotmetrics.NewMetricsManager(), time.Minute,
		limiter(), limiter(), limiter(), limiter(), false, true, false)
	ctx, cancel := context.WithCancel(context.Background())
	all.Start(ctx.Done())
	snapshots.Start(ctx.Done())
	var workers sync.WaitGroup
	done := make(chan struct{})
	go func() { defer close(done); controller.Run(2, ctx.Done(), &workers); workers.Wait() }()
	t.Cleanup(func() { cancel(); <-done; all.Shutdown(); snapshots.Shutdown() })
	class := &snapshotv1.VolumeSnapshotClass{ObjectMeta: metav1.ObjectMeta{Name: snapshotClass}, Driver: names.Driver, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete}
	must.Get(client.SnapshotV1().VolumeSnapshotClasses().Create(t.Context(), class, metav1.CreateOptions{}))(t)
	t.Cleanup(func() {
		_ = client.SnapshotV1().VolumeSnapshotClasses().Delete(context.Background(), snapshotClass, metav1.DeleteOptions{})
	})
	return config
}

func mayNotWriteOthersContents(t *testing.T, admin, limited snapshotclientv1.SnapshotV1Interface) {
	t.Helper()
	handle := "handle"
	content := &snapshotv1.VolumeSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{Name: "others"},
		Spec: snapshotv1.VolumeSnapshotContentSpec{
			Driver: otherDriver, DeletionPolicy: snapshotv1.VolumeSnapshotContentRetain,
			Source:            snapshotv1.VolumeSnapshotContentSource{SnapshotHandle: &handle},
			VolumeSnapshotRef: v1.ObjectReference{Namespace: ours, Name: "others"},
		},
	}
	must.Get(admin.VolumeSnapshotContents().Create(t.Context(), content, metav1.CreateOptions{}))(t)
	patch := func(what string, subresources ...string) error {
		_, err := limited.VolumeSnapshotContents().Patch(t.Context(), "others", types.MergePatchType, []byte(what), metav1.PatchOptions{}, subresources...)
		return err
	}
	waittest.Until(t, "the policy for contents is in force", func() bool { return apierrors.IsInvalid(patch(fmt.Sprintf(annotate, "x"))) })
	for what, err := range map[string]error{
		"change the status of another driver's content": patch(`{"status":{"readyToUse":true}}`, "status"),
		"take a content over":                           patch(`{"spec":{"driver":"` + names.Driver + `"}}`),
	} {
		if !apierrors.IsInvalid(err) {
			t.Errorf("the controller may %s: %v", what, err)
		}
	}
	must.Succeed(t, admin.VolumeSnapshotContents().Delete(t.Context(), "others", metav1.DeleteOptions{}))
	waittest.Until(t, "the other driver's content is gone", func() bool {
		_, err := admin.VolumeSnapshotContents().Get(t.Context(), "others", metav1.GetOptions{})
		if err == nil { // the snapshot controller may protect it
			_, _ = admin.VolumeSnapshotContents().Patch(t.Context(), "others", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		}
		return apierrors.IsNotFound(err)
	})
}

func TestSnapshotsWithTheRightsThatAreShipped(t *testing.T) {
	client := connectToAPIServer(t)
	w := newWorld(t, client)
	w.namespace = ours
	install(t, client)
	for name := range w.nodes {
		w.nodes[name] = lvmdfake.New(name, lvmdfake.Class{Name: "thin", Default: true, Bytes: gib, Thin: true})
	}
	admin := snapshotclient.NewForConfigOrDie(installSnapshots(t, client)).SnapshotV1()
	limited := apiServerAs(t, "carve-controller")
	mayNotWriteOthersContents(t, admin, snapshotclient.NewForConfigOrDie(limited).SnapshotV1())
	storage := w.class(t, nil)
	actWith(t, w, Options{Client: asController(t), Snapshots: snapshotclient.NewForConfigOrDie(limited), Namespace: ours})

	source := w.claim(t, storage, "n2", named("source", nil))
	w.waitBound(t, source)
	takeSnapshot(t, admin.VolumeSnapshots(ours))
	if n := len(w.nodes["n2"].Snapshots()); n != 1 {
		t.Errorf("%d snapshots on the node", n)
	}
	w.delete(t, source)
	w.waitNothingLeft(t, source)

	for name, size := range map[string]string{"same": "100Mi", "larger": "200Mi"} {
		restore := w.claim(t, storage, "", named(name, func(c *v1.PersistentVolumeClaim) {
			restoreOf("s")(c)
			c.Spec.Resources.Requests[v1.ResourceStorage] = resource.MustParse(size)
		}))
		w.waitBound(t, restore)
		if v := w.nodes["n2"].Volumes()[spec.VolumeName(restore)]; v.GetSource().GetSnapshotId() == "" {
			t.Errorf("%s: restored as %v", name, v)
		}
		defer func() { w.delete(t, restore); w.waitNothingLeft(t, restore) }()
	}
	must.Succeed(t, admin.VolumeSnapshots(ours).Delete(t.Context(), "s", metav1.DeleteOptions{}))
	waittest.Until(t, "snapshot is gone", func() bool {
		_, err := admin.VolumeSnapshots(ours).Get(t.Context(), "s", metav1.GetOptions{})
		contents, listErr := admin.VolumeSnapshotContents().List(t.Context(), metav1.ListOptions{})
		return apierrors.IsNotFound(err) && listErr == nil && len(contents.Items) == 0 && len(w.nodes["n2"].Snapshots()) == 0
	})
}
