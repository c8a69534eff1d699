package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"

	"github.com/carve-csi/carve/e2e/cache"
	"github.com/carve-csi/carve/e2e/controlplane"
	"github.com/carve-csi/carve/e2e/netns"
	"github.com/carve-csi/carve/e2e/preflight"
)

// Defaults of Options.
const (
	DefaultName  = "dev"
	DefaultNodes = 2
)

// upBound bounds Up, from an empty cache on a slow machine.
const upBound = 40 * time.Minute

// Options say which cluster Up is to bring up.
type Options struct {
	// Name distinguishes clusters: a DNS label of at most 40 characters. Empty means
	// DefaultName.
	Name string
	// Nodes is the number of nodes, 1 to MaxNodes; 0 means as many as the cluster
	// has, or DefaultNodes.
	Nodes int
	// PersistentMemory gives each node persistent memory, /dev/pmem0, and the volume group
	// carve-pmem on it. The nodes are virtual machines then, never programs.
	PersistentMemory bool
	// KubeletDir is where the kubelets have their files. Empty means as it is, or
	// /var/lib/kubelet for a cluster that is new.
	KubeletDir string
	// Progress gets, a line at a time, what is done. It may be nil.
	Progress io.Writer
}

// Cluster is a cluster that is, or was, up. It holds no resources. Its methods may
// be called concurrently, save Down, and Kill and Start for one node.
type Cluster struct {
	name         string
	dir          string
	namespace    netns.Namespace
	controlPlane *controlplane.ControlPlane
	kube         string
	nodes        []node
	pmem         bool
	kubeletDir   string
	progress     *progress
}

// description is what is kept of a cluster in its folder.
type description struct {
	Nodes            int    `json:"nodes"`
	PersistentMemory bool   `json:"persistentMemory"`
	KubeletDir       string `json:"kubeletDir"`
	Kube             string `json:"kube"`
}

const (
	descriptionFile   = "cluster.json"
	defaultKubeletDir = "/var/lib/kubelet"
)

// validName keeps names usable in those of namespaces and files.
var validName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$`)

// Up brings a cluster up and returns when all nodes are Ready and DNS is served.
// What is up already is left as it is, and what an interrupted Up left is
// completed. It needs root.
func Up(ctx context.Context, o Options) (*Cluster, error) {
	ctx, cancel := context.WithTimeout(ctx, upBound)
	defer cancel()
	c, err := named(o.Name, o.Progress)
	if err != nil {
		return nil, err
	}
	unlock, err := c.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := c.choose(o); err != nil {
		return nil, err
	}
	if err := preflight.Check(c.needs()); err != nil {
		return nil, err
	}
	assets, err := prepare(ctx, c.progress, c.pmem)
	if err != nil {
		return nil, fmt.Errorf("prepare cluster %s: %w", c.name, err)
	}
	if err := c.up(ctx, assets); err != nil {
		return nil, fmt.Errorf("bring up cluster %s: %w", c.name, err)
	}
	c.progress.say("cluster %s is up", c.name)
	return c, nil
}

// Prepare makes what Up waits for, where the cache lacks it: Kubernetes, the nodes' kernel and their disks.
// It needs root. Progress, which may be nil, gets what is waited for.
func Prepare(ctx context.Context, progress io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, upBound)
	defer cancel()
	if _, err := prepare(ctx, newProgress(progress), false); err != nil {
		return fmt.Errorf("prepare for clusters: %w", err)
	}
	return nil
}

// Attach returns the cluster of that name (empty means DefaultName) if it was
// brought up and not taken down. The error is fs.ErrNotExist otherwise.
func Attach(name string) (*Cluster, error) {
	c, err := named(name, nil)
	if err != nil {
		return nil, err
	}
	if err := c.open(); err != nil {
		return nil, fmt.Errorf("cluster %s is not up: %w", c.name, err)
	}
	return c, nil
}

// Down removes a cluster with all that it holds, in whatever state it is. It is no
// error if there is none. Progress, which may be nil, gets what is waited for.
func Down(ctx context.Context, name string, progress io.Writer) error {
	c, err := named(name, progress)
	if err != nil {
		return err
	}
	unlock, err := c.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if err := netns.Remove(ctx, c.namespaceName()); err != nil {
		return fmt.Errorf("take down cluster %s: %w", c.name, err)
	}
	if err := os.RemoveAll(c.dir); err != nil {
		return fmt.Errorf("take down cluster %s: %w", c.name, err)
	}
	return nil
}

// Down removes the cluster with all that it holds.
func (c *Cluster) Down(ctx context.Context) error { return Down(ctx, c.name, c.progress.output) }

// PersistentMemory reports whether the nodes have persistent memory.
func (c *Cluster) PersistentMemory() bool { return c.pmem }

// Name returns the cluster's name.
func (c *Cluster) Name() string { return c.name }

// Kubeconfig returns the path of a kubeconfig with all rights. Its server can be
// reached in the cluster's network namespace only; see RESTConfig and Kubectl.
func (c *Cluster) Kubeconfig() string { return c.controlPlane.AdminKubeconfig() }

// RESTConfig returns a client configuration with all rights that works outside the
// cluster's namespace.
func (c *Cluster) RESTConfig() (*rest.Config, error) { return c.controlPlane.RESTConfig(), nil }

// ControlPlane gives access to the components, to stop or kill them, say.
func (c *Cluster) ControlPlane() *controlplane.ControlPlane { return c.controlPlane }

// named returns the cluster of that name with nothing but its name.
func named(name string, output io.Writer) (*Cluster, error) {
	if name == "" {
		name = DefaultName
	}
	if !validName.MatchString(name) {
		return nil, fmt.Errorf("name of the cluster: got %q, want a DNS label of at most 40 characters", name)
	}
	root, err := cache.Root()
	if err != nil {
		return nil, err
	}
	return &Cluster{name: name, dir: filepath.Join(root, "clusters", name), progress: newProgress(output)}, nil
}

func (c *Cluster) namespaceName() string { return "carve-" + c.name }

// choose decides how many nodes there are, and what they have.
func (c *Cluster) choose(o Options) error {
	wanted := o.Nodes
	c.pmem, c.kubeletDir = o.PersistentMemory, cmp.Or(o.KubeletDir, defaultKubeletDir)
	d, err := c.describe()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if wanted == 0 {
			wanted = DefaultNodes
		}
	case err != nil:
		return err
	case o.PersistentMemory && !d.PersistentMemory:
		return fmt.Errorf("the nodes of cluster %s have no persistent memory and cannot be given it; take it down first", c.name)
	case o.KubeletDir != "" && o.KubeletDir != d.KubeletDir:
		return fmt.Errorf("the kubelets of cluster %s have their files in %s; take it down first", c.name, d.KubeletDir)
	case wanted == 0:
		wanted = d.Nodes
	case wanted != d.Nodes:
		return fmt.Errorf("cluster %s has %d nodes and cannot be given %d; take it down first", c.name, d.Nodes, wanted)
	}
	c.pmem, c.kubeletDir = c.pmem || d.PersistentMemory, cmp.Or(d.KubeletDir, c.kubeletDir)
	if wanted < 1 || wanted > MaxNodes {
		return fmt.Errorf("nodes: got %d, allowed are 1 to %d", wanted, MaxNodes)
	}
	c.setNodes(wanted)
	return nil
}

func (c *Cluster) setNodes(count int) {
	c.nodes = nil
	for number := 1; number <= count; number++ {
		c.nodes = append(c.nodes, node{number: number, pmem: c.pmem, kubeletDir: c.kubeletDir, dir: filepath.Join(c.dir, "nodes", nodeName(number))})
	}
}

func (c *Cluster) describe() (description, error) {
	var d description
	content, err := os.ReadFile(filepath.Join(c.dir, descriptionFile))
	if err != nil {
		return d, err
	}
	if err := json.Unmarshal(content, &d); err != nil {
		return d, fmt.Errorf("read what cluster %s is: %w", c.name, err)
	}
	return d, nil
}

// open fills in what is to be known of a cluster that is up.
func (c *Cluster) open() error {
	d, err := c.describe()
	if err != nil {
		return err
	}
	c.pmem, c.kubeletDir = d.PersistentMemory, d.KubeletDir
	c.setNodes(d.Nodes)
	c.kube = d.Kube
	if c.namespace, err = netns.Open(c.namespaceName()); err != nil {
		return err
	}
	c.controlPlane, err = controlplane.Open(c.controlPlaneOptions())
	return err
}

func (c *Cluster) controlPlaneOptions() controlplane.Options {
	return controlplane.Options{
		Dir: filepath.Join(c.dir, "control-plane"), Namespace: c.namespace, Kube: c.kube, ProxyNode: nodeName(1), Progress: c.progress,
	}
}

// up brings up what is not.
func (c *Cluster) up(ctx context.Context, a assets) (err error) {
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return err
	}
	if c.namespace, err = netns.Create(c.namespaceName(), netns.DefaultGateway); err != nil {
		return err
	}
	c.kube = a.kube
	if err := c.writeDescription(description{Nodes: len(c.nodes), PersistentMemory: c.pmem, KubeletDir: c.kubeletDir, Kube: a.kube}); err != nil {
		return err
	}
	hostBinary, err := buildHost(ctx, c.dir)
	if err != nil {
		return err
	}
	// The machines boot while the control plane comes up; kubelets wait for it.
	group, together := errgroup.WithContext(ctx)
	group.Go(func() error { return c.upControlPlane(together) })
	for _, n := range c.nodes {
		group.Go(func() error { return c.upMachine(together, n, a, hostBinary) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return c.upNodes(ctx)
}

func (c *Cluster) writeDescription(d description) error {
	content, err := json.Marshal(d)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(c.dir, descriptionFile), content, 0o600)
}

func (c *Cluster) upControlPlane(ctx context.Context) (err error) {
	if c.controlPlane, err = controlplane.Start(ctx, c.controlPlaneOptions()); err != nil {
		return err
	}
	c.progress.say("the control plane is up")
	return nil
}
