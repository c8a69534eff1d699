package main

import (
	"os"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/carve-csi/carve/pkg/controller/podbinder"
	"github.com/carve-csi/carve/pkg/logging"
	"github.com/carve-csi/carve/pkg/ops"
	"github.com/carve-csi/carve/pkg/scheduler/extender"
)

// newBindPodsCommand is the program beside a kube-scheduler that leaves it the binding of Pods.
func newBindPodsCommand() *cobra.Command {
	var kubeconfig, schedulerName, listen, opsListen, metricsTokenFile string
	cmd := &cobra.Command{
		Use:   "bind-pods",
		Short: "Bind Pods and their volumes for the kube-scheduler in the same Pod (deploy/components/scheduler)",
		Args:  cobra.NoArgs,
	}
	flagset := cmd.Flags()
	flagset.StringVar(&kubeconfig, "kubeconfig", "", "file that says how to reach the API server; empty means the Pod's own service account")
	flagset.StringVar(&schedulerName, "scheduler-name", "carve", "scheduler that Pods name which may be bound")
	flagset.StringVar(&listen, "listen", "127.0.0.1:9445", "address on which kube-scheduler asks (HTTP), of a loopback interface")
	flagset.StringVar(&opsListen, "ops-listen", ":9808", "address of /healthz, /readyz, /metrics and /debug/pprof (HTTPS); empty serves none")
	flagset.StringVar(&metricsTokenFile, "metrics-token-file", "", "file with the bearer token for /metrics and /debug/pprof; empty: both are refused")
	logs := logging.AddFlags(flagset)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		log, err := logs.Logger(os.Stderr)
		if err != nil {
			return err
		}
		log.Info("starting", "version", version)
		limitMemory(log, memlimit.FromCgroup)
		client, _, err := newClients(kubeconfig)
		if err != nil {
			return err
		}
		registry := prometheus.NewRegistry()
		registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
		binder, err := podbinder.New(podbinder.Options{Client: client, SchedulerName: schedulerName, Registerer: registry})
		if err != nil {
			return err
		}
		group, ctx := errgroup.WithContext(cmd.Context())
		group.Go(func() error { return binder.Run(ctx) })
		group.Go(func() error { return extender.ServeBind(ctx, listen, extender.NewBind(binder, log), log) })
		group.Go(func() error {
			return ops.Serve(ctx, ops.Options{Address: opsListen, MetricsTokenFile: metricsTokenFile, Registry: registry,
				Ready: binder.Ready, Log: log})
		})
		return group.Wait()
	}
	return cmd
}
