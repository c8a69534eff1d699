// Package csisocket serves gRPC, as CSI and the kubelet speak it, on unix sockets.
package csisocket

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"time"

	"google.golang.org/grpc"
)

// graceful is how long calls under way have when the server is asked to stop.
const graceful = 3 * time.Second

// Listen listens on a unix socket that only its owner can connect to. A socket
// that an earlier run left behind is replaced.
func Listen(ctx context.Context, path string) (net.Listener, error) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case info.Mode()&fs.ModeSocket == 0:
		return nil, fmt.Errorf("%s exists and is not a socket", path)
	default:
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

// Serve serves on the listener until ctx is done, then lets calls under way end,
// for three seconds, and removes the socket.
func Serve(ctx context.Context, server *grpc.Server, listener net.Listener) error {
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	force := time.AfterFunc(graceful, server.Stop)
	defer force.Stop()
	server.GracefulStop()
	if err := <-served; !errors.Is(err, grpc.ErrServerStopped) { // stopped before it had begun
		return err
	}
	return nil
}
