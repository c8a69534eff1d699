package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
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
	uplinkHost     = "carve-uplink"
	metricsToken   = "benchmark"
	// waitTimeout bounds every wait for the cluster to become as it should be.
	waitTimeout = 3 * time.Minute
)

// programs are what is built once and run in every cluster.
type programs struct {
	root, kubernetes, controller, fakefleet string
}

func build(ctx context.Context, progress io.Writer) (*programs, func(), error) {
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
	for _, program := range []struct{ pkg, output string }{
		{"./cmd/controller", p.controller},
		{"./pkg/fleet/fakefleet", p.fakefleet},
	} {
		if err == nil {
			err = gobuild.Build(ctx, gobuild.Program{Name: filepath.Base(program.output), Dir: root, Package: program.pkg}, program.output)
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
	clientRate int // of Kubernetes' own controllers; 0 for their defaults
	packed     bool
	replicas   int // of the controller; 0 for one
	volumes    int // that every node has from the beginning
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
	controllers map[int]*os.Process
	// fleet is the process of the fake nodes, connecting how long it took until every replica
	// knew all of them and their capacity was published.
	fleet      *os.Process
	connecting time.Duration
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
	c := &cluster{clusterOptions: o, dir: dir, namespace: namespace, controllers: map[int]*os.Process{}}
	c.plane, err = controlplane.Start(ctx, controlplane.Options{Dir: filepath.Join(dir, "plane"), Namespace: namespace, Kube: o.programs.kubernetes, ClientRate: o.clientRate, Progress: o.progress})
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
	for _, file := range []string{"namespace.yaml", "serviceaccounts.yaml", "csidriver.yaml", "storageclass.yaml", "rbac-controller.yaml", "policy-controller.yaml"} {
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
		if err := c.startReplica(replica); err != nil {
			return err
		}
		if err := carve.Until(ctx, waitTimeout, "the first replica leads", func(ctx context.Context) error { return c.leads(ctx, 0) }); err != nil {
			return err
		}
	}
	ca := filepath.Join(c.dir, "ca.crt")
	err = carve.Until(ctx, waitTimeout, "the controller publishes its CA", func(ctx context.Context) error {
		published, err := c.client.CoreV1().ConfigMaps(carveNamespace).Get(ctx, "carve-uplink-ca", metav1.GetOptions{})
		if err != nil {
			return err
		}
		return os.WriteFile(ca, []byte(published.Data["ca.crt"]), 0o600)
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
		adding.Go(func() error { return c.addNode(addingCtx, fmt.Sprintf("node-%03d", i), tokens) })
	}
	if err := adding.Wait(); err != nil {
		return err
	}
	return c.startFleet(ctx, ca, tokens)
}

// startFleet starts the fake nodes, and waits until all are known and published.
func (c *cluster) startFleet(ctx context.Context, ca, tokens string) error {
	var uplinks []string
	for replica := range max(1, c.replicas) {
		uplinks = append(uplinks, uplinkAddress(replica))
	}
	begin := time.Now()
	var err error
	c.fleet, err = c.start("fakefleet", c.programs.fakefleet, "--controller", strings.Join(uplinks, ","), "--server-name", uplinkHost, "--controller-ca", ca,
		"--tokens", tokens, "--bytes", fmt.Sprint(c.nodeBytes), "--create-time", c.createTime.String(), "--volumes", fmt.Sprint(c.volumes), "--changes", c.changesFile())
	if err != nil {
		return err
	}
	bound := waitTimeout + time.Duration(c.nodes)*100*time.Millisecond
	for replica := range uplinks {
		err := carve.Until(ctx, bound, "every node is connected", func(ctx context.Context) error {
			connected, err := c.metric(ctx, replica, "carve_controller_connected_nodes")
			if err == nil && int(connected) < c.nodes {
				err = fmt.Errorf("%v of %d", connected, c.nodes)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	err = carve.Until(ctx, bound, "every node's capacity is published", func(ctx context.Context) error {
		list, err := c.client.StorageV1().CSIStorageCapacities(carveNamespace).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err == nil && len(list.Items) < c.nodes {
			err = fmt.Errorf("%d of %d", len(list.Items), c.nodes)
		}
		return err
	})
	c.connecting = time.Since(begin)
	return err
}

// changesFile is where the fake nodes note when they changed.
func (c *cluster) changesFile() string { return filepath.Join(c.dir, "changes") }

// startReplica starts a replica of the controller.
func (c *cluster) startReplica(replica int) error {
	process, err := c.start(fmt.Sprintf("controller-%d", replica), c.programs.controller, "--kubeconfig", c.kubeconfig, "--uplink-listen", uplinkAddress(replica), "--uplink-host", uplinkHost,
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
	hour := int64(3600)
	token, err := c.token(ctx, "carve-node", &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		Audiences: []string{"carve-uplink"}, ExpirationSeconds: &hour,
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
func (c *cluster) start(name, path string, arguments ...string) (*os.Process, error) {
	log, err := os.Create(filepath.Join(c.dir, name+".log"))
	if err != nil {
		return nil, fmt.Errorf("make a log: %w", err)
	}
	defer log.Close()
	command := exec.Command(path, arguments...)
	command.Stdout, command.Stderr = log, log
	if err := c.namespace.Start(command); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() { _ = command.Wait() }()
	return command.Process, nil
}

// metrics reads the metrics page of a replica.
func (c *cluster) metrics(ctx context.Context, replica int) (io.ReadCloser, error) {
	return c.get(ctx, replica, "/metrics")
}

// ready returns an error unless a replica is ready.
func (c *cluster) ready(ctx context.Context, replica int) error {
	page, err := c.get(ctx, replica, "/readyz")
	if err != nil {
		return err
	}
	return page.Close()
}

// get reads a page that a replica serves beside its work.
func (c *cluster) get(ctx context.Context, replica int, path string) (io.ReadCloser, error) {
	client := http.Client{Transport: &http.Transport{
		DialContext:       c.namespace.DialContext,
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // self-signed, on our own loopback
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+opsAddress(replica)+path, nil)
	if err != nil {
		return nil, fmt.Errorf("ask for %s: %w", path, err)
	}
	request.Header.Set("Authorization", "Bearer "+metricsToken)
	response, err := client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("ask for %s: %w", path, err)
	}
	if response.StatusCode != http.StatusOK {
		_ = response.Body.Close()
		return nil, fmt.Errorf("ask for %s: %s", path, response.Status)
	}
	return response.Body, nil
}

// metric reads a metric without labels of a replica.
func (c *cluster) metric(ctx context.Context, replica int, name string) (float64, error) {
	page, err := c.metrics(ctx, replica)
	if err != nil {
		return 0, err
	}
	defer page.Close()
	for lines := bufio.NewScanner(page); lines.Scan(); {
		if text, ours := strings.CutPrefix(lines.Text(), name+" "); ours {
			value, err := strconv.ParseFloat(text, 64)
			if err != nil {
				return 0, fmt.Errorf("read %s: %w", name, err)
			}
			return value, nil
		}
	}
	return 0, fmt.Errorf("replica %d has no metric %s", replica, name)
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
