package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/e2e/carve"
	"github.com/carve-csi/carve/e2e/checkout"
)

const (
	namespace   = "default"
	pod         = "scratch"
	volume      = "scratch"
	class       = "carve"
	size        = int64(1 << 30)
	waitTimeout = 4 * time.Minute
)

// scenario is what the demo shows after the installation.
type scenario struct {
	client *carve.Client
	nodes  []string
}

func (s *scenario) run(ctx context.Context) error {
	before, err := s.showCapacity(ctx, "3. What each node offers, as the scheduler sees it")
	if err != nil {
		return err
	}
	if err := s.runPod(ctx); err != nil {
		return err
	}
	home, handle, err := s.showVolume(ctx)
	if err != nil {
		return err
	}
	after, err := s.waitCapacity(ctx, home, before[home]-size)
	if err != nil {
		return err
	}
	title("6. The published capacity of %s shrank by exactly the volume", home)
	fmt.Printf("  %s → %s\n", bytes(before[home]), bytes(after))
	return s.removePod(ctx, home, handle, before[home])
}

func (s *scenario) showCapacity(ctx context.Context, heading string) (map[string]int64, error) {
	title("%s", heading)
	offered := map[string]int64{}
	for _, node := range s.nodes {
		for _, class := range s.client.StorageClasses() {
			object, err := s.client.Capacity(ctx, node, class)
			if err != nil {
				return nil, err
			}
			fmt.Printf("  %-10s StorageClass %-11s %10s free, largest volume %s\n",
				node, class, bytes(object.Capacity.Value()), bytes(object.MaximumVolumeSize.Value()))
		}
		free, err := s.client.CapacityBytes(ctx, node, class)
		if err != nil {
			return nil, err
		}
		offered[node] = free
	}
	return offered, nil
}

func (s *scenario) runPod(ctx context.Context) error {
	root, err := checkout.Root()
	if err != nil {
		return err
	}
	manifest := filepath.Join(root, "deploy", "examples", "ephemeral-pod.yaml")
	title("4. A Pod with six lines of storage: kubectl apply -f deploy/examples/ephemeral-pod.yaml")
	content, err := os.ReadFile(manifest)
	if err != nil {
		return err
	}
	for _, line := range strings.Split(strings.TrimSpace(string(content)), "\n") {
		fmt.Println("  │", line)
	}
	started := time.Now()
	if err := s.client.ApplyFile(ctx, namespace, manifest); err != nil {
		return err
	}
	if err := s.client.PodsRunning(ctx, waitTimeout, namespace, pod); err != nil {
		return err
	}
	fmt.Printf("  running after %v\n", time.Since(started).Round(100*time.Millisecond))
	written, err := s.client.PodExec(ctx, namespace, pod, "cat", "/scratch/started")
	if err != nil {
		return err
	}
	if strings.TrimSpace(written) == "" {
		return errors.New("the Pod read back nothing of what it wrote")
	}
	fmt.Printf("  the Pod wrote to its volume and read back: %s", written)
	return nil
}

func (s *scenario) showVolume(ctx context.Context) (node, handle string, err error) {
	title("5. What belongs to it")
	claim, pv, err := s.client.EphemeralVolume(ctx, namespace, pod, volume)
	if err != nil {
		return "", "", err
	}
	object, err := s.client.CoreV1().Pods(namespace).Get(ctx, pod, metav1.GetOptions{})
	if err != nil {
		return "", "", err
	}
	node, handle = object.Spec.NodeName, pv.Spec.CSI.VolumeHandle
	for _, args := range [][]string{
		{"get", "pod", pod, "--output", "wide"},
		{"get", "pvc", claim.Name},
		{"get", "pv", pv.Name},
		{"get", "pv", pv.Name, "--output", "jsonpath={.spec.nodeAffinity.required}"},
	} {
		output, err := s.client.Kubectl(ctx, nil, args...)
		if err != nil {
			return "", "", err
		}
		show("kubectl "+strings.Join(args, " "), output)
	}
	if !strings.Contains(fmt.Sprint(pv.Spec.NodeAffinity), node) {
		return "", "", fmt.Errorf("the PersistentVolume is not pinned to %s, where the Pod runs: %v", node, pv.Spec.NodeAffinity)
	}
	volumes, err := s.client.LogicalVolumes(ctx, node)
	if err != nil {
		return "", "", err
	}
	for _, v := range volumes {
		if v.Name == handle {
			show("on "+node+": lvs -o lv_name,vg_name,lv_size,lv_tags", fmt.Sprintf("%s in %s, %s, tagged\n  %s",
				v.Name, v.VolumeGroup, bytes(v.SizeBytes), strings.Join(v.Tags, "\n  ")))
			return node, handle, nil
		}
	}
	return "", "", fmt.Errorf("%s has no logical volume %s", node, handle)
}

func (s *scenario) waitCapacity(ctx context.Context, node string, want int64) (int64, error) {
	var got int64
	err := carve.Until(ctx, waitTimeout, "the published capacity follows", func(ctx context.Context) error {
		var err error
		got, err = s.client.CapacityBytes(ctx, node, class)
		if err == nil && got != want {
			err = fmt.Errorf("capacity of %s: want %d, got %d", node, want, got)
		}
		return err
	})
	return got, err
}

func (s *scenario) removePod(ctx context.Context, node, handle string, capacity int64) error {
	title("7. Delete the Pod, and all of it goes: kubectl delete pod %s", pod)
	_, pv, err := s.client.EphemeralVolume(ctx, namespace, pod, volume)
	if err != nil {
		return err
	}
	if _, err := s.client.Kubectl(ctx, nil, "delete", "pod", pod); err != nil {
		return err
	}
	err = carve.Until(ctx, waitTimeout, "claim and PersistentVolume are gone", func(ctx context.Context) error {
		_, err := s.client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, pod+"-"+volume, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return errors.Join(errors.New("the claim is still there"), err)
		}
		_, err = s.client.CoreV1().PersistentVolumes().Get(ctx, pv.Name, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return errors.Join(errors.New("the PersistentVolume is still there"), err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	fmt.Println("  claim gone, PersistentVolume gone")
	got, err := s.waitCapacity(ctx, node, capacity)
	if err != nil {
		return err
	}
	fmt.Printf("  capacity of %s is back at %s, to the byte\n", node, bytes(got))
	volumes, err := s.client.LogicalVolumes(ctx, node)
	if err != nil {
		return err
	}
	for _, v := range volumes {
		if v.Name == handle {
			return fmt.Errorf("the logical volume %s is still on %s", handle, node)
		}
	}
	fmt.Printf("  logical volume gone; %s has %d left\n", node, len(volumes))
	return nil
}

func title(format string, args ...any) {
	fmt.Printf("\n\033[1m"+format+"\033[0m\n", args...)
}

func show(command, output string) {
	fmt.Printf("  $ %s\n", command)
	for _, line := range strings.Split(strings.TrimRight(output, "\n"), "\n") {
		fmt.Println("   ", line)
	}
}

// bytes prints a size in MiB, which every extent is a multiple of.
func bytes(n int64) string {
	return fmt.Sprintf("%d MiB", n>>20)
}
