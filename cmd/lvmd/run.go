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

// stopBound is by when the process is gone after SIGTERM, whatever the kernel
// holds: the journal makes up for what is cut off.
const stopBound = 4500 * time.Millisecond

// gcPercent is by how much the heap may outgrow what is in use. That is small, 2 MB
// and 2 KB for each volume; most of lvmd's memory is what scans and lists left behind
// and the collector has not reached yet, and the processor has little else to do for lvmd.
const gcPercent = 50

type flags struct {
	config, socket, stateDir, lockDir    string
	nodeName                             string
	controller, controllerCA, tokenFile  string
	opsListen, metricsTokenFile, lvmPath string
	commandTimeout, poolTimeout          time.Duration
	lvmLasting                           bool
	// reduce gives up the process's privileges that lvmd does not need.
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
	// Tests run several lvmds on one machine, with an lvm of their own.
	s.StringVar(&f.lockDir, "lock-dir", lvm.LockDir, "directory of the lock that only one lvmd of a node has, beside LVM's own locks")
	s.StringVar(&f.lvmPath, "lvm", "lvm", "lvm program: a path, or a name to look up in PATH")
	s.BoolVar(&f.lvmLasting, "lvm-lasting", true, "keep one lvm process for each volume group, instead of starting one for each change")
	for _, name := range []string{"lock-dir", "lvm", "lvm-lasting"} {
		_ = s.MarkHidden(name) // it exists
	}
}

// run runs lvmd until ctx is done: lock, load, listen, serve, stop.
func run(ctx context.Context, f flags, log *slog.Logger) error {
	debug.SetGCPercent(gcPercent)
	if f.controller != "" && f.nodeName == "" {
		return fmt.Errorf("--node-name is empty; it is required unless --controller is empty")
	}
	if f.nodeName != "" {
		log = log.With("node", f.nodeName)
	}
	// Before any program is run. Not every kernel and sandbox lets go; lvmd works as
	// well then.
	if err := f.reduce(); err != nil {
		log.Warn("lvmd keeps all its privileges", "error", err)
	}
	starter, err := findManager()
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { notify(log, starter, "STOPPING=1") })()
	// From the start: a process that does not handle SIGHUP ends when it is asked to reload.
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
	// Before anything is done to volumes that another lvmd may be working with.
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

// serveConfigurations serves under the configuration of the options, and again under each one that the
// file has later. One under which the service cannot be started is refused.
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

// notify notifies the service manager, and logs where that fails.
func notify(log *slog.Logger, m manager, assignments ...string) {
	if err := m.notify(assignments...); err != nil {
		log.Warn("the service manager cannot be notified", "error", err)
	}
}

// errNotStarted is matched by errors of a service that never served.
var errNotStarted = errors.New("the service cannot be started")

// serveConfiguration runs a service under one configuration. refused is why the
// configuration file says something else, or empty. The starter is notified when calls
// are answered.
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
	// A call that comes before serve waits in the listener.
	notify(log, starter, "READY=1", "STATUS=Serving on "+f.socket)
	return serve(ctx, f, o, service, listener, file)
}

// serve runs everything that serves until ctx is done or something fails, and
// stops it in order.
func serve(ctx context.Context, f flags, o lvmd.Options, service *lvmd.Service, l net.Listener, file *configFile) error {
	log := o.Log
	socket, uplinks := service.NewServer(lvmd.Socket), service.NewServer(lvmd.Uplink, uplink.ServerOptions()...)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := socket.Serve(l); !errors.Is(err, grpc.ErrServerStopped) { // stopped before it had begun
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
