package driver

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/csisocket"
)

// maxMessage bounds a message from the kubelet, in bytes.
const maxMessage = 1 << 20

// Plugin serves CSI and registers with the kubelet.
type Plugin struct {
	CSISocket string
	// RegistrationDir is the directory in which the kubelet looks for plugins.
	// If empty, the plugin does not register.
	RegistrationDir string

	Identity     csi.IdentityServer
	Node         csi.NodeServer
	Registration *Registration
	Metrics      *Metrics
	Log          *slog.Logger
}

// Serve serves until ctx is done, then stops within a few seconds. It stops the
// registration first, so that the kubelet sends nothing new, then CSI, where
// calls in flight may finish. Both sockets are removed when it returns.
func (p Plugin) Serve(ctx context.Context) error {
	// CSI starts before the registration and stops after it.
	listener, err := csisocket.Listen(ctx, p.CSISocket)
	if err != nil {
		return fmt.Errorf("CSI socket: %w", err)
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(interceptor(p.Log, p.Metrics)), grpc.MaxRecvMsgSize(maxMessage))
	csi.RegisterIdentityServer(server, p.Identity)
	csi.RegisterNodeServer(server, p.Node)

	group, groupCtx := errgroup.WithContext(ctx)
	csiCtx, stopCSI := context.WithCancel(context.WithoutCancel(ctx))
	defer stopCSI()
	group.Go(func() error {
		if err := csisocket.Serve(csiCtx, server, listener); err != nil {
			return fmt.Errorf("serve CSI: %w", err)
		}
		return nil
	})
	group.Go(func() error {
		defer stopCSI()
		return p.register(groupCtx)
	})
	return group.Wait()
}

// Healthy fails unless the kubelet can find the plugin's sockets. Their
// directories may have been cleared, and only a restart restores them. It fails
// until Serve listens.
func (p Plugin) Healthy(context.Context) error {
	sockets := []string{p.CSISocket}
	if p.RegistrationDir != "" {
		sockets = append(sockets, p.registrationSocket())
	}
	for _, path := range sockets {
		if _, err := os.Lstat(path); err != nil {
			return fmt.Errorf("socket: %w", err)
		}
	}
	return nil
}

func (p Plugin) registrationSocket() string {
	return filepath.Join(p.RegistrationDir, names.Driver+"-reg.sock")
}

func (p Plugin) register(ctx context.Context) error {
	if p.RegistrationDir == "" {
		<-ctx.Done()
		return nil
	}
	for ctx.Err() == nil {
		if err := p.registerOnce(ctx); err != nil {
			return err
		}
	}
	return nil
}

// registerOnce serves the registration until ctx is done or Registration.Again
// fires. The kubelet registers a plugin anew when it finds a different socket
// at the same path.
func (p Plugin) registerOnce(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		select {
		case <-p.Registration.again:
			stop()
		case <-ctx.Done():
		}
	}()
	listener, err := csisocket.Listen(ctx, p.registrationSocket())
	if err != nil {
		return fmt.Errorf("registration socket: %w", err)
	}
	server := grpc.NewServer(grpc.MaxRecvMsgSize(maxMessage))
	registerapi.RegisterRegistrationServer(server, p.Registration)
	if err := csisocket.Serve(ctx, server, listener); err != nil {
		return fmt.Errorf("serve registration: %w", err)
	}
	return nil
}
