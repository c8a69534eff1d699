//go:build kernel

package conformance_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller"
	"github.com/carve-csi/carve/pkg/controller/clientfake"
	"github.com/carve-csi/carve/pkg/controller/pvcontrollerfake"
	"github.com/carve-csi/carve/pkg/controller/trust"
	"github.com/carve-csi/carve/pkg/driver/drivertest"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/uplink"
	"github.com/carve-csi/carve/pkg/waittest"
)

const (
	namespace  = "carve-system"
	account    = "carve-node"
	uplinkHost = "carve-uplink.carve-system.svc"
)

// shippedController is the controller as it is shipped. Only the API server is a fake.
type shippedController struct {
	client             *fake.Clientset
	address, ca, token string
	log                *slog.Logger
}

// startController runs the controller until the test's end. Its log goes to w.
func startController(t *testing.T, w io.Writer) *shippedController {
	t.Helper()
	client := clientfake.New(
		&v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem, UID: "cluster"}},
		&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: drivertest.NodeName, UID: "node", Labels: map[string]string{names.TopologyNode: drivertest.NodeName}}})
	pvcontrollerfake.Start(client)
	// Who brings a token is who it says.
	client.PrependReactor("create", "tokenreviews", func(k8stesting.Action) (bool, runtime.Object, error) {
		return true, &authenticationv1.TokenReview{Status: authenticationv1.TokenReviewStatus{
			Authenticated: true, Audiences: []string{names.UplinkAudience},
			User: authenticationv1.UserInfo{Username: "system:serviceaccount:" + namespace + ":" + account,
				Extra: map[string]authenticationv1.ExtraValue{"authentication.kubernetes.io/node-name": {drivertest.NodeName}}},
		}}, nil
	})
	dir := t.TempDir()
	log := slog.New(slog.NewTextHandler(w, nil))
	out := &shippedController{client: client, address: freeAddress(t), ca: filepath.Join(dir, "ca.crt"), token: filepath.Join(dir, "token"), log: log}
	c := must.Get(controller.New(controller.Options{
		Client: client, Namespace: namespace, UplinkListen: out.address,
		Identity: "test", AuditInterval: time.Second, Registerer: prometheus.NewRegistry(), Log: log,
	}))(t)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	waittest.Succeeds(t, "the controller is ready", func() error { return c.Ready(ctx) })
	published := must.Get(client.CoreV1().ConfigMaps(namespace).Get(ctx, trust.CAName, metav1.GetOptions{}))(t)
	for path, content := range map[string]string{out.ca: published.Data[trust.CABundleKey], out.token: tokenFor(time.Hour)} {
		must.Succeed(t, os.WriteFile(path, []byte(content), 0o600))
	}
	return out
}

// connect connects the node to the controller, with an lvmd, until disconnect is called
// once, which cuts the calls under way off.
func (c *shippedController) connect(t *testing.T, lvmd lvmdv1.LVMDServer) (disconnect func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	server := grpc.NewServer(uplink.ServerOptions()...)
	lvmdv1.RegisterLVMDServer(server, lvmd)
	done := make(chan error, 1)
	go func() {
		done <- uplink.RunClient(ctx, uplink.ClientOptions{Addresses: c.address, ServerName: uplinkHost, CAFile: c.ca, TokenFile: c.token,
			NodeName: drivertest.NodeName, Version: "test", Serve: server.Serve, Log: c.log})
	}()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		server.Stop()
	}
}

// freeAddress is one of this machine that no process listens at.
func freeAddress(t *testing.T) string {
	t.Helper()
	lis := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer lis.Close()
	return lis.Addr().String()
}

// tokenFor is an unsigned JSON web token of the node agent's service account that ends
// after a while.
func tokenFor(life time.Duration) string {
	part := func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }
	return part(`{"alg":"none"}`) + "." + part(fmt.Sprintf(`{"exp":%d,"aud":[%q],"sub":"system:serviceaccount:%s:%s"}`,
		time.Now().Add(life).Unix(), names.UplinkAudience, namespace, account)) + "." + part("x")
}
