package csisocket

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/test/bufconn"

	"github.com/carve-csi/carve/pkg/must"
)

// TestStoppingWaitsForNoIdleClient has a clock that moves only while everything waits.
func TestStoppingWaitsForNoIdleClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		listener := bufconn.Listen(1 << 16)
		server := grpc.NewServer()
		healthv1.RegisterHealthServer(server, health.NewServer())
		ctx, stop := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- Serve(ctx, server, listener) }()
		conn := must.Get(grpc.NewClient("passthrough:///csi", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) })))(t)
		must.Get(healthv1.NewHealthClient(conn).Check(t.Context(), &healthv1.HealthCheckRequest{}))(t)
		began := time.Now()
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("it waited %v for an idle connection", took)
		}
		must.Succeed(t, conn.Close())
	})
}
