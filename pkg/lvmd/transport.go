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
	// requestWindow is how much a client may send ahead of what was read, and
	// answerWindow how much lvmd may, in bytes. Requests are small; a list of 1,000
	// volumes takes a third of the answers' window. Where windows grow by themselves,
	// each call costs a ping more.
	requestWindow = 64 << 10
	answerWindow  = 1 << 20
	// answerBuffer is how much of an answer is written or read with one system call:
	// a long list then takes two of them and not a dozen.
	answerBuffer = 256 << 10
)

// NewServer returns a server for one transport. It serves LVMD and the health service as far as methods
// allows; more are further options, such as those of the uplink. StopServers stops it.
func (s *Service) NewServer(t Transport, more ...grpc.ServerOption) *grpc.Server {
	server := grpc.NewServer(append([]grpc.ServerOption{
		grpc.InitialWindowSize(requestWindow), grpc.InitialConnWindowSize(requestWindow),
		grpc.WriteBufferSize(answerBuffer), // gRPC keeps none while there is nothing to write
		grpc.ChainUnaryInterceptor(s.interceptor(t)), grpc.ChainStreamInterceptor(streamInterceptor(t)),
	}, more...)...)
	lvmdv1.RegisterLVMDServer(server, s)
	healthpb.RegisterHealthServer(server, s.health.server)
	return server
}

// Dial makes a client of the lvmd at a unix socket. It connects when it is used
// first. The caller closes it.
func Dial(socket string) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("passthrough:lvmd",
		grpc.WithTransportCredentials(insecure.NewCredentials()), // the socket's mode is what protects it
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}),
		// gRPC's pauses, up to two minutes between dials, are made for networks.
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
