package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvmd"
	"github.com/carve-csi/carve/pkg/ops"
	"github.com/carve-csi/carve/pkg/uplink"
)

// stopBound limits the time from SIGTERM to the exit, whatever the kernel holds: the next start
// recovers what is cut off.
const stopBound = 4500 * time.Millisecond

// gcPercent is low because garbage of scans and lists makes up most of lvmd's memory, and the
// processor is mostly idle. The live heap is 2 MB and 2 KB for each volume.
const gcPercent = 50

type flags struct {
	config, socket, stateDir, lockDir    string
	nodeName                             string
	controller, controllerCA, tokenFile  string
	opsListen, metricsTokenFile, lvmPath string
	commandTimeout, poolTimeout          time.Duration
	lvmLasting                           bool
	// reduce drops the privileges that lvmd does not need.
	reduce func() error
}

func (f *flags) add(s *pflag.FlagSet) {
	s.StringVar(&f.config, "config", "/etc/carve/lvmd.yaml", "configuration file")
	s.StringVar(&f.stateDir, "state-dir", "/var/lib/carve", "directory of the journal")
	s.StringVar(&f.nodeName, "node-name", "", "name of this node in Kubernetes; required with --controller")
	s.StringVar(&f.controller, "controller", "carve-uplink.carve-system.svc:9443",
		"host:port of the controller; a connection is kept to every address of the host; empty means no uplink")
	s.StringVar(&f.opsListen, "ops-listen", ":9808", "host:port for /healthz, /readyz, /metrics and /debug/pprof over HTTPS; empty means none")
	f.controllerCA, f.tokenFile = "/etc/carve/uplink/ca.crt", "/var/run/secrets/carve/token"
	s.StringVar(&f.metricsTokenFile, "metrics-token-file", "/etc/carve/metrics/token", "file with the bearer token that may read /metrics and /debug/pprof")
	s.DurationVar(&f.commandTimeout, "lvm-timeout", time.Minute, "deadline of each LVM command")
	s.DurationVar(&f.poolTimeout, "pool-activation-timeout", time.Hour, "deadline of the check of a thin pool's metadata, which comes before the pool is activated")
	// Tests run several lvmds on one machine, each with its own lvm.
	s.StringVar(&f.lockDir, "lock-dir", lvm.LockDir, "directory of the lock that only one lvmd of a node has, beside LVM's own locks")
	s.StringVar(&f.lvmPath, "lvm", "lvm", "lvm program: a path, or a name to look up in PATH")
	s.BoolVar(&f.lvmLasting, "lvm-lasting", true, "keep one lvm process for each volume group, instead of starting one for each change")
	for _, name := range []string{"lock-dir", "lvm", "lvm-lasting"} {
		_ = s.MarkHidden(name) // it exists
	}
}

func run(ctx context.Context, f flags, log *slog.Logger) error {
	debug.SetGCPercent(gcPercent)
	if f.controller != "" && f.nodeName == "" {
		return fmt.Errorf("--node-name is empty; it is required unless --controller is empty")
	}
	if f.nodeName != "" {
		log = log.With("node", f.nodeName)
	}
	// Do this before running any program. Some kernels and sandboxes refuse; lvmd then works as
	// well.
	if err := f.reduce(); err != nil {
		log.Warn("lvmd keeps all its privileges", "error", err)
	}
	starter, err := findManager()
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { notify(log, starter, "STOPPING=1") })()
	// Handle SIGHUP before the long start: its default action ends the process.
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	file := &configFile{path: f.config, hangup: hangup}
	c, err := file.load()
	if err != nil {
		return err
	}
	unlock, err := lvmd.LockStateDir(f.stateDir)
	if err != nil {
		return err
	}
	defer unlock()
	unlockNode, err := lvmd.LockNode(f.lockDir)
	if err != nil {
		return err
	}
	defer unlockNode()
	// Check before touching volumes that another lvmd may be using.
	if err := lvmd.CheckSocket(f.socket); err != nil {
		return err
	}

	events := make(chan struct{}, 1)
	if err := blockdev.Watch(ctx, events); err != nil {
		return err
	}
	systemDir := filepath.Join(f.stateDir, "lvm")
	if err := lvm.MakeSystemDir(systemDir); err != nil {
		return err
	}
	metrics := lvmd.NewMetrics()
	runner := &lvm.Runner{
		Binary: f.lvmPath, Timeout: f.commandTimeout, PoolTimeout: f.poolTimeout, SystemDir: systemDir, Lasting: f.lvmLasting,
		Observe: func(ctx context.Context, r lvm.Result) {
			metrics.ObserveCommand(ctx, r)
			log.Debug("lvm", "command", r.Command, "duration", r.Duration, "error", r.Err)
		},
	}
	defer runner.Close()
	host, err := lvm.NewHost(runner)
	if err != nil {
		return err
	}
	host.Notify(events)
	metrics.ObserveStuck(func() int { return host.Stuck() + filesystem.Stuck() })
	options := lvmd.Options{
		LVM: host, Devices: host, StateDir: f.stateDir, Log: log, Metrics: metrics, BlockEvents: events,
	}
	options.Config = c
	return serveConfigurations(ctx, f, options, file, starter)
}

// serveConfigurations serves o.Config, and then each configuration that the file gets and that
// needs a new start. If the service cannot start with one, it goes back to the previous one.
func serveConfigurations(ctx context.Context, f flags, o lvmd.Options, file *configFile, starter manager) error {
	log, c := o.Log, o.Config
	for refused := ""; ; {
		o.Changed = o.Config != c
		err := serveConfiguration(ctx, f, o, file, refused, starter)
		switch {
		case errors.Is(err, errStartAgain):
			log.Info("starting again with another configuration")
			c, o.Config, refused = o.Config, file.next, ""
		case o.Config != c && errors.Is(err, errNotStarted) && ctx.Err() == nil:
			log.Error("the changed configuration is not taken over; going back to the one before", "error", err)
			o.Config, refused = c, err.Error()
		case errors.Is(err, errNotStarted) && ctx.Err() != nil:
			log.Info("stopped before it served", "error", err)
			return nil //nolint:nilerr // it was asked to stop
		default:
			return err
		}
	}
}

func notify(log *slog.Logger, m manager, assignments ...string) {
	if err := m.notify(assignments...); err != nil {
		log.Warn("the service manager cannot be notified", "error", err)
	}
}

// errNotStarted matches errors of a service that never served.
var errNotStarted = errors.New("the service cannot be started")

// serveConfiguration runs a service with one configuration. refused is the reason why the
// file's content is not in use, or empty. It notifies starter once calls are answered.
func serveConfiguration(ctx context.Context, f flags, o lvmd.Options, file *configFile, refused string, starter manager) error {
	log := o.Log
	service, err := lvmd.New(ctx, o)
	if err != nil {
		return fmt.Errorf("%w: %w", errNotStarted, err)
	}
	service.Refuse(refused)
	if file.next == o.Config {
		file.next = nil
	}
	listener, err := lvmd.Listen(f.socket)
	if err != nil {
		return err
	}
	service.Start()
	log.Info("serving", "version", version, "socket", f.socket, "classes", len(o.Config.Classes), "controller", f.controller)
	// Earlier calls wait in the listener.
	notify(log, starter, "READY=1", "STATUS=Serving on "+f.socket)
	return serve(ctx, f, o, service, listener, file)
}

// serve runs all servers and watchers until ctx is done or one fails, then stops them in order.
func serve(ctx context.Context, f flags, o lvmd.Options, service *lvmd.Service, l net.Listener, file *configFile) error {
	log := o.Log
	socket, uplinks := service.NewServer(lvmd.Socket), service.NewServer(lvmd.Uplink, uplink.ServerOptions()...)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := socket.Serve(l); !errors.Is(err, grpc.ErrServerStopped) { // stopped before Serve began
			return err
		}
		return nil
	})
	group.Go(func() error { return file.watch(ctx, service, log) })
	group.Go(func() error {
		return ops.Serve(ctx, ops.Options{
			Address: f.opsListen, MetricsTokenFile: f.metricsTokenFile,
			Registry: o.Metrics.Registry, Ready: service.Ready, Log: log,
		})
	})
	if f.controller != "" {
		group.Go(func() error {
			return uplink.RunClient(ctx, uplink.ClientOptions{
				Addresses: f.controller, CAFile: f.controllerCA, TokenFile: f.tokenFile,
				NodeName: f.nodeName, Version: version, Serve: uplinks.Serve, Log: log,
			})
		})
	}
	group.Go(func() error {
		<-ctx.Done()
		log.Info("stopping")
		late := time.AfterFunc(stopBound, func() {
			log.Error("could not stop in time; the next start makes up for it")
			os.Exit(1)
		})
		defer late.Stop()
		return lvmd.StopServers(service, socket, uplinks)
	})
	return group.Wait()
}
