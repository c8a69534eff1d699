// carve-controller provisions volumes on nodes and publishes the nodes' free space.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/KimMachineGun/automemlimit/memlimit"
	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller"
	"github.com/carve-csi/carve/pkg/logging"
	"github.com/carve-csi/carve/pkg/ops"
)

// version is set at build time.
var version = "development"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := newCommand().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "carve-controller:", err)
		os.Exit(1)
	}
}

type flags struct {
	controller.Options
	opsListen        string
	metricsTokenFile string
}

func newCommand() *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:           "carve-controller",
		Short:         "Provision node-local volumes and publish the nodes' capacity",
		Version:       version,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	cmd.CompletionOptions.DisableDefaultCmd = true
	flagset := cmd.Flags()
	flagset.StringVar(&f.Namespace, "namespace", names.Namespace, "namespace that Carve is installed in")
	flagset.StringVar(&f.UplinkListen, "uplink-listen", ":9443", "address on which nodes are expected, host:port")
	flagset.StringVar(&f.opsListen, "ops-listen", ":9808", "address of /healthz, /readyz, /metrics and /debug/pprof (HTTPS); empty serves none")
	flagset.StringVar(&f.metricsTokenFile, "metrics-token-file", "/etc/carve/metrics/token", "file with the bearer token that may read /metrics and /debug/pprof")
	flagset.BoolVar(&f.RemoveOrphans, "remove-orphans", false, "remove volumes of this cluster that no PersistentVolume and no claim knows, "+
		"instead of only reporting them; do not use with the reclaim policy Retain")
	flagset.DurationVar(&f.OrphanGrace, "orphan-grace", controller.DefaultOrphanGrace,
		fmt.Sprintf("how long the controller must have seen that nothing knows a volume before it counts as an orphan, at least %v; begins again with another leader", controller.LeastOrphanGrace))
	flagset.BoolVar(&f.RemoveStartupTaint, "remove-startup-taint", false, "remove the taints "+names.TaintAgentNotReady+", "+names.TaintAutoscaler+" and "+names.TaintReadiness+
		" from nodes once they are connected and their capacity is published; needs the right to patch nodes")
	flagset.StringSliceVar(&f.StartupTaintKeys, "startup-taint-key", nil, "key of the taint beside those that --remove-startup-taint names, which the policy of the component must name, too; may be given repeatedly")
	flagset.BoolVar(&f.NodeConditions, "node-conditions", false, "keep a condition "+names.Prefix+"CLASS of each device class on its Node; needs the right to patch nodes/status")
	flagset.StringVar(&f.TemplateLabel, "template-label", "node.kubernetes.io/instance-type", "label of nodes by whose values the Cluster Autoscaler's nodes are of one kind; what an empty one has is published for it; empty publishes nothing")
	logs := logging.AddFlags(flagset)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		log, err := logs.Logger(os.Stderr)
		if err != nil {
			return err
		}
		f.Log = log
		return run(cmd.Context(), f)
	}
	return cmd
}

// run runs the controller and the listener for operators. Either's end ends the other.
func run(ctx context.Context, f flags) error {
	f.Log.Info("starting", "version", version)
	limitMemory(f.Log, memlimit.FromCgroup)
	client, snapshots, err := newClients()
	if err != nil {
		return err
	}
	f.Snapshots = snapshots
	hostname, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("name of this replica: %w", err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	controller.CountAPIRequests(registry)
	f.LeaderElect = true
	f.Client, f.Registerer, f.Identity = client, registry, hostname+"_"+string(uuid.NewUUID())
	c, err := controller.New(f.Options)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.Run(ctx) })
	group.Go(func() error {
		return ops.Serve(ctx, ops.Options{
			Address: f.opsListen, MetricsTokenFile: f.metricsTokenFile, Registry: registry, Healthy: c.Healthy, Ready: c.Ready, Log: f.Log,
		})
	})
	return group.Wait()
}

// newClients returns clients for the API server of KUBECONFIG, or the Pod's own. They have no
// rate limit: the API server's priority and fairness weighs bursts of claims.
func newClients() (kubernetes.Interface, snapshotclient.Interface, error) {
	config, err := rest.InClusterConfig()
	if file := os.Getenv(clientcmd.RecommendedConfigPathEnvVar); file != "" {
		config, err = clientcmd.BuildConfigFromFlags("", file)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("find the API server: %w", err)
	}
	config.QPS = -1
	config.UserAgent = "carve-controller/" + version
	snapshots, err := snapshotclient.NewForConfig(config) // in JSON, as custom resources need
	if err != nil {
		return nil, nil, fmt.Errorf("make a client for snapshots: %w", err)
	}
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, nil, fmt.Errorf("make a client for the API server: %w", err)
	}
	return client, snapshots, nil
}
