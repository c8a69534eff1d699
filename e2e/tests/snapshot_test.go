//go:build e2e

package tests

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"

	"github.com/carve-csi/carve/e2e/carve"
	"github.com/carve-csi/carve/e2e/snapshots"
)

// snapshotting gives the cluster snapshots until the test has been cleaned up. To be
// called before begin: what the test leaves behind needs the controller to go.
func snapshotting(t *testing.T) snapshotclient.Interface {
	t.Helper()
	objects, err := snapshots.Install(t.Context(), client)
	if err != nil {
		t.Fatalf("install the definitions of snapshots: %v", err)
	}
	stop, err := snapshots.Run(client, objects)
	if err != nil {
		t.Fatalf("run the snapshot controller: %v", err)
	}
	t.Cleanup(stop)
	return objects
}

// TestSnapshotsAndClonesOfAVolumeInUse takes both while a Pod writes, and has each
// outlive what it was made of.
func TestSnapshotsAndClonesOfAVolumeInUse(t *testing.T) {
	objects := snapshotting(t)
	s := begin(t)
	s.storageClass("carve-thin", map[string]string{"carve.csi.local/device-class": "thin", "csi.storage.k8s.io/fstype": "ext4"})
	s.claim("data", "carve-thin", 256*mebibyte)
	s.startWith("writer", "data", "echo before > "+mountPath+"/before && exec sleep 1000000")
	s.running("writer")
	node := s.nodeOf("writer")
	s.must(carve.Until(s.ctx, waitTimeout, "the Pod has written", func(ctx context.Context) error {
		_, err := s.PodExec(ctx, s.namespace, "writer", "cat", mountPath+"/before")
		return err
	}), "write")

	// The claim restored is in the example, too, and waits until the snapshot is ready.
	s.must(s.ApplyFile(s.ctx, s.namespace, "../../deploy/examples/snapshot.yaml"), "apply the example")
	taken := objects.SnapshotV1().VolumeSnapshots(s.namespace)
	content := ""
	s.must(carve.Until(s.ctx, waitTimeout, "the snapshot is ready", func(ctx context.Context) error {
		snapshot, err := taken.Get(ctx, "before-upgrade", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if status := snapshot.Status; status == nil || status.ReadyToUse == nil || !*status.ReadyToUse || status.BoundVolumeSnapshotContentName == nil {
			return fmt.Errorf("its status is %+v", status)
		}
		content = *snapshot.Status.BoundVolumeSnapshotContentName
		return nil
	}), "take a snapshot")
	s.exec("writer", "sh", "-c", "echo after > "+mountPath+"/after")

	s.must(s.ApplyFile(s.ctx, s.namespace, "../../deploy/examples/clone.yaml"), "apply the example")
	s.startWith("cloned", "copy", idle)
	s.running("cloned")
	if got, want := s.list("cloned"), "after before"; got != want {
		t.Errorf("files in the clone: want %q, got %q", want, got)
	}

	// What it was taken of goes first.
	source := s.claimOf("data").Spec.VolumeName
	s.remove("writer")
	s.must(s.CoreV1().PersistentVolumeClaims(s.namespace).Delete(s.ctx, "data", metav1.DeleteOptions{}), "delete the source")
	s.gone("the source's PersistentVolume", func(ctx context.Context) error {
		_, err := s.CoreV1().PersistentVolumes().Get(ctx, source, metav1.GetOptions{})
		return err
	})
	s.startWith("restored", "restored", idle)
	s.running("restored")
	if got, want := s.list("restored"), "before"; got != want {
		t.Errorf("files in what was restored: want %q, got %q", want, got)
	}
	if got, least := s.fileSystemSize("restored"), 400*mebibyte; got < least {
		t.Errorf("the file system of a claim that is restored larger: want at least %d bytes, got %d", least, got)
	}
	for _, pod := range []string{"cloned", "restored"} {
		if got := s.nodeOf(pod); got != node {
			t.Errorf("%s: want it on %s, where its data is, got %s", pod, node, got)
		}
	}

	s.must(taken.Delete(s.ctx, "before-upgrade", metav1.DeleteOptions{}), "delete the snapshot")
	s.gone("the snapshot's content", func(ctx context.Context) error {
		_, err := objects.SnapshotV1().VolumeSnapshotContents().Get(ctx, content, metav1.GetOptions{})
		return err
	})
	if got, want := s.exec("restored", "cat", mountPath+"/before"), "before\n"; got != want {
		t.Errorf("what was restored, after the snapshot is gone: want %q, got %q", want, got)
	}
	s.must(objects.SnapshotV1().VolumeSnapshotClasses().Delete(s.ctx, "carve", metav1.DeleteOptions{}), "delete the class of snapshots")
}

// claim asks for a volume with a file system.
func (s *scope) claim(name, class string, bytes int64) {
	s.Helper()
	s.createClaim(name, claimSpec(podOptions{class: class, bytes: bytes}))
}

// startWith creates a Pod that uses a claim.
func (s *scope) startWith(name, claim, script string) {
	s.Helper()
	s.create(podOf(name, claim, podOptions{script: script}))
}

// list returns the names of what is on a Pod's volume.
func (s *scope) list(pod string) string {
	s.Helper()
	names := strings.Fields(s.exec(pod, "ls", mountPath))
	return strings.TrimSpace(strings.TrimSuffix(strings.Join(names, " "), "lost+found"))
}

// gone waits until get finds nothing.
func (s *scope) gone(what string, get func(context.Context) error) {
	s.Helper()
	s.must(carve.Until(s.ctx, waitTimeout, what+" is gone", func(ctx context.Context) error {
		err := get(ctx)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(errors.New("it is there"), err)
	}), "wait")
}
