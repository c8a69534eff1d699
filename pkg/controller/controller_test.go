package controller

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/controller/clientfake"
	"github.com/carve-csi/carve/pkg/controller/pvcontrollerfake"
	"github.com/carve-csi/carve/pkg/controller/trust"
	"github.com/carve-csi/carve/pkg/logging/logtest"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/uplink"
	"github.com/carve-csi/carve/pkg/waittest"
)

type replica struct {
	c      *Controller
	uplink string
	stop   func()
}

func freeAddress(t *testing.T) string {
	t.Helper()
	lis := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer lis.Close()
	return lis.Addr().String()
}

func startReplica(t *testing.T, client *fake.Clientset, name string, changes ...func(*Options)) *replica {
	t.Helper()
	r := &replica{uplink: freeAddress(t)}
	o := Options{
		Client: client, Namespace: "carve-system", UplinkListen: r.uplink,
		Identity: name, LeaderElect: true,
		Registerer: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler),
	}
	for _, change := range changes {
		change(&o)
	}
	c := must.Get(New(o))(t)
	r.c = c
	for _, informer := range c.core.Informers() {
		must.Succeed(t, informer.SetTransform(func(obj any) (any, error) { return obj, nil }))
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("replica %s: %v", name, err)
			}
		case <-time.After(waittest.Limit):
			t.Errorf("replica %s does not stop", name)
		}
	})
	t.Cleanup(r.stop)
	waittest.Until(t, name+" is ready", func() bool { return c.Ready(context.Background()) == nil })
	return r
}

func (r *replica) leads() bool {
	return r.c.acting.Load() != nil
}

func TestRejectedUplinksAreCounted(t *testing.T) {
	r := startReplica(t, realisticClient(t), "replica")
	waittest.Until(t, "a peer that speaks no TLS is counted", func() bool {
		conn, err := net.Dial("tcp", r.uplink)
		if err != nil {
			return false
		}
		_, _ = conn.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
		_ = conn.Close()
		return testutil.ToFloat64(r.c.core.metrics.uplinkRejections.WithLabelValues("handshake")) > 0
	})
}

// realisticClient accepts tokens only for the node they are bound to.
func realisticClient(t *testing.T) *fake.Clientset {
	t.Helper()
	client := clientfake.New(&v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-system", UID: "the-cluster"}})
	pvcontrollerfake.Start(client)
	client.PrependReactor("create", "tokenreviews", func(a k8stesting.Action) (bool, runtime.Object, error) {
		review := a.(k8stesting.CreateAction).GetObject().(*authenticationv1.TokenReview)
		return true, &authenticationv1.TokenReview{Status: authenticationv1.TokenReviewStatus{
			Authenticated: true, Audiences: review.Spec.Audiences,
			User: authenticationv1.UserInfo{Username: "system:serviceaccount:carve-system:carve-node",
				Extra: map[string]authenticationv1.ExtraValue{"authentication.kubernetes.io/node-name": {"n1"}}},
		}}, nil
	})
	return client
}

func connect(t *testing.T, client *fake.Clientset, node string, lvmd *lvmdfake.Server, replicas ...*replica) {
	t.Helper()
	connectLogging(t, client, node, lvmd, slog.New(slog.DiscardHandler), replicas...)
}

func connectLogging(t *testing.T, client *fake.Clientset, node string, lvmd *lvmdfake.Server, log *slog.Logger, replicas ...*replica) {
	t.Helper()
	connectServing(t, client, node, func() *grpc.Server {
		server := grpc.NewServer(uplink.ServerOptions()...)
		lvmdv1.RegisterLVMDServer(server, lvmd)
		return server
	}, log, replicas...)
}

func connectServing(t *testing.T, client *fake.Clientset, node string, serve func() *grpc.Server, log *slog.Logger, replicas ...*replica) {
	t.Helper()
	ca := must.Get(client.CoreV1().ConfigMaps("carve-system").Get(t.Context(), trust.CAName, metav1.GetOptions{}))(t)
	dir := t.TempDir()
	token := "e30." + base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"exp":%d,"aud":["carve-uplink"],"sub":"system:serviceaccount:carve-system:carve-node"}`, time.Now().Add(time.Hour).Unix())) + ".c2ln"
	for name, content := range map[string]string{"ca.crt": ca.Data[trust.CABundleKey], "token": token} {
		must.Succeed(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	for _, r := range replicas {
		server := serve()
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = uplink.RunClient(ctx, uplink.ClientOptions{
				Addresses: r.uplink, ServerName: "carve-uplink.carve-system.svc", NodeName: node, Serve: server.Serve,
				CAFile: filepath.Join(dir, "ca.crt"), TokenFile: filepath.Join(dir, "token"), Log: log,
			})
		}()
		t.Cleanup(func() { cancel(); <-done; server.Stop() })
	}
}

func TestAStandByKnowsTheFleetAndTakesOverWhenTheLeaderStops(t *testing.T) {
	client := realisticClient(t)
	h := &harness{t: t, client: client}
	first := startReplica(t, client, "first")
	waittest.Until(t, "the first leads", first.leads)
	second := startReplica(t, client, "second")
	h.class("carve", nil)
	lvmd := h.node("n1", 0)
	lvmd.Resize("local", gib)
	connect(t, client, "n1", lvmd, first, second)
	for _, r := range []*replica{first, second} {
		waittest.Until(t, "the node is connected to both", func() bool { return r.c.core.Fleet.Connected() == 1 })
	}
	h.claim("one", "n1", func(c *v1.PersistentVolumeClaim) { c.Spec.Resources.Requests = nil })
	h.claim("two", "n1", nil)
	waittest.Until(t, "a claim is served", h.bound("two"))
	if second.leads() {
		t.Fatal("both lead")
	}
	if owner := lvmd.Volumes()["pvc-uid-two"].GetOwner(); owner.GetClusterId() != "the-cluster" {
		t.Errorf("owner %v", owner)
	}
	first.stop()
	waittest.Until(t, "the second leads", second.leads)
	h.claim("three", "n1", nil)
	waittest.Until(t, "a claim is served by the second", h.bound("three"))
	waittest.Until(t, "capacity is published by the second", h.capacityIs("n1", gib-2*100*mib))
}

func TestANodeCannotSpeakForAnother(t *testing.T) {
	client := realisticClient(t)
	var controller, node logtest.Recorder
	r := startReplica(t, client, "only", func(o *Options) { o.Log = controller.Logger() })
	lvmd := lvmdfake.New("n2", lvmdfake.Class{Name: "local", Bytes: gib})
	connectLogging(t, client, "n2", lvmd, node.Logger(), r) // its token is bound to n1
	const why = `the token is bound to node "n1", the peer says that it is node "n2"`
	var refused *uplink.RefusedError
	waittest.Until(t, "the node is refused, with a reason", func() bool {
		return len(node.Find(func(l logtest.Record) bool { return errors.As(l.Error(), &refused) && refused.Reason == why })) != 0
	}, func() any { return node.Find(func(logtest.Record) bool { return true }) })
	waittest.Until(t, "the controller refuses each attempt for that reason", func() bool {
		return len(controller.Find(func(l logtest.Record) bool {
			var denied *uplink.DeniedError
			return l.Message == "uplink refused" && errors.As(l.Error(), &denied) && denied.Reason == why
		})) >= 2
	}, func() any { return controller.Find(func(logtest.Record) bool { return true }) })
	if views := r.c.core.Fleet.Views(); r.c.core.Fleet.Connected() != 0 || len(views) != 0 {
		t.Errorf("a token of n1 let n2 in: %v", views)
	}
	connect(t, client, "n1", lvmdfake.New("n1", lvmdfake.Class{Name: "local", Bytes: gib}), r)
	waittest.Until(t, "n1 connects", func() bool { v, ok := r.c.core.Fleet.View("n1"); return ok && v.Connected })
	if _, known := r.c.core.Fleet.View("n2"); known {
		t.Error("n2 is known by now")
	}
}

func TestOptionsThatCannotWorkAreErrors(t *testing.T) {
	good := Options{Client: clientfake.New(), Namespace: "n",
		Registerer: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler)}
	for name, change := range map[string]func(*Options){
		"no client":                        func(o *Options) { o.Client = nil },
		"no namespace":                     func(o *Options) { o.Namespace = "" },
		"an orphan that was made just now": func(o *Options) { o.OrphanGrace = time.Second },
	} {
		t.Run(name, func(t *testing.T) {
			o := good
			change(&o)
			if _, err := New(o); err == nil {
				t.Error("accepted")
			}
		})
	}
}
