package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/carve-csi/carve/e2e/coredns"
	"github.com/carve-csi/carve/e2e/kube"
)

// readyBound bounds the time from a node's admission to its being Ready, and the
// time until DNS is served, on a busy host.
const readyBound = 5 * time.Minute

// bootID is a file whose content is another one after each start of a machine.
const bootID = "/proc/sys/kernel/random/boot_id"

// upNodes makes the machines nodes of the cluster, starts the cluster's DNS and
// waits for both.
func (c *Cluster) upNodes(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(c.controlPlane.RESTConfig())
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	group, together := errgroup.WithContext(ctx)
	for _, n := range c.nodes {
		group.Go(func() error { return c.admit(together, client, n) })
	}
	group.Go(func() error {
		var output bytes.Buffer
		if err := c.Kubectl(together, bytes.NewReader(coredns.Manifests), nil, &output, "apply", "--filename", "-"); err != nil {
			return fmt.Errorf("apply the DNS' objects: %w: %s", err, output.String())
		}
		return nil
	})
	if err := group.Wait(); err != nil {
		return err
	}
	if err := c.controlPlane.StartComponent(ctx, kube.Proxy); err != nil {
		return err
	}
	return c.waitDNS(ctx, client)
}

// admit gives a machine its Node object and the credentials that its kubelet waits
// for, and returns when the node is Ready. The object comes first, and from here,
// so that the node has the Pod subnet that all others have a route to.
func (c *Cluster) admit(ctx context.Context, client kubernetes.Interface, n node) error {
	ctx, cancel := context.WithTimeout(ctx, readyBound)
	defer cancel()
	object := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.name(), Labels: map[string]string{
			corev1.LabelHostname: n.name(), corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
		}},
		Spec: corev1.NodeSpec{PodCIDR: n.podSubnet().String(), PodCIDRs: []string{n.podSubnet().String()}},
	}
	_, err := client.CoreV1().Nodes().Create(ctx, object, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("make the Node object of %s: %w", n.name(), err)
	}
	if err := c.hand(ctx, n); err != nil {
		return fmt.Errorf("hand %s its credentials: %w", n.name(), err)
	}
	if err := c.waitReady(ctx, client, n); err != nil {
		return err
	}
	c.progress.say("%s is Ready", n.name())
	return nil
}

// hand gives a machine its credentials unless it has them. They are in its memory
// only, so it asks for new ones at every start.
func (c *Cluster) hand(ctx context.Context, n node) error {
	agent := c.client(n)
	if _, err := agent.Output(ctx, "test", "-e", kubeletKubeconfig); err == nil {
		return nil
	}
	kubelet, err := c.controlPlane.NodeKubeconfig(n.name())
	if err != nil {
		return err
	}
	for _, file := range []struct {
		path    string
		content []byte
	}{
		{clientAuthority, c.controlPlane.CA()},
		{kubeletKubeconfig, kubelet},
	} {
		if err := agent.Put(ctx, file.path, 0o600, bytes.NewReader(file.content)); err != nil {
			return err
		}
	}
	return nil
}

// waitReady waits until the node's kubelet says that the node is Ready, now and not
// before a power cut.
func (c *Cluster) waitReady(ctx context.Context, client kubernetes.Interface, n node) error {
	boot, err := c.client(n).Output(ctx, "cat", bootID)
	if err != nil {
		return fmt.Errorf("ask %s which boot this is: %w", n.name(), err)
	}
	var last string
	for {
		object, err := client.CoreV1().Nodes().Get(ctx, n.name(), metav1.GetOptions{})
		if err == nil {
			last = readiness(object, boot)
			if last == "" {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s to be Ready: %w: %s", n.name(), errors.Join(ctx.Err(), err), last)
		case <-time.After(pollInterval):
		}
	}
}

// readiness says what keeps a node from being Ready; nothing if it is.
func readiness(object *corev1.Node, boot string) string {
	if object.Status.NodeInfo.BootID+"\n" != boot {
		return "its kubelet has not reported since the machine was switched on"
	}
	for _, condition := range object.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			if condition.Status == corev1.ConditionTrue {
				return ""
			}
			return condition.Message
		}
	}
	return "it has no condition Ready"
}

// waitDNS waits until the cluster's DNS has a ready Pod.
func (c *Cluster) waitDNS(ctx context.Context, client kubernetes.Interface) error {
	ctx, cancel := context.WithTimeout(ctx, readyBound)
	defer cancel()
	for {
		deployment, err := client.AppsV1().Deployments("kube-system").Get(ctx, "coredns", metav1.GetOptions{})
		if err == nil && deployment.Status.ReadyReplicas > 0 {
			c.progress.say("the cluster's names are served")
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the cluster's DNS: %w", errors.Join(ctx.Err(), err))
		case <-time.After(pollInterval):
		}
	}
}

// find returns the node called name; the error is fs.ErrNotExist if there is none.
func (c *Cluster) find(name string) (node, error) {
	for _, n := range c.nodes {
		if n.name() == name {
			return n, nil
		}
	}
	return node{}, fmt.Errorf("cluster %s has no node %q, but %v: %w", c.name, name, c.NodeNames(), fs.ErrNotExist)
}
