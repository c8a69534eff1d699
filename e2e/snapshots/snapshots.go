// Package snapshots gives a cluster what snapshots need besides a driver: the
// definitions of their objects, and the snapshot controller.
//
// Both are upstream's and come with a cluster, not with Carve. The definitions are
// those of the Go module of their types, at its version; the controller is run from its
// library, in this process and with the administrator's rights, where a user's cluster
// has it as a Deployment.
package snapshots

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	snapshotscheme "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/scheme"
	snapshotinformers "github.com/kubernetes-csi/external-snapshotter/client/v8/informers/externalversions"
	common "github.com/kubernetes-csi/external-snapshotter/v8/pkg/common-controller"
	"github.com/kubernetes-csi/external-snapshotter/v8/pkg/metrics"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/util/workqueue"

	"github.com/carve-csi/carve/e2e/carve"
	"github.com/carve-csi/carve/e2e/checkout"
)

const (
	module = "github.com/kubernetes-csi/external-snapshotter/client/v8"
	// established bounds the time that the API server takes to serve new definitions.
	established = time.Minute
	// Failures of the controller are tried again after these times.
	firstRetry, lastRetry = 200 * time.Millisecond, 5 * time.Second
	// resync is how often the controller looks at everything again.
	resync  = time.Minute
	workers = 2
)

// Install applies the definitions, which may be there, and returns a client of their
// objects when the API server serves them.
func Install(ctx context.Context, c *carve.Client) (snapshotclient.Interface, error) {
	files, err := definitions(ctx)
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("read a definition: %w", err)
		}
		if _, err := c.Kubectl(ctx, bytes.NewReader(content), "apply", "--server-side", "--filename", "-"); err != nil {
			return nil, err
		}
	}
	config, err := c.Cluster.RESTConfig()
	if err != nil {
		return nil, fmt.Errorf("get the cluster's credentials: %w", err)
	}
	client, err := snapshotclient.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client of snapshots: %w", err)
	}
	return client, carve.Until(ctx, established, "the definitions of snapshots are in force", func(ctx context.Context) error {
		_, err := client.SnapshotV1().VolumeSnapshotContents().List(ctx, metav1.ListOptions{Limit: 1})
		return err
	})
}

// definitions finds the manifests of volume snapshots, without those of groups.
func definitions(ctx context.Context) ([]string, error) {
	root, err := checkout.Root()
	if err != nil {
		return nil, err
	}
	list := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", module)
	list.Dir = filepath.Join(root, "e2e")
	dir, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("find the module %s: %w", module, err)
	}
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(dir)), "config/crd/snapshot.storage.k8s.io_*.yaml"))
	if err == nil && len(files) == 0 {
		err = fs.ErrNotExist
	}
	if err != nil {
		return nil, fmt.Errorf("find the definitions in the module %s: %w", module, err)
	}
	return files, nil
}

// Run runs the snapshot controller until stop is called, which returns when it has ended.
func Run(client kubernetes.Interface, snapshots snapshotclient.Interface) (stop func(), err error) {
	// By this scheme, which is client-go's, the library names objects in Events.
	if err := snapshotscheme.AddToScheme(scheme.Scheme); err != nil {
		return nil, fmt.Errorf("register the objects of snapshots: %w", err)
	}
	limiter := func() workqueue.TypedRateLimiter[string] {
		return workqueue.NewTypedItemExponentialFailureRateLimiter[string](firstRetry, lastRetry)
	}
	core, ours := informers.NewSharedInformerFactory(client, 0), snapshotinformers.NewSharedInformerFactory(snapshots, 0)
	objects := ours.Snapshot().V1()
	controller := common.NewCSISnapshotCommonController(snapshots, client,
		objects.VolumeSnapshots(), objects.VolumeSnapshotContents(), objects.VolumeSnapshotClasses(),
		nil, nil, nil, // no groups
		core.Core().V1().PersistentVolumeClaims(), core.Core().V1().PersistentVolumes(), nil,
		metrics.NewMetricsManager(), resync, limiter(), limiter(), limiter(), limiter(), false, true, false)
	ctx, cancel := context.WithCancel(context.Background())
	core.Start(ctx.Done())
	ours.Start(ctx.Done())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var running sync.WaitGroup
		controller.Run(workers, ctx.Done(), &running)
		running.Wait()
	}()
	return func() {
		cancel()
		<-ended
		core.Shutdown()
		ours.Shutdown()
	}, nil
}
