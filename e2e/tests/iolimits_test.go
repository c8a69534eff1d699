//go:build e2e

package tests

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/carve-csi/carve/e2e/carve"
)

// testIOLimits reads the limits of Pods in the kernel of their node. The component io-limits is installed.
func testIOLimits(t *testing.T) {
	s := begin(t)
	const class, writes = "limited", "carve.csi.local/io-write-bps"
	s.storageClass(class, map[string]string{writes: "4Mi"})
	resources := map[corev1.PodQOSClass]corev1.ResourceRequirements{
		corev1.PodQOSBestEffort: {},
		corev1.PodQOSBurstable:  {Requests: someResources()},
		corev1.PodQOSGuaranteed: {Requests: someResources(), Limits: someResources()},
	}
	for qos, r := range resources {
		p := pod(strings.ToLower(string(qos)), podOptions{class: class, bytes: 4 * extent, node: s.nodes[0]})
		p.Spec.Containers[0].Resources = r
		s.create(p)
	}
	for qos := range resources {
		name := strings.ToLower(string(qos))
		s.running(name)
		s.wantIOMax(name, "wbps=4194304")
	}
	name := strings.ToLower(string(corev1.PodQOSBurstable))
	for _, step := range []struct {
		attributes map[string]string
		want       string
	}{
		{map[string]string{writes: "8Mi", "carve.csi.local/io-read-iops": "100"}, "wbps=8388608 riops=100"},
		{map[string]string{writes: "max"}, ""},
	} {
		attributes := &storagev1.VolumeAttributesClass{
			ObjectMeta: metav1.ObjectMeta{GenerateName: class + "-"}, DriverName: carve.Driver, Parameters: step.attributes,
		}
		attributes, err := s.StorageV1().VolumeAttributesClasses().Create(s.ctx, attributes, metav1.CreateOptions{})
		s.must(err, "make a VolumeAttributesClass")
		s.Cleanup(func() {
			s.must(s.StorageV1().VolumeAttributesClasses().Delete(context.Background(), attributes.Name, metav1.DeleteOptions{}), "delete the VolumeAttributesClass")
		})
		patch := fmt.Appendf(nil, `{"spec":{"volumeAttributesClassName":%q}}`, attributes.Name)
		_, err = s.CoreV1().PersistentVolumeClaims(s.namespace).Patch(s.ctx, name+"-scratch", types.MergePatchType, patch, metav1.PatchOptions{})
		s.must(err, "name the VolumeAttributesClass in the claim")
		s.wantIOMax(name, step.want)
	}
}

func someResources() corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("16Mi")}
}

// wantIOMax waits until the cgroup of a Pod limits the Pod's volume so, or not at all when want is empty.
func (s *scope) wantIOMax(pod, want string) {
	s.Helper()
	p, err := s.CoreV1().Pods(s.namespace).Get(s.ctx, pod, metav1.GetOptions{})
	s.must(err, "get the Pod")
	_, pv, err := s.EphemeralVolume(s.ctx, s.namespace, pod, "scratch")
	s.must(err, "find the volume of "+pod)
	device := strings.TrimSpace(s.node(p.Spec.NodeName, "stat", "--dereference", "--format", "%Hr:%Lr", filepath.Join("/dev/carve", pv.Spec.CSI.VolumeHandle)))
	s.must(carve.Until(s.ctx, waitTimeout, "the limits are in force", func(ctx context.Context) error {
		limits, err := s.NodeExec(ctx, p.Spec.NodeName, "find", "/sys/fs/cgroup", "-path", "*pod"+string(p.UID)+"/io.max", "-exec", "cat", "{}", ";")
		if err != nil {
			return err
		}
		var got string
		for line := range strings.Lines(limits) {
			if number, limits, _ := strings.Cut(strings.TrimSpace(line), " "); number == device {
				got = limits
			}
		}
		var set []string
		for _, limit := range strings.Fields(got) {
			if !strings.HasSuffix(limit, "=max") {
				set = append(set, limit)
			}
		}
		if got := strings.Join(set, " "); got != want {
			return fmt.Errorf("limits of device %s for the Pod: want %q, got %q, of\n%s", device, want, got, limits)
		}
		return nil
	}), "read the limits of "+pod)
}
