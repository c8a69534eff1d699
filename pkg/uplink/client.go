package uplink

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
)

// ClientOptions configure the node's end. ServerName, From, Version and Log are optional.
type ClientOptions struct {
	// Addresses is the controller's host:port. The client resolves the host repeatedly and keeps a
	// link to every address.
	Addresses string
	// ServerName is the name that the controller's certificate must carry. It defaults to the host
	// of Addresses.
	ServerName string
	// From is the address to dial from; the kernel chooses if it is zero. Many nodes on one machine
	// need an address each, because a controller limits the handshakes of an address.
	From netip.Addr
	// CAFile holds the PEM certificates that the controller's must chain to, TokenFile the
	// service-account token. Both rotate, so every dial reads them.
	CAFile, TokenFile string
	// NodeName is the Kubernetes node that the token is bound to.
	NodeName string
	// Version is this program's, for the controller's log.
	Version string
	// Serve serves gRPC on the listener until that is closed. The server must have been made with
	// ServerOptions. The client calls it once.
	Serve func(net.Listener) error
	// Log defaults to slog.Default().
	Log *slog.Logger
}

// ServerOptions returns the options that the gRPC server behind ClientOptions.Serve needs. It must
// accept the controller's keepalive pings (by default, gRPC closes the connection of a client that
// pings more than once in five minutes), and send its own to detect a controller that vanished.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{
			MinTime:             minPing,
			PermitWithoutStream: true,
		}),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time:    KeepaliveInterval,
			Timeout: KeepaliveTimeout,
		}),
	}
}

type client struct {
	o          ClientOptions
	host, port string
	log        *slog.Logger
	lis        *connListener

	// lost has an element after a link was lost or could not be made.
	lost chan struct{}

	// Tests change these before run.
	lookup                func(ctx context.Context, host string) ([]string, error)
	pace                  pace
	backoffMin            time.Duration
	backoffMax            time.Duration
	reauthenticateAtLeast time.Duration // the least time between two replacements of one connection
	onWelcome             func()

	mu    sync.Mutex
	links map[string]*link // by address; abandoned links are not in it
}

// RunClient keeps the node connected to every controller replica until ctx is done, then closes all
// connections and returns nil. It returns an error early if an option is invalid or if Serve
// returns.
func RunClient(ctx context.Context, o ClientOptions) error {
	c, err := newClient(o)
	if err != nil {
		return err
	}
	return c.run(ctx)
}

func newClient(o ClientOptions) (*client, error) {
	host, port, err := net.SplitHostPort(o.Addresses)
	if err != nil {
		return nil, fmt.Errorf("controller address %q: %w", o.Addresses, err)
	}
	switch {
	case host == "":
		return nil, fmt.Errorf("controller address %q has no host", o.Addresses)
	case o.NodeName == "":
		return nil, errors.New("node name is empty")
	case o.CAFile == "":
		return nil, errors.New("controller CA file is not set")
	case o.TokenFile == "":
		return nil, errors.New("token file is not set")
	case o.Serve == nil:
		return nil, errors.New("nothing to serve on the uplink")
	}
	if o.ServerName == "" {
		o.ServerName = host
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return &client{
		o: o, host: host, port: port,
		log:                   o.Log.With("component", "uplink"),
		lis:                   newConnListener(),
		lost:                  make(chan struct{}, 1),
		lookup:                net.DefaultResolver.LookupHost,
		pace:                  usualPace(),
		backoffMin:            100 * time.Millisecond,
		backoffMax:            5 * time.Second,
		reauthenticateAtLeast: 30 * time.Second,
		links:                 map[string]*link{},
	}, nil
}

func (c *client) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var links sync.WaitGroup
	served := make(chan error, 1)
	go func() {
		served <- c.o.Serve(c.lis)
		cancel() // nothing accepts connections any longer
	}()

	c.resolveLoop(ctx, &links)

	cancel()
	_ = c.lis.Close() // never fails
	links.Wait()      // each closes its connections
	err := <-served
	if err == nil || errors.Is(err, net.ErrClosed) || errors.Is(err, grpc.ErrServerStopped) {
		return nil
	}
	return fmt.Errorf("serve on uplink: %w", err)
}

// resolveLoop starts and abandons links as the controller's addresses change. A failed lookup
// changes nothing.
func (c *client) resolveLoop(ctx context.Context, links *sync.WaitGroup) {
	var logged string
	pause := c.pace.first
	for ctx.Err() == nil {
		lctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		hosts, err := c.lookup(lctx, c.host)
		cancel()
		switch {
		case err != nil && ctx.Err() == nil:
			if msg := err.Error(); msg != logged {
				c.log.Warn("controller's address cannot be resolved, trying on", "host", c.host, "error", err)
				logged = msg
			}
		case err == nil:
			logged = ""
			if c.setAddresses(ctx, hosts, links) {
				pause = c.pace.first
			}
		}
		pause = c.await(ctx, min(pause, c.longestPause()))
	}
}

// setAddresses matches the links to hosts, and reports whether any changed.
func (c *client) setAddresses(ctx context.Context, hosts []string, running *sync.WaitGroup) (changed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for addr, l := range c.links {
		host, _, _ := net.SplitHostPort(addr)
		if !slices.Contains(hosts, host) {
			l.abandon()
			delete(c.links, addr)
			changed = true
		}
	}
	for _, host := range hosts {
		addr := net.JoinHostPort(host, c.port)
		if c.links[addr] == nil {
			l := newLink(c, addr)
			c.links[addr] = l
			running.Go(func() { l.run(ctx) })
			changed = true
		}
	}
	return changed
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// jitter returns d ± 20 %, so that a fleet that lost its controller at one instant does not return
// at one instant.
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64()))
}
