package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/e2e/carve"
)

const (
	hungNode = "hung"
	// hungTimeout bounds what follows when it hangs: longer than a controller waits for any call.
	hungTimeout = 8 * time.Minute
)

// hung is what followed when a node hung: its process stopped, while the kernel kept its connections.
type hung struct {
	withdrawn   time.Duration // until its capacity was published as zero, or not at all
	rescheduled time.Duration // until a Pod that was sent there had its volume on another node
}

// hang adds a node that is a process of its own, stops that, and has a Pod sent there. The node stays so.
func (c *cluster) hang(ctx context.Context) (h hung, err error) {
	tokens := filepath.Join(c.dir, "tokens-"+hungNode)
	if err := os.Mkdir(tokens, 0o700); err != nil {
		return h, fmt.Errorf("make a folder: %w", err)
	}
	if err = c.addNode(ctx, hungNode, tokens); err != nil {
		return h, err
	}
	process, err := c.startNodes("fakefleet-"+hungNode, tokens)
	if err != nil {
		return h, err
	}
	offered := func(ctx context.Context) error { return c.offered(ctx, hungNode) }
	if err := carve.Until(ctx, waitTimeout, "the node that will hang has capacity", offered); err != nil {
		return h, err
	}
	namespace, err := c.makeNamespace(ctx, "hung-")
	if err != nil {
		return h, err
	}
	if err := process.Signal(syscall.SIGSTOP); err != nil {
		return h, fmt.Errorf("stop the node's process: %w", err)
	}
	pod := c.pod(0, volumeBytes)
	pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{
		Weight: 100, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{hungNode}}}}}}}}
	begin := time.Now()
	if _, err := c.client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return h, fmt.Errorf("create the Pod that is sent to the node that hangs: %w", err)
	}
	err = carve.Until(ctx, waitTimeout, "the Pod is sent to the node that hangs", func(ctx context.Context) error {
		claim, err := c.client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, pod.Name+"-"+volumeName, metav1.GetOptions{})
		if node := claim.GetAnnotations()[selectedNode]; err == nil && node != hungNode {
			err = fmt.Errorf("its claim's selected node is %q", node)
		}
		return err
	})
	if err != nil {
		return h, err
	}
	return h, carve.Until(ctx, hungTimeout, "the node that hangs has no capacity, and the Pod is on another one", func(ctx context.Context) error {
		if h.withdrawn == 0 && errors.Is(offered(ctx), errNotOffered) {
			h.withdrawn = time.Since(begin)
		}
		if h.rescheduled == 0 {
			placed, err := c.client.CoreV1().Pods(namespace).Get(ctx, pod.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if node := placed.Spec.NodeName; node != "" && node != hungNode {
				h.rescheduled = time.Since(begin)
			}
		}
		if h.withdrawn == 0 || h.rescheduled == 0 {
			return fmt.Errorf("capacity withdrawn: %t, Pod elsewhere: %t", h.withdrawn > 0, h.rescheduled > 0)
		}
		return nil
	})
}

var errNotOffered = errors.New("no capacity is published but zero")

// offered returns an error unless a node has capacity that is not zero.
func (c *cluster) offered(ctx context.Context, node string) error {
	list, err := c.client.StorageV1().CSIStorageCapacities(carveNamespace).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err == nil && !slices.ContainsFunc(list.Items, func(one storagev1.CSIStorageCapacity) bool {
		return one.NodeTopology.MatchLabels[topologyKey] == node && !one.Capacity.IsZero()
	}) {
		err = errNotOffered
	}
	return err
}
