//go:build apiserver

package controller

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	schedulerv1 "k8s.io/kube-scheduler/config/v1"
	"sigs.k8s.io/yaml"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/scheduler"
	"github.com/carve-csi/carve/pkg/scheduler/extender"
	"github.com/carve-csi/carve/pkg/waittest"
)

// extended is the scheduler that asks our extender. That of the control plane does not.
const extended = "extended"

// startScheduler runs a second kube-scheduler until the test ends, which is configured with the
// extender at address as the example says.
func startScheduler(t *testing.T, address string, files extender.Files) {
	t.Helper()
	content := must.Get(os.ReadFile("../../deploy/examples/kube-scheduler.yaml"))(t)
	var config schedulerv1.KubeSchedulerConfiguration
	must.Succeed(t, yaml.UnmarshalStrict(content, &config))
	name, no := extended, false
	config.Profiles = []schedulerv1.KubeSchedulerProfile{{SchedulerName: &name}}
	config.LeaderElection.LeaderElect = &no
	config.ClientConnection.Kubeconfig = os.Getenv("KUBECONFIG")
	// The certificate is its own authority, for this name. Who asks shows none.
	config.Extenders[0].URLPrefix = "https://" + address
	config.Extenders[0].TLSConfig = &schedulerv1.ExtenderTLSConfig{ServerName: "example.com", CAFile: files.Certificate}
	content = must.Get(yaml.Marshal(config))(t)
	path := filepath.Join(t.TempDir(), "scheduler.yaml")
	must.Succeed(t, os.WriteFile(path, content, 0o600))
	var log bytes.Buffer
	command := exec.Command(os.Getenv("KUBERNETES"), "kube-scheduler", "--config="+path, "--bind-address=127.0.0.1", "--secure-port=0")
	command.Stdout, command.Stderr = &log, &log
	// It does not outlive a test that is killed.
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must.Succeed(t, command.Start())
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
		if t.Failed() {
			t.Logf("the scheduler's log:\n%s", log.String())
		}
	})
}

// actExtended is actWith with an extender, and a scheduler that asks it.
func actExtended(t *testing.T, w *world, o Options, changes ...harnessOption) {
	t.Helper()
	o.ExtenderListen = freeAddress(t)
	o.ExtenderFiles, _ = servingPair(t)
	c, _ := actOn(t, w, o, changes...)
	serving, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- c.serveExtender(serving) }()
	t.Cleanup(func() {
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	startScheduler(t, o.ExtenderListen, o.ExtenderFiles)
}

// TestTheSchedulerFollowsThePlacement has the real scheduler ask the extender about Pods
// that both nodes could take.
func TestTheSchedulerFollowsThePlacement(t *testing.T) {
	client := connectToAPIServer(t)
	w := newWorld(t, client)
	w.namespace = ours
	install(t, client)
	w.nodes["n2"] = lvmdfake.New("n2", lvmdfake.Class{Name: "local", Default: true, Bytes: 2 * gib})
	const pods, crowd = 3, 20 // more than all that the Pods bring to n1
	for i := range crowd {
		must.Get(w.nodes["n2"].CreateVolume(t.Context(), &lvmdv1.CreateVolumeRequest{
			Name: fmt.Sprintf("crowd-%d", i), RequiredBytes: 4 * mib, Mode: lvmdv1.VolumeMode_VOLUME_MODE_BLOCK}))(t)
	}
	actExtended(t, w, Options{Client: asController(t), Namespace: ours})
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
			// A node without a published capacity is left out before the extender is asked.
			waittest.Until(t, "the capacity of both nodes is published for the class", func() bool {
				list, err := client.StorageV1().CSIStorageCapacities(ours).List(t.Context(), metav1.ListOptions{})
				if err != nil {
					return false
				}
				n := 0
				for i := range list.Items {
					if list.Items[i].StorageClassName == class {
						n++
					}
				}
				return n == len(w.nodes)
			})
			for i := range pods {
				name := fmt.Sprintf("%s-%d", test.placement, i)
				if got := w.placedBy(t, extended, name, class); got != test.want {
					t.Errorf("Pod %s: want it on %s, got %s", name, test.want, got)
				}
			}
		})
	}
	waittest.Until(t, "the volumes go with their Pods", func() bool {
		return len(w.nodes["n1"].Volumes()) == 0 && len(w.nodes["n2"].Volumes()) == crowd
	})
}

// TestTheExtenderComparesCapacityInTheSchedulersPlace has a scheduler that does not look at capacity. The ledger has the
// more preferred node free, and the leader alone knows why nothing is published for it.
func TestTheExtenderComparesCapacityInTheSchedulersPlace(t *testing.T) {
	client := connectToAPIServer(t)
	w := newWorld(t, client)
	w.namespace = ours
	install(t, client)
	compares := func(ctx context.Context, capacity bool) error {
		_, err := client.StorageV1().CSIDrivers().Patch(ctx, names.Driver, types.MergePatchType, fmt.Appendf(nil, `{"spec":{"storageCapacity":%t}}`, capacity), metav1.PatchOptions{})
		return err
	}
	must.Succeed(t, compares(t.Context(), false))
	t.Cleanup(func() { must.Succeed(t, compares(context.Background(), true)) })
	w.nodes["n2"] = lvmdfake.New("n2", lvmdfake.Class{Name: "local", Default: true, Bytes: 2 * gib})
	var c *Controller
	actExtended(t, w, Options{Client: asController(t), Namespace: ours, ExtenderChecksCapacity: true}, func(made *Controller) { c = made })
	class := w.class(t, nil)
	published := func(node string) bool {
		return c.published(node, scheduler.Demand{StorageClass: class, Size: 100 * mib}) == nil
	}
	waittest.Until(t, "the capacity of both nodes is published", func() bool { return published("n1") && published("n2") })
	if got := w.placedBy(t, extended, "first", class); got != "n2" {
		t.Errorf("the first Pod: want it on n2, where most is free, got %s", got)
	}
	c.core.available.Refused("n2", class)
	waittest.Until(t, "nothing is published for n2", func() bool { return !published("n2") })
	if got := w.placedBy(t, extended, "second", class); got != "n1" {
		t.Errorf("the second Pod: want it on n1, got %s", got)
	}
	waittest.Until(t, "the volumes are there", func() bool { return len(w.nodes["n1"].Volumes()) == 1 && len(w.nodes["n2"].Volumes()) == 1 })
}

// TestTheExtenderKeepsAPodWithItsMovableVolume lets the scheduler try another node again and again for a
// Pod whose binding failed, and pins nothing.
func TestTheExtenderKeepsAPodWithItsMovableVolume(t *testing.T) {
	client := connectToAPIServer(t)
	w := newWorld(t, client)
	w.namespace = ours
	install(t, client)
	w.class(t, movable)
	actExtended(t, w, Options{Client: asController(t), Namespace: ours}, func(c *Controller) { c.core.pinGrace = time.Hour })
	allow := refuseBindings(t, client)
	startSet(t, client, true, func(pod *v1.PodSpec) { pod.SchedulerName = extended })
	claim, before, node := w.claimed(t)
	w.takes(t, node, "0")
	waittest.Until(t, "the extender refuses the other node", func() bool {
		pod := must.Get(client.CoreV1().Pods(ours).Get(t.Context(), "db-0", metav1.GetOptions{}))(t)
		if pod.Spec.NodeName != "" || pod.UID != before.UID {
			t.Fatalf("Pod %s is on node %q", pod.UID, pod.Spec.NodeName)
		}
		for _, c := range pod.Status.Conditions {
			if c.Type == v1.PodScheduled && strings.Contains(c.Message, "node "+other(node)+" does not have the volume") {
				return true
			}
		}
		return false
	})
	allow()
	w.takes(t, node, "10000")
	after, pod := w.running(t, claim.Name, "")
	if pod.UID != before.UID || pod.Spec.NodeName != node || w.pv(after).Spec.NodeAffinity != nil {
		t.Errorf("Pod %s on node %s, it was %s; affinity %v", pod.UID, pod.Spec.NodeName, before.UID, w.pv(after).Spec.NodeAffinity)
	}
	w.endSet(t, true, claim, after)
}

// placedBy makes a Pod with an ephemeral volume, and returns the node that a scheduler
// brings it to. The Pod goes with the test.
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
