package driver

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// DialLVMD returns a client connection to the lvmd at a unix socket. It
// connects on first use and reconnects within a fraction of a second. The
// caller closes it.
func DialLVMD(socket string) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("unix:"+socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()), // the socket's file mode protects it
		grpc.WithConnectParams(grpc.ConnectParams{
			// Dials on this node are cheap; gRPC's default backoff of up to two
			// minutes suits networks.
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 500 * time.Millisecond},
			MinConnectTimeout: 5 * time.Second,
		}))
	if err != nil {
		return nil, fmt.Errorf("lvmd's socket %q: %w", socket, err)
	}
	return conn, nil
}

// startGrace is the time that an lvmd started together with the plugin may take
// to scan its disks, before its silence is worth a warning.
const startGrace = time.Minute

// AwaitLVMD waits up to startGrace until lvmd answers.
func AwaitLVMD(ctx context.Context, conn grpc.ClientConnInterface) error {
	ctx, cancel := context.WithTimeout(ctx, startGrace)
	defer cancel()
	return LVMDAnswers(ctx, conn, grpc.WaitForReady(true))
}

// LVMDAnswers returns nil if lvmd answers, even as unhealthy: lvmd's own probe
// reports that.
func LVMDAnswers(ctx context.Context, conn grpc.ClientConnInterface, options ...grpc.CallOption) error {
	_, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{}, options...)
	switch status.Code(err) {
	case codes.OK, codes.NotFound, codes.Unimplemented:
		return nil
	default:
		return fmt.Errorf("lvmd does not answer: %s", status.Convert(err).Message())
	}
}
