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

// DialLVMD makes a client of the lvmd at a unix socket. It connects when it is
// used first, and again, within a fraction of a second, when lvmd comes back.
// The caller closes it.
func DialLVMD(socket string) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("unix:"+socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()), // the socket's mode is what protects it
		grpc.WithConnectParams(grpc.ConnectParams{
			// A dial on this node costs nothing; gRPC's defaults, up to two
			// minutes between dials, are made for networks.
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 500 * time.Millisecond},
			MinConnectTimeout: 5 * time.Second,
		}))
	if err != nil {
		return nil, fmt.Errorf("lvmd's socket %q: %w", socket, err)
	}
	return conn, nil
}

// startGrace is for how long an lvmd that starts at the same time, and looks at its disks first, may
// not answer before that is worth a warning.
const startGrace = time.Minute

// AwaitLVMD returns nil when lvmd answers for the first time, or an error after a minute.
func AwaitLVMD(ctx context.Context, conn grpc.ClientConnInterface) error {
	ctx, cancel := context.WithTimeout(ctx, startGrace)
	defer cancel()
	return LVMDAnswers(ctx, conn, grpc.WaitForReady(true))
}

// LVMDAnswers returns nil when lvmd answers, whatever it says about its own
// health: that is for lvmd's own probe to report.
func LVMDAnswers(ctx context.Context, conn grpc.ClientConnInterface, options ...grpc.CallOption) error {
	_, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{}, options...)
	switch status.Code(err) {
	case codes.OK, codes.NotFound, codes.Unimplemented:
		return nil
	default:
		return fmt.Errorf("lvmd does not answer: %s", status.Convert(err).Message())
	}
}
