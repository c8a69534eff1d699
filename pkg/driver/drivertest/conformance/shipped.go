package conformance

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller"
	"github.com/carve-csi/carve/pkg/controller/trust"
	"github.com/carve-csi/carve/pkg/driver/drivertest"
	"github.com/carve-csi/carve/pkg/uplink"
)

const (
	namespace  = "carve-system"
	account    = "carve-node"
	uplinkHost = "carve-uplink"
	// patience bounds what an emulated machine takes to begin.
	patience = 2 * time.Minute
)

// shipped runs the controller as it is shipped, until the test's end: its CSI service,
// and its uplink, over which the machine's lvmd connects to it. Only the API server is
// a fake. It returns the service's socket.
func shipped(t *testing.T, m *drivertest.Machine) string {
	t.Helper()
	client := fake.NewClientset(
		&v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem, UID: "cluster"}},
		&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: drivertest.NodeName, UID: "node", Labels: map[string]string{names.TopologyNode: drivertest.NodeName}}})
	// Who brings a token is who it says.
	client.PrependReactor("create", "tokenreviews", func(k8stesting.Action) (bool, runtime.Object, error) {
		return true, &authenticationv1.TokenReview{Status: authenticationv1.TokenReviewStatus{
			Authenticated: true, Audiences: []string{names.UplinkAudience},
			User: authenticationv1.UserInfo{Username: "system:serviceaccount:" + namespace + ":" + account,
				Extra: map[string]authenticationv1.ExtraValue{"authentication.kubernetes.io/node-name": {drivertest.NodeName}}},
		}}, nil
	})
	log := slog.New(slog.NewTextHandler(m.Log, nil))
	address, socket := freeAddress(t), filepath.Join(m.Dir, "controller.sock")
	c, err := controller.New(controller.Options{
		Client: client, Namespace: namespace, UplinkListen: address, UplinkHost: uplinkHost, NodeServiceAccount: account,
		Identity: "test", CSISocket: socket, Version: "test", Registerer: prometheus.NewRegistry(), Log: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	go func() { done <- c.Run(ctx) }()
	server := grpc.NewServer(uplink.ServerOptions()...)
	lvmdv1.RegisterLVMDServer(server, m.LVMD)
	ca, token := filepath.Join(m.Dir, "ca.crt"), filepath.Join(m.Dir, "token")
	wait(t, "the controller is ready", func() error { return c.Ready(ctx) })
	published, err := client.CoreV1().ConfigMaps(namespace).Get(ctx, trust.CAName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for path, content := range map[string]string{ca: published.Data[trust.CABundleKey], token: tokenFor(time.Hour)} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	go func() {
		done <- uplink.RunClient(ctx, uplink.ClientOptions{Addresses: address, ServerName: uplinkHost, CAFile: ca, TokenFile: token,
			NodeName: drivertest.NodeName, Version: "test", Serve: server.Serve, Log: log})
	}()
	t.Cleanup(func() {
		cancel()
		for range cap(done) {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		server.Stop()
	})
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	wait(t, "the controller knows the node's room", func() error {
		answer, err := csi.NewControllerClient(conn).GetCapacity(ctx, &csi.GetCapacityRequest{})
		if err == nil && answer.GetAvailableCapacity() == 0 {
			err = errors.New("no node has any")
		}
		return err
	})
	return socket
}

// freeAddress is one of this machine that nobody listens at.
func freeAddress(t *testing.T) string {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	return lis.Addr().String()
}

// tokenFor is a JSON web token that ends after a while, which nobody signed.
func tokenFor(life time.Duration) string {
	part := func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }
	return part(`{"alg":"none"}`) + "." + part(fmt.Sprintf(`{"exp":%d}`, time.Now().Add(life).Unix())) + "." + part("x")
}

func wait(t *testing.T, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v: %v", what, patience, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
