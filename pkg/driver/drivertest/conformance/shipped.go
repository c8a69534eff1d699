package conformance

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
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
	uplinkHost = "carve-uplink"
)

// Controller is the controller as it is shipped. Only the API server is a fake.
type Controller struct {
	// Client is that of the API server.
	Client *fake.Clientset
	// Socket is where the CSI service listens, CSI a client of it.
	Socket string
	CSI    csi.ControllerClient

	address, ca, token string
	log                *slog.Logger
	conn               *grpc.ClientConn
}

// shipped runs the controller until the test's end, connects the machine's lvmd to it,
// and returns the socket of its CSI service.
func shipped(t *testing.T, m *drivertest.Machine) string {
	t.Helper()
	c := StartController(t, m.Log)
	t.Cleanup(c.Connect(t, m.LVMD))
	checkController(t, c.conn)
	return c.Socket
}

// StartController runs the controller until the test's end. Its log goes to w.
func StartController(t *testing.T, w io.Writer) *Controller {
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
	// Not t.TempDir: a socket's path may have no more than 107 bytes.
	dir := must.Get(os.MkdirTemp("", "carve"))(t)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	log := slog.New(slog.NewTextHandler(w, nil))
	out := &Controller{Client: client, Socket: filepath.Join(dir, "controller.sock"), address: freeAddress(t),
		ca: filepath.Join(dir, "ca.crt"), token: filepath.Join(dir, "token"), log: log}
	c := must.Get(controller.New(controller.Options{
		Client: client, Namespace: namespace, UplinkListen: out.address,
		Identity: "test", CSISocket: out.Socket, Version: "test", AuditInterval: time.Second, Registerer: prometheus.NewRegistry(), Log: log,
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
	conn := must.Get(grpc.NewClient("unix:"+out.Socket, grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	t.Cleanup(func() { _ = conn.Close() })
	out.conn, out.CSI = conn, csi.NewControllerClient(conn)
	return out
}

// Connect connects the node to the controller, with an lvmd, until disconnect is called
// once, which cuts the calls under way off.
func (c *Controller) Connect(t *testing.T, lvmd lvmdv1.LVMDServer) (disconnect func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	server := grpc.NewServer(uplink.ServerOptions()...)
	lvmdv1.RegisterLVMDServer(server, lvmd)
	done := make(chan error, 1)
	go func() {
		done <- uplink.RunClient(ctx, uplink.ClientOptions{Addresses: c.address, ServerName: uplinkHost, CAFile: c.ca, TokenFile: c.token,
			NodeName: drivertest.NodeName, Version: "test", Serve: server.Serve, Log: c.log})
	}()
	waittest.Succeeds(t, "the controller knows the node's free space", func() error {
		answer, err := c.CSI.GetCapacity(ctx, &csi.GetCapacityRequest{})
		if err == nil && answer.GetAvailableCapacity() == 0 {
			err = errors.New("no node has any")
		}
		return err
	})
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
