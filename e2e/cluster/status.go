package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/carve-csi/carve/e2e/kube"
)

// components are those of the control plane.
var components = []string{kube.Etcd, kube.APIServer, kube.ControllerManager, kube.Scheduler, kube.Proxy}

// nodeServices are those of a node that have a log.
var nodeServices = []string{"containerd", kube.Kubelet}

// statusBound bounds each question that Status asks.
const statusBound = 5 * time.Second

// Line says how one part of the cluster is.
type Line struct {
	Name, Message string
	Well          bool
}

// Status reports how the components of the control plane and the nodes are.
func (c *Cluster) Status(ctx context.Context) []Line {
	var lines []Line
	add := func(name string, err error, well string) {
		line := Line{Name: name, Message: well, Well: err == nil}
		if err != nil {
			line.Message = strings.ReplaceAll(err.Error(), "\n", "; ")
		}
		lines = append(lines, line)
	}
	for _, component := range components {
		asking, cancel := context.WithTimeout(ctx, statusBound)
		add(component, c.controlPlane.Healthy(asking, component), "healthy")
		cancel()
	}
	for _, n := range c.nodes {
		asking, cancel := context.WithTimeout(ctx, statusBound)
		add(n.name(), c.nodeStatus(asking, n), "Ready at "+n.address().String())
		cancel()
	}
	return lines
}

// Unwell says of each node that is not well, by its name, how it is, what its machine and its services
// printed last, and which processes the kernel keeps waiting.
func (c *Cluster) Unwell(ctx context.Context) map[string]string {
	unwell := map[string]string{}
	for _, line := range c.Status(ctx) {
		n, err := c.find(line.Name)
		if line.Well || err != nil { // it is a component of the control plane
			continue
		}
		asking, cancel := context.WithTimeout(ctx, statusBound)
		output, err := c.client(n).Output(asking, "sh", "-c", inspection)
		cancel()
		unwell[line.Name] = line.Message + c.logEnds(n) + "\n" + output
		if err != nil {
			unwell[line.Name] += "\ninspect it: " + err.Error()
		}
	}
	return unwell
}

// inspection prints the processes that the kernel keeps waiting, where it does, and the ends of the logs of
// the node's services.
const inspection = `for p in /proc/[0-9]*; do
	grep -q '^State:.D' $p/status && { echo "waits in the kernel: $(tr '\0' ' ' <$p/cmdline)$(cat $p/comm)"; cat $p/stack; }
done
tail -n 8 ` + serviceLogs + `/*.log`

// nodeStatus says what is wrong with a node.
func (c *Cluster) nodeStatus(ctx context.Context, n node) error {
	running, err := c.running(n)
	if err != nil {
		return err
	}
	if !running {
		return errors.New("switched off")
	}
	agent := c.client(n)
	status, err := agent.Status(ctx)
	if err != nil {
		return fmt.Errorf("its agent does not answer: %w", err)
	}
	if status.Error != "" {
		return errors.New(status.Error)
	}
	if !status.Ready {
		return errors.New(status.Phase)
	}
	boot, err := agent.Output(ctx, "cat", bootID)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(c.controlPlane.RESTConfig())
	if err != nil {
		return err
	}
	object, err := client.CoreV1().Nodes().Get(ctx, n.name(), metav1.GetOptions{})
	if err != nil {
		return err
	}
	if problem := readiness(object, boot); problem != "" {
		return errors.New(problem)
	}
	return nil
}

// Log opens a log: of a component of the control plane, of a node's console, or of
// a service on a node.
func (c *Cluster) Log(ctx context.Context, name, service string) (io.ReadCloser, error) {
	if slices.Contains(components, name) && service == "" {
		return os.Open(c.controlPlane.LogFile(name))
	}
	n, err := c.find(name)
	if err != nil {
		return nil, fmt.Errorf("logs: got %q, allowed are %v and %v", name, components, c.NodeNames())
	}
	if service == "" {
		return os.Open(filepath.Join(n.dir, "console.log"))
	}
	if !slices.Contains(nodeServices, service) {
		return nil, fmt.Errorf("logs of %s: got %q, allowed are %v", name, service, nodeServices)
	}
	output, err := c.client(n).Output(ctx, "cat", serviceLogs+"/"+service+".log")
	if err != nil {
		return nil, err
	}
	return io.NopCloser(strings.NewReader(output)), nil
}
