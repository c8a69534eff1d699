//go:build e2e

package tests

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/carve-csi/carve/e2e/carve"
)

const mebibyte = int64(1 << 20)

// growing is a kind of volume that grows. Least is what must be seen inside of what
// it has then: a file system keeps some for itself.
type growing struct {
	name            string
	block           bool
	from, to, least int64
}

// growthOf makes a StorageClass for every kind, with its name.
func (s *scope) growthOf(prefix string) []growing {
	s.Helper()
	kinds := []growing{
		{name: "ext4", from: 256 * mebibyte, to: 512 * mebibyte, least: 460 * mebibyte},
		{name: "xfs", from: 384 * mebibyte, to: 768 * mebibyte, least: 660 * mebibyte},
		{name: "block", block: true, from: 64 * mebibyte, to: 128 * mebibyte, least: 128 * mebibyte},
	}
	for _, k := range kinds {
		parameters := map[string]string{}
		if !k.block {
			parameters["csi.storage.k8s.io/fstype"] = k.name
		}
		s.storageClass(prefix+k.name, parameters)
	}
	return kinds
}

// wantGrown waits until a claim has grown.
func (s *scope) wantGrown(claim string, k growing) {
	s.Helper()
	s.must(carve.Until(s.ctx, waitTimeout, "the claim of "+k.name+" has grown", func(ctx context.Context) error {
		claim, err := s.CoreV1().PersistentVolumeClaims(s.namespace).Get(ctx, claim, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if got := claim.Status.Capacity.Storage().Value(); got != k.to {
			return fmt.Errorf("the claim's capacity: want %d, got %d; conditions %v", k.to, got, claim.Status.Conditions)
		}
		return nil
	}), "grow")
}

// wantLarger checks what the Pod of a kind's name sees of its volume: the new size,
// and what was written before.
func (s *scope) wantLarger(k growing) {
	s.Helper()
	inside, read := s.fileSystemSize, []string{"cat", mountPath + "/marker"}
	if k.block {
		inside, read = s.deviceSize, []string{"head", "-c", "5", devicePath}
	}
	if got := inside(k.name); got < k.least || got > k.to {
		s.Errorf("the size that the Pod %s sees: want %d to %d, got %d", k.name, k.least, k.to, got)
	}
	if got := strings.TrimSpace(s.exec(k.name, read...)); got != k.name {
		s.Errorf("what %s wrote before: want %q, got %q", k.name, k.name, got)
	}
}

// markBlock has the Pod block write its name, as other Pods do by themselves.
func (s *scope) markBlock() {
	s.Helper()
	s.exec("block", "sh", "-c", "printf block | dd of="+devicePath+" bs=4096 conv=notrunc,sync,fsync 2>/dev/null")
}

// TestVolumesGrowWhileTheirPodsUseThem grows all kinds at once: the kubelet
// looks at a mounted volume's size only about once a minute.
func TestVolumesGrowWhileTheirPodsUseThem(t *testing.T) {
	s := beside(t)
	kinds := s.growthOf("e2e-grow-")
	for _, k := range kinds {
		s.start(k.name, podOptions{class: "e2e-grow-" + k.name, bytes: k.from, block: k.block})
	}
	s.running("ext4", "xfs", "block")
	s.markBlock()
	for _, k := range kinds {
		s.ask(k.name+"-scratch", k.to)
	}
	for _, k := range kinds {
		s.wantGrown(k.name+"-scratch", k)
		s.wantLarger(k)
	}
}

// TestVolumesGrowWhileNoPodUsesThem grows claims between two Pods. The second finds
// the new size from its start on: nothing is waited for once it runs.
func TestVolumesGrowWhileNoPodUsesThem(t *testing.T) {
	s := beside(t)
	kinds := s.growthOf("e2e-idle-")
	for _, k := range kinds {
		o := podOptions{class: "e2e-idle-" + k.name, bytes: k.from, block: k.block}
		s.createClaim(k.name, claimSpec(o))
		s.create(podOf(k.name, k.name, o))
	}
	s.running("ext4", "xfs", "block")
	s.markBlock()
	for _, name := range []string{"ext4", "xfs"} {
		s.exec(name, "sh", "-c", "until [ -s "+mountPath+"/marker ]; do sleep 0.2; done")
	}
	s.remove("ext4", "xfs", "block")
	for _, k := range kinds {
		s.ask(k.name, k.to)
	}
	for _, k := range kinds {
		s.must(carve.Until(s.ctx, waitTimeout, "the volume of "+k.name+" has grown", func(ctx context.Context) error {
			pv, err := s.CoreV1().PersistentVolumes().Get(ctx, s.claimOf(k.name).Spec.VolumeName, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if got := pv.Spec.Capacity.Storage().Value(); got != k.to {
				return fmt.Errorf("the PersistentVolume's capacity: want %d, got %d", k.to, got)
			}
			return nil
		}), "grow")
		s.create(podOf(k.name, k.name, podOptions{block: k.block, script: idle}))
	}
	s.running("ext4", "xfs", "block")
	for _, k := range kinds {
		s.wantLarger(k)
		s.wantGrown(k.name, k)
	}
}

func TestGrowthThatTheNodeHasNoSpaceForIsRefusedWithAnEvent(t *testing.T) {
	s := beside(t)
	s.storageClass("e2e-grow-far", nil)
	s.start("grower", podOptions{class: "e2e-grow-far", bytes: 64 * mebibyte, node: s.nodes[0]})
	s.running("grower")
	s.ask("grower-scratch", 1<<40)
	_, err := s.EventWith(s.ctx, waitTimeout, s.namespace, "PersistentVolumeClaim", "grower-scratch", s.nodes[0])
	s.must(err, "see an event that names the node")
	if got := s.fileSystemSize("grower"); got > 64*mebibyte {
		t.Errorf("the file system's size: want no more than before, %d, got %d", 64*mebibyte, got)
	}
}

// ask changes how much a claim requests.
func (s *scope) ask(claim string, bytes int64) {
	s.Helper()
	patch := fmt.Sprintf(`{"spec":{"resources":{"requests":{%q:%q}}}}`, corev1.ResourceStorage, resource.NewQuantity(bytes, resource.BinarySI))
	_, err := s.CoreV1().PersistentVolumeClaims(s.namespace).Patch(s.ctx, claim, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	s.must(err, "ask for more")
}

// fileSystemSize is the size in bytes of the file system on a Pod's volume.
func (s *scope) fileSystemSize(pod string) int64 {
	s.Helper()
	fields := strings.Fields(s.exec(pod, "stat", "-f", "-c", "%b %S", mountPath))
	if len(fields) != 2 {
		s.Fatalf("stat: want two numbers, got %q", fields)
	}
	return s.number(fields[0]) * s.number(fields[1])
}

// deviceSize is the size in bytes of a Pod's raw block volume.
func (s *scope) deviceSize(pod string) int64 {
	s.Helper()
	return s.number(strings.TrimSpace(s.exec(pod, "blockdev", "--getsize64", devicePath)))
}

func (s *scope) number(text string) int64 {
	s.Helper()
	n, err := strconv.ParseInt(text, 10, 64)
	s.must(err, "read a number")
	return n
}
