//go:build apiserver

package controller

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/provision"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func named(name string, change func(*v1.PersistentVolumeClaim)) func(*v1.PersistentVolumeClaim) {
	return func(c *v1.PersistentVolumeClaim) {
		if change != nil {
			change(c)
		}
		c.Name = name
	}
}

func TestASourceThatIsDeletedStaysUntilItsClonesAreMade(t *testing.T) {
	client := connectToAPIServer(t)
	w := newWorld(t, client)
	w.namespace = ours
	install(t, client)
	class := w.class(t, nil)
	entered, release := make(chan struct{}, 8), make(chan struct{})
	var clones atomic.Int32
	w.nodes["n2"].SetHooks(lvmdfake.Hooks{BeforeCreate: func(ctx context.Context, r *lvmdv1.CreateVolumeRequest) error {
		if r.GetSource() == nil {
			return nil
		}
		clones.Add(1)
		entered <- struct{}{}
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}})
	var source, clone *v1.PersistentVolumeClaim
	t.Run("one run of the controller", func(t *testing.T) {
		actWith(t, w, Options{Client: asController(t), Namespace: ours})
		source = w.claim(t, class, "n2", named("source", nil))
		w.waitBound(t, source)
		clone = w.claim(t, class, "n1", named("clone", cloneOf("source")))
		<-entered
		must.Succeed(t, client.CoreV1().PersistentVolumeClaims(ours).Delete(t.Context(), "source", metav1.DeleteOptions{}))
		waittest.Until(t, "others let the source go", func() bool {
			now := w.get(source)
			return now != nil && slices.Equal(now.Finalizers, []string{provision.CloneFinalizer})
		})
	})
	if w.get(source) == nil {
		t.Fatal("the source went while no controller ran")
	}
	actWith(t, w, Options{Client: asController(t), Namespace: ours})
	<-entered
	if now := w.get(source); now == nil || !provision.IsProtected(now) {
		t.Error("the source is not protected after a restart")
	}
	close(release)
	w.waitBound(t, clone)
	waittest.Until(t, "the source is gone", func() bool { return w.get(source) == nil })
	w.waitNothingLeft(t, source)
	if n := len(w.nodes["n2"].Volumes()); n != 1 {
		t.Errorf("%d volumes on the node", n)
	}
	w.delete(t, clone)
	w.waitNothingLeft(t, clone)
}

func TestRefusedCloneIsRetriedWithGrowingPausesOnARealServer(t *testing.T) {
	client := connectToAPIServer(t)
	w := newWorld(t, client)
	w.namespace = ours
	install(t, client)
	class := w.class(t, nil)
	var creates atomic.Int32
	fifth := make(chan time.Time, 1)
	w.nodes["n2"].SetHooks(lvmdfake.Hooks{BeforeCreate: func(_ context.Context, r *lvmdv1.CreateVolumeRequest) error {
		if r.GetSource() == nil {
			return nil
		}
		if creates.Add(1) == 5 {
			fifth <- time.Now()
		}
		return lvmdfake.Error(codes.FailedPrecondition, names.ReasonVolumeInUse, "the source is mounted")
	}})
	actWith(t, w, Options{Client: asController(t), Namespace: ours})
	source := w.claim(t, class, "n2", named("source", nil))
	w.waitBound(t, source)
	began := time.Now()
	clone := w.claim(t, class, "n2", named("clone", cloneOf("source")))
	// Of pauses of 0.2, 0.4, 0.8 and 1.6 s, a late event of the source's binding may cut one short.
	if took := (<-fifth).Sub(began); took < 1400*time.Millisecond {
		t.Errorf("5 attempts took %v, want at least 1.4s", took)
	}
	w.delete(t, clone)
	w.waitNothingLeft(t, clone)
	w.delete(t, source)
	w.waitNothingLeft(t, source)
}

func TestTheSchedulerFollowsASourceToItsNode(t *testing.T) {
	client := connectToAPIServer(t)
	w := newWorld(t, client)
	w.namespace = "default"
	class := w.class(t, nil)
	oursActs(t, w)
	source := w.claim(t, class, "n2", named("source", nil))
	w.waitBound(t, source)
	for name, selected := range map[string]string{"early": "", "late": "n1"} {
		clone := w.claim(t, class, selected, named(name, cloneOf("source")))
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.PodSpec{
			Tolerations: []v1.Toleration{{Operator: v1.TolerationOpExists}},
			Containers:  []v1.Container{{Name: "c", Image: "none"}},
			Volumes:     []v1.Volume{claimVolume(name)},
		}}
		pods := client.CoreV1().Pods(w.namespace)
		waittest.Until(t, name+": the Pod is taken", func() bool { // once the namespace has its service account
			_, err := pods.Create(t.Context(), pod, metav1.CreateOptions{})
			return err == nil
		})
		waittest.Until(t, name+": the Pod has a node", func() bool {
			now, err := pods.Get(t.Context(), name, metav1.GetOptions{})
			return err == nil && now.Spec.NodeName != ""
		})
		now, err := pods.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil || now.Spec.NodeName != "n2" {
			t.Errorf("%s: the Pod is on %q: %v", name, now.Spec.NodeName, err)
		}
		if node := w.get(clone).Annotations[volume.AnnSelectedNode]; node != "n2" {
			t.Errorf("%s: selected node %q", name, node)
		}
		atOnce := int64(0)
		must.Succeed(t, pods.Delete(t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: &atOnce}))
		w.delete(t, clone)
		w.waitNothingLeft(t, clone)
	}
	w.delete(t, source)
	w.waitNothingLeft(t, source)
}
