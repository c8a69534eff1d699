package carve

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/e2e/checkout"
	"github.com/carve-csi/carve/e2e/image"
)

// installTimeout bounds the wait for Carve to be ready on emulated nodes.
const installTimeout = 6 * time.Minute

// workloadAliases are the names under which the examples ask for the images
// that the harness supplies: Debian's busybox and memcached in one image.
var workloadAliases = []string{"docker.io/library/busybox:1.36", "docker.io/library/memcached:1.6"}

// Install builds Carve's image from this tree, loads it into every node and
// applies what users apply, deploy/, but for the image's name. It returns when
// WaitReady does. Installing again replaces the image and restarts the programs.
func (c *Client) Install(ctx context.Context, progress io.Writer) error {
	root, err := checkout.Root()
	if err != nil {
		return err
	}
	if err := c.LoadImages(ctx, progress); err != nil {
		return err
	}
	_, err = c.AppsV1().Deployments(Namespace).Get(ctx, "carve-controller", metav1.GetOptions{})
	again := err == nil
	fmt.Fprintln(progress, "kubectl apply -k e2e/deploy")
	if _, err := c.Kubectl(ctx, nil, "apply", "--kustomize", filepath.Join(root, "e2e", "deploy")); err != nil {
		return err
	}
	if again {
		// The image's name is the same as before, so nothing else would show
		// Kubernetes that there is a new one behind it.
		fmt.Fprintln(progress, "restarting what runs of an earlier installation")
		if _, err := c.Kubectl(ctx, nil, "rollout", "restart", "--namespace", Namespace, "deployment/carve-controller", "daemonset/carve-node"); err != nil {
			return err
		}
	}
	fmt.Fprintln(progress, "waiting until every node has published its capacity")
	return c.WaitReady(ctx, installTimeout)
}

// LoadImages builds Carve's image from this tree, and loads it and what Pods run into every node.
func (c *Client) LoadImages(ctx context.Context, progress io.Writer) error {
	fmt.Fprintln(progress, "building Carve's image")
	carveImage, err := image.Carve(ctx, image.Options{Progress: progress})
	if err != nil {
		return fmt.Errorf("build Carve's image: %w", err)
	}
	workloadImage, err := image.Workload(ctx, image.Options{Progress: progress})
	if err != nil {
		return fmt.Errorf("build the workload image: %w", err)
	}
	fmt.Fprintln(progress, "loading images into the nodes")
	if err := c.Cluster.LoadImage(ctx, carveImage); err != nil {
		return fmt.Errorf("load Carve's image: %w", err)
	}
	if err := c.Cluster.LoadImage(ctx, workloadImage, workloadAliases...); err != nil {
		return fmt.Errorf("load the workload image: %w", err)
	}
	return nil
}

// LoadScheduler builds carve-scheduler's image from this tree, and loads it into every node.
func (c *Client) LoadScheduler(ctx context.Context, progress io.Writer) error {
	path, err := image.Scheduler(ctx, image.Options{Progress: progress})
	if err != nil {
		return fmt.Errorf("build carve-scheduler's image: %w", err)
	}
	if err := c.Cluster.LoadImage(ctx, path); err != nil {
		return fmt.Errorf("load carve-scheduler's image: %w", err)
	}
	return nil
}

// StorageClasses are those of which every node publishes capacity.
func (c *Client) StorageClasses() []string {
	if c.Cluster.PersistentMemory() {
		return []string{"carve", "carve-pmem"}
	}
	return []string{"carve"}
}

// WaitReady waits until Carve is whole: every program ready, none on its way out,
// and each node's capacity published.
func (c *Client) WaitReady(ctx context.Context, timeout time.Duration) error {
	return Until(ctx, timeout, "Carve is ready", func(ctx context.Context) error {
		deployment, err := c.AppsV1().Deployments(Namespace).Get(ctx, "carve-controller", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if deployment.Status.ObservedGeneration < deployment.Generation || deployment.Status.ReadyReplicas != *deployment.Spec.Replicas || deployment.Status.UpdatedReplicas != *deployment.Spec.Replicas {
			return fmt.Errorf("%d of %d controllers are ready", deployment.Status.ReadyReplicas, *deployment.Spec.Replicas)
		}
		agents, err := c.AppsV1().DaemonSets(Namespace).Get(ctx, "carve-node", metav1.GetOptions{})
		if err != nil {
			return err
		}
		// The Pods that a rollout or an eviction replaces linger, and answer no more.
		pods, err := c.ProgramPods(ctx, "")
		if err != nil {
			return err
		}
		for _, pod := range pods {
			if pod.DeletionTimestamp != nil || !podReady(&pod) {
				return fmt.Errorf("the Pod %s is %s, ready %v, being deleted since %v", pod.Name, pod.Status.Phase, podReady(&pod), pod.DeletionTimestamp)
			}
		}
		nodes := c.Cluster.NodeNames()
		if agents.Status.ObservedGeneration < agents.Generation || int(agents.Status.NumberReady) != len(nodes) || int(agents.Status.UpdatedNumberScheduled) != len(nodes) {
			return fmt.Errorf("%d of %d node agents are ready", agents.Status.NumberReady, len(nodes))
		}
		for _, node := range nodes {
			for _, class := range c.StorageClasses() {
				if _, err := c.Capacity(ctx, node, class); err != nil {
					return err
				}
			}
			registered, err := c.StorageV1().CSINodes().Get(ctx, node, metav1.GetOptions{})
			if err != nil {
				return err
			}
			names := []string{}
			for _, driver := range registered.Spec.Drivers {
				names = append(names, driver.Name)
			}
			if !slices.Contains(names, Driver) {
				return fmt.Errorf("the kubelet of %s knows the drivers %q only", node, names)
			}
		}
		return nil
	})
}

// ProgramPods lists the Pods that run, or are to run, Carve's programs: those
// that match the label selector, without the ones that have failed or ended for
// good, which stay behind when a kubelet admits a Pod no more.
func (c *Client) ProgramPods(ctx context.Context, selector string) ([]corev1.Pod, error) {
	list, err := c.CoreV1().Pods(Namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list.Items, func(pod corev1.Pod) bool {
		return pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
	}), nil
}

// Diagnose prints what a person would look at when Carve is not well.
func (c *Client) Diagnose(ctx context.Context, out io.Writer) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	show := func(args ...string) {
		output, err := c.Kubectl(ctx, nil, args...)
		fmt.Fprintf(out, "--- kubectl %s\n%s", strings.Join(args, " "), output)
		if err != nil {
			fmt.Fprintln(out, err)
		}
	}
	show("get", "nodes", "--output", "wide")
	show("get", "pods", "--all-namespaces", "--output", "wide")
	show("get", "events", "--namespace", Namespace, "--sort-by=.lastTimestamp")
	show("get", "csistoragecapacities", "--all-namespaces", "--output", "wide")
	pods, err := c.CoreV1().Pods(Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		fmt.Fprintln(out, err)
		return
	}
	for _, pod := range pods.Items {
		for _, container := range pod.Spec.Containers {
			show("logs", "--namespace", Namespace, pod.Name, "--container", container.Name, "--tail", "60")
			if restarted(&pod, container.Name) {
				show("logs", "--namespace", Namespace, pod.Name, "--container", container.Name, "--tail", "30", "--previous")
			}
		}
	}
}

func restarted(pod *corev1.Pod, container string) bool {
	for _, status := range pod.Status.ContainerStatuses {
		if status.Name == container {
			return status.RestartCount > 0
		}
	}
	return false
}
