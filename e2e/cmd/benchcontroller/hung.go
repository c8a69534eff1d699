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
	"k8s.io/apimachinery/pkg/types"

	"github.com/carve-csi/carve/e2e/carve"
)

const hungNode = "hung"

// hung is what followed when a node hung: its process stopped, while the kernel kept its connections.
type hung struct {
	withdrawn time.Duration // from a Pod's being sent there until its capacity was published as zero, or not at all
	// rescheduled is from the taint out-of-service, without which the node may have made the Pod's
	// volume, until the Pod had another node.
	rescheduled time.Duration
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
	pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: preferring(hungNode, nodeName(0))}
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
	err = carve.Until(ctx, waitTimeout, "the node that hangs has no capacity", func(ctx context.Context) error {
		if err := c.offered(ctx, hungNode); !errors.Is(err, errNotOffered) {
			return errors.Join(err, errors.New("it has capacity"))
		}
		return nil
	})
	if err != nil {
		return h, err
	}
	h.withdrawn = time.Since(begin)
	begin = time.Now()
	taint := []byte(`{"spec":{"taints":[{"key":"node.kubernetes.io/out-of-service","value":"nodeshutdown","effect":"NoExecute"}]}}`)
	if _, err := c.client.CoreV1().Nodes().Patch(ctx, hungNode, types.StrategicMergePatchType, taint, metav1.PatchOptions{}); err != nil {
		return h, fmt.Errorf("taint the node that hangs: %w", err)
	}
	err = carve.Until(ctx, waitTimeout, "the Pod is on another node", func(ctx context.Context) error {
		placed, err := c.client.CoreV1().Pods(namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if err == nil && (placed.Spec.NodeName == "" || placed.Spec.NodeName == hungNode) {
			err = fmt.Errorf("its node is %q", placed.Spec.NodeName)
		}
		return err
	})
	h.rescheduled = time.Since(begin)
	return h, err
}

// preferring allows two nodes, of which the scheduler takes the first if it can. Of more it would
// look only at some.
func preferring(first, second string) *corev1.NodeAffinity {
	among := func(nodes ...string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: nodes},
		}}
	}
	return &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution:  &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{among(first, second)}},
		PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Weight: 100, Preference: among(first)}},
	}
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
