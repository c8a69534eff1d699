package lvmd

import (
	"context"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
)

const (
	// requestWindow and answerWindow bound, in bytes, how far client and lvmd may send ahead of
	// the reader. Requests are small; a list of 1,000 volumes takes a third of answerWindow.
	// Dynamic windows would cost a ping per call.
	requestWindow = 64 << 10
	answerWindow  = 1 << 20
	// answerBuffer is moved by one system call: a long list takes two instead of a dozen.
	answerBuffer = 256 << 10
)

// NewServer returns a server for t that serves the LVMD methods and health checks listed in
// methods for t; more adds options, such as those of the uplink. StopServers stops it.
func (s *Service) NewServer(t Transport, more ...grpc.ServerOption) *grpc.Server {
	server := grpc.NewServer(append([]grpc.ServerOption{
		grpc.InitialWindowSize(requestWindow), grpc.InitialConnWindowSize(requestWindow),
		grpc.WriteBufferSize(answerBuffer), // gRPC frees the buffer when idle
		grpc.ChainUnaryInterceptor(s.interceptor(t)), grpc.ChainStreamInterceptor(streamInterceptor(t)),
	}, more...)...)
	lvmdv1.RegisterLVMDServer(server, s)
	healthpb.RegisterHealthServer(server, s.health.server)
	return server
}

// Dial returns a client of the lvmd at a unix socket. It connects on first use. The caller
// closes it.
func Dial(socket string) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("passthrough:lvmd",
		grpc.WithTransportCredentials(insecure.NewCredentials()), // the socket's mode protects it
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}),
		// gRPC's backoff, up to two minutes between dials, suits networks.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 500 * time.Millisecond},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithInitialWindowSize(answerWindow), grpc.WithInitialConnWindowSize(answerWindow),
		grpc.WithReadBufferSize(answerBuffer))
	if err != nil {
		return nil, fmt.Errorf("lvmd's socket %q: %w", socket, err)
	}
	return conn, nil
}
