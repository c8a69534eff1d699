package carve

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/carve-csi/carve/e2e/cluster"
)

// Names that Carve shares with Kubernetes.
const (
	Driver       = "carve.csi.local"
	Namespace    = "carve-system"
	TopologyNode = "topology.carve.csi.local/node"
)

// A wait looks again after pollEvery, because the API server is on this machine. A look
// that runs commands on emulated nodes keeps them busy: it is repeated after as long as it
// took, at most pollSeldom.
const (
	pollEvery  = 200 * time.Millisecond
	pollSeldom = 4 * time.Second
)

// longWait is how long a wait lasts that is printed: the sum of these is most of what tests
// on a cluster cost.
const longWait = 5 * time.Second

// Client talks to a cluster that has, or is about to get, Carve. It is safe
// for concurrent use.
type Client struct {
	Cluster *cluster.Cluster
	kubernetes.Interface
}

// NewClient returns a client of c with its administrator's rights.
func NewClient(c *cluster.Cluster) (*Client, error) {
	config, err := c.RESTConfig()
	if err != nil {
		return nil, fmt.Errorf("get the cluster's credentials: %w", err)
	}
	config.QPS, config.Burst = 200, 400
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	return &Client{Cluster: c, Interface: clients}, nil
}

// Kubectl runs kubectl and returns what it printed. The error has its
// message.
func (c *Client) Kubectl(ctx context.Context, stdin io.Reader, args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	if err := c.Cluster.Kubectl(ctx, stdin, &stdout, &stderr, args...); err != nil {
		return stdout.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// ApplyFile applies a manifest, as it is, to a namespace.
func (c *Client) ApplyFile(ctx context.Context, namespace, path string) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read a manifest: %w", err)
	}
	_, err = c.Kubectl(ctx, bytes.NewReader(content), "apply", "--namespace", namespace, "--filename", "-")
	return err
}

// PodExec runs a command in a Pod's first container.
func (c *Client) PodExec(ctx context.Context, namespace, pod string, argv ...string) (string, error) {
	return c.Kubectl(ctx, nil, append([]string{"exec", "--namespace", namespace, pod, "--"}, argv...)...)
}

// execTimeout bounds a command on a node. None takes a minute.
const execTimeout = 2 * time.Minute

// NodeExec runs a command on a node, as root, and returns its standard output.
// Of one that does not end, the error says what the node did meanwhile.
func (c *Client) NodeExec(ctx context.Context, node string, argv ...string) (string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stuck := make(chan error, 1)
	timer := time.AfterFunc(execTimeout, func() {
		err := fmt.Errorf("it did not end within %v; on the node there were:\n%s", execTimeout, c.doing(node))
		// A caller that tries again, with success, shows it, too.
		fmt.Fprintf(os.Stderr, "on %s: %s: %v\n", node, strings.Join(argv, " "), err)
		stuck <- err
		cancel()
	})
	defer timer.Stop()
	result, err := c.Cluster.Exec(ctx, node, argv...)
	if err != nil {
		select {
		case why := <-stuck:
			return "", fmt.Errorf("%w: %w", err, why)
		default:
			return "", err
		}
	}
	if result.ExitCode != 0 {
		return result.Stdout, fmt.Errorf("on %s: %s: exit code %d: %s", node, strings.Join(argv, " "), result.ExitCode, strings.TrimSpace(result.Stderr))
	}
	return result.Stdout, nil
}

// doing says what runs on a node, what it waits for, and who holds locks.
func (c *Client) doing(node string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var all strings.Builder
	for _, argv := range [][]string{
		{"ps", "axo", "pid,ppid,stat,etime,wchan:24,args"},
		{"cat", "/proc/locks"},
		{"dmsetup", "info", "--columns"},
	} {
		result, err := c.Cluster.Exec(ctx, node, argv...)
		fmt.Fprintf(&all, "%s: error %v\n%s%s\n", strings.Join(argv, " "), err, result.Stdout, result.Stderr)
	}
	return all.String()
}

// Until calls check until it returns no error, ctx ends or the timeout passes;
// the last error of check is then in the error.
func Until(ctx context.Context, timeout time.Duration, what string, check func(context.Context) error) error {
	var last error
	var took time.Duration
	started := time.Now()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	pause := wait.DelayFunc(func() time.Duration { return min(max(pollEvery, took), pollSeldom) })
	err := pause.Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		began := time.Now()
		failure := check(ctx)
		took = time.Since(began)
		// That the time was over in the middle of a check says less than the check before.
		if last == nil || ctx.Err() == nil {
			last = failure
		}
		return failure == nil, nil
	})
	if err != nil {
		return fmt.Errorf("wait %v until %s: %w (last: %w)", timeout, what, err, last)
	}
	if waited := time.Since(started); waited > longWait {
		fmt.Fprintf(os.Stderr, "waited %v until %s\n", waited.Round(time.Second), what)
	}
	return nil
}

// PodsRunning waits until every Pod named runs and is ready.
func (c *Client) PodsRunning(ctx context.Context, timeout time.Duration, namespace string, names ...string) error {
	return Until(ctx, timeout, fmt.Sprintf("%d Pods run", len(names)), func(ctx context.Context) error {
		list, err := c.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		running := map[string]bool{}
		for _, pod := range list.Items {
			running[pod.Name] = pod.Status.Phase == corev1.PodRunning && podReady(&pod)
		}
		var missing []string
		for _, name := range names {
			if !running[name] {
				missing = append(missing, name)
			}
		}
		if len(missing) > 0 {
			return fmt.Errorf("not running: %s", strings.Join(missing, ", "))
		}
		return nil
	})
}

func podReady(pod *corev1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// EphemeralVolume finds the claim and the PersistentVolume behind a generic
// ephemeral volume of a Pod. It is an error when they are not bound.
func (c *Client) EphemeralVolume(ctx context.Context, namespace, pod, volume string) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume, error) {
	claim, err := c.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, pod+"-"+volume, metav1.GetOptions{})
	if err != nil {
		return nil, nil, err
	}
	if claim.Status.Phase != corev1.ClaimBound {
		return nil, nil, fmt.Errorf("claim %s/%s is %s", namespace, claim.Name, claim.Status.Phase)
	}
	pv, err := c.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	return claim, pv, err
}

// Events returns the messages of the events on an object, oldest first.
func (c *Client) Events(ctx context.Context, namespace, kind, name string) ([]corev1.Event, error) {
	list, err := c.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{
		FieldSelector: "involvedObject.kind=" + kind + ",involvedObject.name=" + name,
	})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// EventWith waits for an event on an object whose message has the text.
func (c *Client) EventWith(ctx context.Context, timeout time.Duration, namespace, kind, name, text string) (*corev1.Event, error) {
	var found *corev1.Event
	err := Until(ctx, timeout, fmt.Sprintf("%s %s has an event with %q", kind, name, text), func(ctx context.Context) error {
		events, err := c.Events(ctx, namespace, kind, name)
		if err != nil {
			return err
		}
		var seen []string
		for i := range events {
			if strings.Contains(events[i].Message, text) {
				found = &events[i]
				return nil
			}
			seen = append(seen, events[i].Reason+": "+events[i].Message)
		}
		return fmt.Errorf("events: %q", seen)
	})
	return found, err
}

// Capacity returns what is published for a node and a StorageClass. A missing
// object is a NotFound error.
func (c *Client) Capacity(ctx context.Context, node, class string) (*storagev1.CSIStorageCapacity, error) {
	list, err := c.StorageV1().CSIStorageCapacities(Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		object := &list.Items[i]
		if object.StorageClassName == class && object.NodeTopology != nil && object.NodeTopology.MatchLabels[TopologyNode] == node {
			return object, nil
		}
	}
	return nil, apierrors.NewNotFound(storagev1.Resource("csistoragecapacities"), node+"/"+class)
}

// CapacityBytes returns the published capacity of a node and a StorageClass.
func (c *Client) CapacityBytes(ctx context.Context, node, class string) (int64, error) {
	object, err := c.Capacity(ctx, node, class)
	if err != nil {
		return 0, err
	}
	if object.Capacity == nil {
		return 0, nil
	}
	return object.Capacity.Value(), nil
}
