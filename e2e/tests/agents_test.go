//go:build e2e

package tests

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/carve-csi/carve/e2e/carve"
)

const agentPods = "app.kubernetes.io/name=carve-node"

// TestRunningPodsNoticeNothingOfNewAgents has Pods write to a file system and to a raw
// block device, plain and encrypted, while the DaemonSet's Pods go, while there are none,
// and while new ones start.
func TestRunningPodsNoticeNothingOfNewAgents(t *testing.T) {
	s := begin(t)
	s.storageClass("e2e-sealed", map[string]string{"carve.csi.local/encryption": "ephemeral"})
	for i, class := range []string{"carve", "e2e-sealed"} {
		s.create(writer(fmt.Sprintf("writer-%d", i), class, s.nodes[i]))
	}
	writers := []string{"writer-0", "writer-1"}
	s.running(writers...)
	s.wantWriting("at first", writers)

	s.Cleanup(func() { s.agentsOn(context.Background(), "null") })
	s.agentsOn(s.ctx, `{"carve.csi.local/e2e": "nowhere"}`)
	s.must(carve.Until(s.ctx, waitTimeout, "there are no agents", func(ctx context.Context) error {
		pods, err := s.CoreV1().Pods(carve.Namespace).List(ctx, metav1.ListOptions{LabelSelector: agentPods})
		if err == nil && len(pods.Items) > 0 {
			err = fmt.Errorf("there are %d", len(pods.Items))
		}
		return err
	}), "remove the agents")
	s.wantWriting("without agents", writers)
	s.agentsOn(s.ctx, "null")
	s.must(s.WaitReady(s.ctx, waitTimeout), "Carve is well again")
	s.wantWriting("after the agents came back", writers)
	s.wantNoWarnings("after the agents came back", agentPods)

	for _, name := range writers {
		if got := s.restarts(name); got != 0 {
			t.Errorf("restarts of %s: want 0, got %d", name, got)
		}
		if got, err := s.Kubectl(s.ctx, nil, "logs", "--namespace", s.namespace, name); err != nil || got != "" {
			t.Errorf("what %s warns of: want nothing, got %q, %v", name, got, err)
		}
	}
}

// writer is a Pod that counts, in a file and on a raw block device, and ends when it
// cannot write to one of them. It pauses, for an emulated node has other things to do.
func writer(name, class, node string) *corev1.Pod {
	const script = "set -e; n=0; while true; do n=$((n+1)); echo $n >> " + mountPath + "/log; sync " + mountPath + "/log; " +
		"printf '%-4096d' $n | dd of=" + devicePath + " bs=4096 iflag=fullblock conv=notrunc,fsync status=none; sleep 0.5; done"
	p := pod(name, podOptions{class: class, bytes: 16 * extent, node: node, script: script})
	raw := pod(name, podOptions{class: class, bytes: extent, block: true})
	raw.Spec.Volumes[0].Name, raw.Spec.Containers[0].VolumeDevices[0].Name = "raw", "raw"
	p.Spec.Volumes = append(p.Spec.Volumes, raw.Spec.Volumes...)
	p.Spec.Containers[0].VolumeDevices = raw.Spec.Containers[0].VolumeDevices
	return p
}

// wantWriting waits until each writer has written to both of its volumes twice more: once
// may have been under way.
func (s *scope) wantWriting(when string, writers []string) {
	s.Helper()
	count := func(ctx context.Context, name string) (file, device int64, err error) {
		output, err := s.PodExec(ctx, s.namespace, name, "sh", "-c", "wc -l < "+mountPath+"/log && head -c 20 "+devicePath)
		if err == nil {
			_, err = fmt.Sscan(output, &file, &device)
		}
		return file, device, err
	}
	for _, name := range writers {
		var file, device int64
		s.must(carve.Until(s.ctx, waitTimeout, name+" has begun to write", func(ctx context.Context) (err error) {
			file, device, err = count(ctx, name)
			return err
		}), "read "+when)
		s.must(carve.Until(s.ctx, waitTimeout, name+" goes on writing", func(ctx context.Context) error {
			f, d, err := count(ctx, name)
			if err == nil && (f < file+2 || d < device+2) {
				err = fmt.Errorf("%d lines and the number %d before, %d and %d now", file, device, f, d)
			}
			return err
		}), "write "+when)
	}
}

// agentsOn has the node agents run on the nodes with these labels, in JSON; null is all.
func (s *scope) agentsOn(ctx context.Context, labels string) {
	s.Helper()
	_, err := s.AppsV1().DaemonSets(carve.Namespace).Patch(ctx, "carve-node", types.MergePatchType,
		[]byte(`{"spec":{"template":{"spec":{"nodeSelector":`+labels+`}}}}`), metav1.PatchOptions{})
	s.must(err, "choose the nodes of the agents")
}

// TestANodeNeedsNoToolsAndNoWritableConfiguration takes LVM from a node and has its /etc
// read-only, as it is on hosts that are images: an agent that starts there makes and
// removes volumes.
func TestANodeNeedsNoToolsAndNoWritableConfiguration(t *testing.T) {
	s := begin(t)
	node := s.nodes[1]
	const tools = "for tool in lvm dmsetup pdata_tools cryptsetup mkfs.ext4 mkfs.xfs; do "
	s.Cleanup(func() {
		// Without --lazy it fails while a process reads there.
		_, err := s.NodeExec(context.Background(), node, "sh", "-c", "umount --lazy /etc; [ ! -e /etc/lvm.away ] || mv /etc/lvm.away /etc/lvm && "+
			"cd /usr/sbin && "+tools+"[ ! -e $tool.away ] || mv $tool.away $tool || exit 1; done")
		s.must(err, "give "+node+" back what it had")
	})
	s.node(node, "sh", "-c", "cd /usr/sbin && "+tools+"mv $tool $tool.away || exit 1; done; mv /etc/lvm /etc/lvm.away && "+
		"mount --bind /etc /etc && mount -o remount,bind,ro /etc && ! lvs && ! dmsetup info && ! touch /etc/written")

	s.must(s.CoreV1().Pods(carve.Namespace).Delete(s.ctx, s.agentOf(node).Name, metav1.DeleteOptions{}), "delete the agent of "+node)
	s.must(s.WaitReady(s.ctx, waitTimeout), "Carve is well again")

	s.storageClass("e2e-bare-thin", map[string]string{"carve.csi.local/device-class": "thin"})
	s.storageClass("e2e-bare-sealed", map[string]string{"carve.csi.local/encryption": "ephemeral", "csi.storage.k8s.io/fstype": "xfs"})
	s.start("plain", podOptions{bytes: 64 * extent, node: node})
	s.start("thin", podOptions{class: "e2e-bare-thin", bytes: 64 * extent, node: node})
	s.start("sealed", podOptions{class: "e2e-bare-sealed", bytes: 384 * mebibyte, node: node})
	s.running("plain", "thin", "sealed")
	s.remove("plain", "thin", "sealed")
	s.must(carve.Until(s.ctx, waitTimeout, "the volumes are gone", func(context.Context) error {
		if listed := s.lvmd(node, "volumes"); strings.Contains(listed, s.namespace) {
			return fmt.Errorf("there are\n%s", listed)
		}
		return nil
	}), "remove the volumes")
}

// wantNoWarnings checks that the kubelets warned of nothing about the Pods of Carve that run, except
// of probes that failed before the Pod was ready: how many do depends on how busy the node is.
func (s *scope) wantNoWarnings(when, selector string) {
	s.Helper()
	pods, err := s.ProgramPods(s.ctx, selector)
	s.must(err, "list the Pods")
	events, err := s.CoreV1().Events(carve.Namespace).List(s.ctx, metav1.ListOptions{FieldSelector: "type=" + corev1.EventTypeWarning})
	s.must(err, "list the Events")
	for _, pod := range pods {
		for _, e := range events.Items {
			if e.InvolvedObject.UID != pod.UID {
				continue
			}
			text := fmt.Sprintf("%s: %s of Pod %s, %s, %d times: %s", when, e.Reason, pod.Name, e.InvolvedObject.FieldPath, e.Count, e.Message)
			if e.Reason != "Unhealthy" || e.LastTimestamp.After(readySince(&pod).Time) {
				s.Error(text)
				continue
			}
			s.Log(text)
		}
	}
}

// readySince is when a Pod became ready.
func readySince(pod *corev1.Pod) metav1.Time {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.LastTransitionTime
		}
	}
	return metav1.Time{}
}
