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

func TestVolumeGrowsWhileItsPodUsesIt(t *testing.T) {
	for _, c := range []struct {
		name       string
		fs         string
		block      bool
		from, to   int64
		sizeInside func(*scope) int64
		// least is what must be seen inside: a file system keeps some for itself.
		least int64
	}{
		{name: "ext4", fs: "ext4", from: 256 * mebibyte, to: 512 * mebibyte, sizeInside: fileSystemSize, least: 460 * mebibyte},
		{name: "xfs", fs: "xfs", from: 384 * mebibyte, to: 768 * mebibyte, sizeInside: fileSystemSize, least: 660 * mebibyte},
		{name: "block", block: true, from: 64 * mebibyte, to: 128 * mebibyte, sizeInside: deviceSize, least: 128 * mebibyte},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := begin(t)
			class := "e2e-grow-" + c.name
			parameters := map[string]string{}
			if c.fs != "" {
				parameters["csi.storage.k8s.io/fstype"] = c.fs
			}
			s.storageClass(class, parameters)
			s.start("grower", podOptions{class: class, bytes: c.from, block: c.block})
			s.running("grower")
			if c.block {
				s.exec("grower", "sh", "-c", "printf carved-bytes | dd of="+devicePath+" bs=4096 conv=notrunc,sync 2>/dev/null")
			}
			s.ask("grower-scratch", c.to)
			s.must(carve.Until(s.ctx, patience, "the claim has grown", func(ctx context.Context) error {
				claim, err := s.CoreV1().PersistentVolumeClaims(s.namespace).Get(ctx, "grower-scratch", metav1.GetOptions{})
				if err != nil {
					return err
				}
				if got := claim.Status.Capacity.Storage().Value(); got != c.to {
					return fmt.Errorf("the claim's capacity: want %d, got %d; conditions %v", c.to, got, claim.Status.Conditions)
				}
				return nil
			}), "grow")
			if got := c.sizeInside(s); got < c.least || got > c.to {
				t.Errorf("the size that the Pod sees: want %d to %d, got %d", c.least, c.to, got)
			}
			kept := "grower"
			read := []string{"cat", mountPath + "/marker"}
			if c.block {
				kept, read = "carved-bytes", []string{"sh", "-c", "head -c 12 " + devicePath}
			}
			if got := strings.TrimSpace(s.exec("grower", read...)); got != kept {
				t.Errorf("what was written before: want %q, got %q", kept, got)
			}
		})
	}
}

func TestGrowthThatTheNodeHasNoRoomForIsRefusedWithAnEvent(t *testing.T) {
	s := begin(t)
	s.storageClass("e2e-grow-far", nil)
	s.start("grower", podOptions{class: "e2e-grow-far", bytes: 64 * mebibyte, node: s.nodes[0]})
	s.running("grower")
	s.ask("grower-scratch", 1<<40)
	_, err := s.EventWith(s.ctx, patience, s.namespace, "PersistentVolumeClaim", "grower-scratch", s.nodes[0])
	s.must(err, "see an event that names the node")
	if got := fileSystemSize(s); got > 64*mebibyte {
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

// fileSystemSize is the size in bytes of the file system in the Pod grower.
func fileSystemSize(s *scope) int64 {
	s.Helper()
	fields := strings.Fields(s.exec("grower", "stat", "-f", "-c", "%b %S", mountPath))
	if len(fields) != 2 {
		s.Fatalf("stat: want two numbers, got %q", fields)
	}
	return s.number(fields[0]) * s.number(fields[1])
}

// deviceSize is the size in bytes of the device in the Pod grower.
func deviceSize(s *scope) int64 {
	s.Helper()
	return s.number(strings.TrimSpace(s.exec("grower", "blockdev", "--getsize64", devicePath)))
}

func (s *scope) number(text string) int64 {
	s.Helper()
	n, err := strconv.ParseInt(text, 10, 64)
	s.must(err, "read a number")
	return n
}
