package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/retry"

	"github.com/carve-csi/carve/e2e/carve"
	"github.com/carve-csi/carve/e2e/checkout"
	"github.com/carve-csi/carve/e2e/controlplane"
	"github.com/carve-csi/carve/e2e/gobuild"
	"github.com/carve-csi/carve/e2e/kube"
	"github.com/carve-csi/carve/e2e/netns"
)

const (
	carveNamespace = "carve-system"
	storageClass   = "carve"
	driver         = "carve.csi.local"
	topologyKey    = "topology.carve.csi.local/node"
	uplinkHost     = "carve-uplink." + carveNamespace + ".svc"
	metricsToken   = "benchmark"
	// waitTimeout bounds every wait for the cluster to become as it should be.
	waitTimeout = 3 * time.Minute
)

// programs are what is built once and run in every cluster.
type programs struct {
	root, kubernetes, controller, fakefleet string
	scheduler                               string // carve-scheduler, if it was asked for
}

func build(ctx context.Context, scheduler string, progress io.Writer) (*programs, func(), error) {
	root, err := checkout.Root()
	if err != nil {
		return nil, nil, err
	}
	dir, err := os.MkdirTemp("", "carve-bench-")
	if err != nil {
		return nil, nil, fmt.Errorf("make a folder: %w", err)
	}
	cleanUp := func() { _ = os.RemoveAll(dir) }
	p := &programs{root: root, controller: filepath.Join(dir, "carve-controller"), fakefleet: filepath.Join(dir, "fakefleet")}
	fmt.Fprintln(progress, "building")
	wanted := []struct{ dir, pkg, output string }{
		{root, "./cmd/controller", p.controller},
		{root, "./pkg/fleet/fakefleet", p.fakefleet},
	}
	switch scheduler {
	case "":
	case carveScheduler:
		p.scheduler = filepath.Join(dir, "carve-scheduler")
		wanted = append(wanted, struct{ dir, pkg, output string }{filepath.Join(root, "pkg/scheduler/plugin"), "./carve-scheduler", p.scheduler})
	default:
		err = fmt.Errorf("-scheduler: got %q, want %q or nothing", scheduler, carveScheduler)
	}
	for _, program := range wanted {
		if err == nil {
			err = gobuild.Build(ctx, gobuild.Program{Name: filepath.Base(program.output), Dir: program.dir, Package: program.pkg}, program.output)
		}
	}
	if err == nil {
		p.kubernetes, err = kube.Build(ctx, progress)
	}
	if err != nil {
		cleanUp()
		return nil, nil, err
	}
	return p, cleanUp, nil
}

type clusterOptions struct {
	programs   *programs
	progress   io.Writer
	nodes      int
	nodeBytes  int64
	createTime time.Duration
	clientRate int    // of Kubernetes' own controllers; 0 for their defaults
	scheduler  string // carveScheduler, or empty for kube-scheduler
	packed     bool
	replicas   int // of the controller; 0 for one
	classes    int // StorageClasses, and device classes of every node; 0 for one
	volumes    int // that every node has from the beginning
	held       int // volumes of these that have a PersistentVolume
	full       int // percentage of nodes without space for a Pod's volume
}

// cluster is a control plane with a controller and fake nodes.
type cluster struct {
	clusterOptions
	dir       string
	namespace netns.Namespace
	plane     *controlplane.ControlPlane
	client    kubernetes.Interface
	// kubeconfig is the controller's, controllers are the processes of its replicas.
	kubeconfig  string
	controllers map[int]*process
	// uplinkCA is the file with the controller's CA. connecting is how long it took until every
	// replica knew all fake nodes and their capacity was published.
	uplinkCA   string
	connecting time.Duration
}

// process is a program that runs in the cluster's network.
type process struct {
	*os.Process
	ended chan struct{} // closed at its end
}

// uplinkAddress and opsAddress are where a replica of the controller listens.
func uplinkAddress(replica int) string { return fmt.Sprintf("127.0.0.%d:9443", 1+replica) }
func opsAddress(replica int) string    { return fmt.Sprintf("127.0.0.%d:9808", 1+replica) }

// withCluster makes a cluster, calls f and removes the cluster.
func withCluster(ctx context.Context, o clusterOptions, f func(*cluster) error) (err error) {
	dir, err := os.MkdirTemp("", "carve-bench-")
	if err != nil {
		return fmt.Errorf("make a folder: %w", err)
	}
	o.classes = max(1, o.classes)
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	name := fmt.Sprintf("carve-bench-%d", os.Getpid())
	namespace, err := netns.Create(name, netns.DefaultGateway)
	if err != nil {
		return err
	}
	defer func() {
		removing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		err = errors.Join(err, netns.Remove(removing, name)) // ends all that runs inside
	}()
	c := &cluster{clusterOptions: o, dir: dir, namespace: namespace, controllers: map[int]*process{}, uplinkCA: filepath.Join(dir, "ca.crt")}
	c.plane, err = controlplane.Start(ctx, controlplane.Options{Dir: filepath.Join(dir, "plane"), Namespace: namespace, Kube: o.programs.kubernetes, ClientRate: o.clientRate, FakeNodes: true, Progress: o.progress})
	if err != nil {
		return err
	}
	config := c.plane.RESTConfig()
	config.QPS = -1
	if c.client, err = kubernetes.NewForConfig(config); err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	if err := c.install(ctx); err != nil {
		return err
	}
	return f(c)
}

// install brings the controller up, as deploy/ would, and the nodes.
func (c *cluster) install(ctx context.Context) error {
	base := filepath.Join(c.programs.root, "deploy", "base")
	for _, file := range []string{"namespace.yaml", "serviceaccounts.yaml", "csidriver.yaml", "storageclass.yaml", "rbac-controller.yaml", "policy-controller.yaml", "policy-nodes.yaml"} {
		kubectl := exec.CommandContext(ctx, c.programs.kubernetes, "kubectl", "--kubeconfig", c.plane.AdminKubeconfig(),
			"--namespace", carveNamespace, "apply", "-f", filepath.Join(base, file))
		if output, err := combined(c.namespace, kubectl); err != nil {
			return fmt.Errorf("apply %s: %w\n%s", file, err, output)
		}
	}
	var err error
	if c.kubeconfig, err = c.controllerKubeconfig(ctx); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(c.dir, "metrics-token"), []byte(metricsToken), 0o600); err != nil {
		return fmt.Errorf("write the metrics token: %w", err)
	}
	for replica := range max(1, c.replicas) {
		if err := c.startReplica(ctx, replica); err != nil {
			return err
		}
		if err := carve.Until(ctx, waitTimeout, "the first replica leads", func(ctx context.Context) error { return c.leads(ctx, 0) }); err != nil {
			return err
		}
	}
	err = carve.Until(ctx, waitTimeout, "the controller publishes its CA", func(ctx context.Context) error {
		published, err := c.client.CoreV1().ConfigMaps(carveNamespace).Get(ctx, "carve-uplink-ca", metav1.GetOptions{})
		if err != nil {
			return err
		}
		return os.WriteFile(c.uplinkCA, []byte(published.Data["ca.crt"]), 0o600)
	})
	if err != nil {
		return err
	}
	tokens := filepath.Join(c.dir, "tokens")
	if err := os.Mkdir(tokens, 0o700); err != nil {
		return fmt.Errorf("make a folder: %w", err)
	}
	adding, addingCtx := errgroup.WithContext(ctx)
	adding.SetLimit(16)
	for i := range c.nodes {
		adding.Go(func() error { return c.addNode(addingCtx, nodeName(i), tokens) })
	}
	if err := adding.Wait(); err != nil {
		return err
	}
	if err := c.addClasses(ctx); err != nil {
		return err
	}
	if err := c.startFleet(ctx, tokens); err != nil {
		return err
	}
	return c.useScheduler(ctx)
}

// addClasses makes the StorageClasses beside the one that is shipped, each for a device class.
func (c *cluster) addClasses(ctx context.Context) error {
	shipped, err := c.client.StorageV1().StorageClasses().Get(ctx, storageClass, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read the StorageClass: %w", err)
	}
	for i := 1; i < c.classes; i++ {
		class := shipped.DeepCopy()
		class.ObjectMeta = metav1.ObjectMeta{Name: className(i)}
		class.Parameters["carve.csi.local/device-class"] = deviceClass(i)
		if _, err := c.client.StorageV1().StorageClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("make StorageClass %s: %w", class.Name, err)
		}
	}
	return nil
}

// nodeName names the i-th fake node.
func nodeName(i int) string { return fmt.Sprintf("node-%03d", i) }

// className and deviceClass name the i-th StorageClass and the device class that it has of every node.
func className(i int) string   { return numbered(storageClass, i) }
func deviceClass(i int) string { return numbered("local", i) }

func numbered(name string, i int) string {
	if i == 0 {
		return name
	}
	return fmt.Sprintf("%s-%d", name, i+1)
}

// startReplica starts a replica of the controller, once an earlier process of it has ended.
func (c *cluster) startReplica(ctx context.Context, replica int) error {
	if earlier := c.controllers[replica]; earlier != nil {
		select {
		case <-earlier.ended:
		case <-ctx.Done():
			return fmt.Errorf("wait for the end of replica %d: %w", replica, ctx.Err())
		}
	}
	process, err := c.start(fmt.Sprintf("controller-%d", replica), c.programs.controller,
		"--uplink-listen", uplinkAddress(replica),
		"--ops-listen", opsAddress(replica), "--metrics-token-file", filepath.Join(c.dir, "metrics-token"), "--log-level", "warn")
	c.controllers[replica] = process
	return err
}

// leads returns an error unless a replica leads.
func (c *cluster) leads(ctx context.Context, replica int) error {
	leading, err := c.metric(ctx, replica, "carve_controller_leading")
	if err == nil && leading != 1 {
		err = fmt.Errorf("replica %d does not lead", replica)
	}
	return err
}

// controllerKubeconfig lets the controller act as its own service account, so
// that its rights are those that are shipped.
func (c *cluster) controllerKubeconfig(ctx context.Context) (string, error) {
	token, err := c.token(ctx, "carve-controller", &authenticationv1.TokenRequest{})
	if err != nil {
		return "", err
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: "https://" + controlplane.Endpoint().String(), CertificateAuthorityData: c.plane.CA()}
	config.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	config.CurrentContext = "x"
	path := filepath.Join(c.dir, "controller.kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		return "", fmt.Errorf("write the controller's kubeconfig: %w", err)
	}
	return path, nil
}

func (c *cluster) token(ctx context.Context, account string, request *authenticationv1.TokenRequest) (string, error) {
	made, err := c.client.CoreV1().ServiceAccounts(carveNamespace).CreateToken(ctx, account, request, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("make a token of %s: %w", account, err)
	}
	return made.Status.Token, nil
}

// resources is what a node has for Pods, and request what a Pod asks for: such that the
// scheduler spreads the Pods over the nodes, or, packed, so little of so much that its
// scores, which are whole numbers, let one node win until it has no free space for a volume.
func (o clusterOptions) resources() (node, request corev1.ResourceList) {
	resources := func(processors, memory string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(processors), corev1.ResourceMemory: resource.MustParse(memory)}
	}
	node, request = resources("8", "32Gi"), resources("100m", "256Mi")
	if o.packed {
		node, request = resources("64", "256Gi"), nil
	}
	node[corev1.ResourcePods] = resource.MustParse("1000")
	return node, request
}

// addNode makes a Node that Pods are scheduled to, the Pod of its agent, and
// the token that is bound to that.
func (c *cluster) addNode(ctx context.Context, name, tokens string) error {
	allocatable, _ := c.resources()
	_, err := c.client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name,
		Labels: map[string]string{topologyKey: name, corev1.LabelHostname: name}}}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("make node %s: %w", name, err)
	}
	now := metav1.Now()
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error { // the node lifecycle controller writes, too
		node, err := c.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		node.Status = corev1.NodeStatus{Capacity: allocatable, Allocatable: allocatable, Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: now, LastTransitionTime: now}}}
		_, err = c.client.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("make node %s ready: %w", name, err)
	}
	_, err = c.client.StorageV1().CSINodes().Create(ctx, &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: driver, NodeID: name, TopologyKeys: []string{topologyKey}}}}}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("make CSINode %s: %w", name, err)
	}
	agent, err := c.client.CoreV1().Pods(carveNamespace).Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "agent-" + name},
		Spec: corev1.PodSpec{ServiceAccountName: "carve-node", NodeName: name, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers: []corev1.Container{{Name: "c", Image: "none"}}}}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("make the agent of %s: %w", name, err)
	}
	day := int64(24 * 3600) // longer than a measurement
	token, err := c.token(ctx, "carve-node", &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		Audiences: []string{"carve-uplink"}, ExpirationSeconds: &day,
		BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: agent.Name, UID: agent.UID},
	}})
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(tokens, name), []byte(token), 0o600); err != nil {
		return fmt.Errorf("write the token of %s: %w", name, err)
	}
	return nil
}

// start runs a program in the cluster's network until the cluster is removed.
func (c *cluster) start(name, path string, arguments ...string) (*process, error) {
	log, err := os.Create(filepath.Join(c.dir, name+".log"))
	if err != nil {
		return nil, fmt.Errorf("make a log: %w", err)
	}
	defer log.Close()
	command := exec.Command(path, arguments...)
	command.Stdout, command.Stderr = log, log
	command.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig)
	if err := c.namespace.Start(command); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &process{command.Process, make(chan struct{})}
	go func() {
		defer close(p.ended)
		_ = command.Wait()
	}()
	return p, nil
}

func combined(namespace netns.Namespace, command *exec.Cmd) ([]byte, error) {
	var output writer
	command.Stdout, command.Stderr = &output, &output
	err := namespace.Run(command)
	return output, err
}

// writer collects what is written to it.
type writer []byte

func (w *writer) Write(p []byte) (int, error) {
	*w = append(*w, p...)
	return len(p), nil
}
