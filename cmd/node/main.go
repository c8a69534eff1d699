// Command node is Carve's CSI node plugin. It checks and mounts the volumes
// that lvmd created on this node. See its --help.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/api/resource"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/driver"
	"github.com/carve-csi/carve/pkg/driver/inline"
	"github.com/carve-csi/carve/pkg/driver/mount"
	"github.com/carve-csi/carve/pkg/logging"
	"github.com/carve-csi/carve/pkg/luks"
	"github.com/carve-csi/carve/pkg/ops"
	"github.com/carve-csi/carve/pkg/privilege"
)

// version is set by the linker.
var version = "dev"

type options struct {
	nodeName, kubeletDir, hostProc             string
	csiSocket, registrationDir, lvmdSocket     string
	maxVolumes                                 int64
	inlineVolumes                              bool
	smallestVolume, inlineMaxSize, checkMemory resource.QuantityValue
	ioLimitsDir                                string
	opsListen, metricsTokenFile                string
	logging                                    *logging.Options
	system
}

// system is the part of the kernel that run uses directly.
type system struct {
	// reduce drops privileges that the plugin does not need.
	reduce func() error
	// shared fails unless mounts below dir propagate to the host.
	shared func(dir string) error
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command(system{
		reduce: func() error { return privilege.Reduce(driver.Capabilities...) },
		shared: mount.CheckShared,
	}).ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "carve-node:", err)
		os.Exit(1)
	}
}

func command(s system) *cobra.Command {
	bytes := func(n int64) resource.QuantityValue {
		return resource.QuantityValue{Quantity: *resource.NewQuantity(n, resource.BinarySI)}
	}
	o := options{system: s, smallestVolume: bytes(0), inlineMaxSize: bytes(inline.DefaultMaxBytes), checkMemory: bytes(driver.DefaultCheckMemory)}
	c := &cobra.Command{
		Use:   "carve-node",
		Short: "Carve's CSI node plugin: checks and mounts the volumes that lvmd carved",
		Long: "Serves the CSI Identity and Node services to the kubelet of this node and registers itself with it.\n" +
			"Asks lvmd on the same node about volumes. Needs no access to the Kubernetes API.",
		Args:          cobra.NoArgs,
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(c *cobra.Command, _ []string) error { return run(c.Context(), o) },
	}
	flags := c.Flags()
	flags.StringVar(&o.nodeName, "node-name", "", "the node's name in Kubernetes; required")
	flags.StringVar(&o.kubeletDir, "kubelet-dir", "/var/lib/kubelet", "the kubelet's root directory; paths in its requests must lie below it")
	flags.StringVar(&o.hostProc, "host-proc", "/proc", "where the host's /proc is mounted; by it the processes are found that have a volume mounted in another mount namespace")
	flags.Int64Var(&o.maxVolumes, "max-volumes", 0, "how many volumes the scheduler may place on the node; 0: as many as the metadata of its volume groups could hold")
	flags.Var(&o.smallestVolume, "smallest-volume", "the smallest size of a volume that Pods claim, such as 10Gi: while no device class has that much free space, the scheduler may place no volumes on the node beside those there, and Karpenter adds nodes. Needs Kubernetes 1.35; 0: free space does not count")
	flags.BoolVar(&o.inlineVolumes, "inline-volumes", false, "let Pods define volumes in their own specification; the CSIDriver object must allow it, too")
	flags.Var(&o.inlineMaxSize, "inline-max-size", "the largest size that a Pod may ask for in its own specification, such as 100Gi; 0: no limit. Volumes that exist are not concerned")
	flags.Var(&o.checkMemory, "check-memory", "the memory that the check of one file system may take; of those that take more than 32Mi one runs at a time, beside one that waits for its disk. The container's memory limit must be twice this and 384Mi")
	flags.StringVar(&o.ioLimitsDir, "io-limits-dir", "", "directory that is shared with carve-node io-limits, which limits the I/O of Pods; empty: nothing does")
	flags.StringVar(&o.opsListen, "ops-listen", ":9809", "address of /healthz, /readyz, /metrics and /debug/pprof (HTTPS); empty: not served")
	flags.StringVar(&o.metricsTokenFile, "metrics-token-file", "/etc/carve/metrics/token", "file with the bearer token that may read /metrics and /debug/pprof")
	// The container mounts these at their defaults.
	flags.StringVar(&o.csiSocket, "csi-socket", "/csi/csi.sock", "unix socket to serve CSI on")
	flags.StringVar(&o.registrationDir, "registration-dir", "/registration", "directory that the kubelet watches for plugins; empty: do not register")
	flags.StringVar(&o.lvmdSocket, "lvmd-socket", "/run/carve/lvmd.sock", "unix socket of lvmd")
	for _, name := range []string{"csi-socket", "registration-dir", "lvmd-socket"} {
		_ = flags.MarkHidden(name) // it exists
	}
	o.logging = logging.AddFlags(flags)
	c.AddCommand(ioLimits())
	return c
}

// run assembles the plugin and serves until ctx is done. It stops in reverse
// order of dependencies: registration, CSI, lvmd's client.
func run(ctx context.Context, o options) error {
	if o.nodeName == "" {
		return errors.New("--node-name is required")
	}
	log, err := o.logging.Logger(os.Stderr)
	if err != nil {
		return err
	}
	log = log.With("node", o.nodeName)
	conn, err := driver.DialLVMD(o.lvmdSocket)
	if err != nil {
		return err
	}
	defer conn.Close()

	metrics := driver.NewMetrics()
	registration := driver.NewRegistration(filepath.Join(o.kubeletDir, "plugins", names.Driver, "csi.sock"), metrics, log)
	node, err := driver.New(ctx, driver.Options{
		NodeName:       o.nodeName,
		MaxVolumes:     o.maxVolumes,
		SmallestVolume: o.smallestVolume.Value(),
		InlineVolumes:  o.inlineVolumes, InlineMaxBytes: o.inlineMaxSize.Value(),
		CheckMemory:  o.checkMemory.Value(),
		IOLimits:     ioLimitDirs(o.ioLimitsDir),
		Registration: registration,
		KubeletDir:   o.kubeletDir,
		LVMD:         lvmdv1.NewLVMDClient(conn),
		Mounts:       mount.System{Trusted: o.kubeletDir, Proc: o.hostProc},
		FileSystems:  driver.SystemFileSystems{},
		LUKS:         luks.New("cryptsetup", luks.Usual),
		Metrics:      metrics,
		Log:          log,
	})
	if err != nil {
		return err
	}
	lvmdAnswers := func(ctx context.Context) error { return driver.LVMDAnswers(ctx, conn) }
	plugin := driver.Plugin{
		CSISocket:       o.csiSocket,
		RegistrationDir: o.registrationDir,
		Identity:        driver.NewIdentity(version, lvmdAnswers),
		Node:            node,
		Registration:    registration,
		Metrics:         metrics,
		Log:             log,
	}

	// Check before the kubelet can call: it would not see the plugin's mounts.
	for _, dir := range node.MountDirs() {
		if err := o.shared(dir); err != nil {
			return err
		}
	}
	log.Info("starting", "version", version)
	// Some kernels and sandboxes refuse; the plugin works anyway.
	if err := o.reduce(); err != nil {
		log.Warn("the plugin keeps all its privileges", "error", err)
	}
	err = serve(ctx, o, &plugin, node, conn)
	log.Info("stopped")
	return err
}

func serve(ctx context.Context, o options, plugin *driver.Plugin, node *driver.Node, conn *grpc.ClientConn) error {
	log := plugin.Log
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return plugin.Serve(ctx) })
	group.Go(func() error {
		node.SweepRepeatedly(ctx)
		return nil
	})
	group.Go(func() error {
		// These loops call lvmd at once and would warn if it does not answer
		// yet: it starts at the same time.
		if err := driver.AwaitLVMD(ctx, conn); err != nil && ctx.Err() == nil {
			log.Warn("lvmd has not answered since the plugin started; it is asked again and again", "error", err)
		}
		for _, loop := range []func(context.Context){node.Monitor, node.RequestIOLimits, node.Reclaim} {
			group.Go(func() error {
				loop(ctx)
				return nil
			})
		}
		return nil
	})
	group.Go(func() error {
		return ops.Serve(ctx, ops.Options{
			Address:          o.opsListen,
			MetricsTokenFile: o.metricsTokenFile,
			Registry:         plugin.Metrics.Registry,
			Healthy:          plugin.Healthy,
			Ready: func(ctx context.Context) error {
				return errors.Join(plugin.Registration.Registered(), driver.LVMDAnswers(ctx, conn))
			},
			Log: log,
		})
	})
	return group.Wait()
}
