package controller

import (
	"context"
	"encoding/base64"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
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
	"github.com/carve-csi/carve/pkg/controller/trust"
	"github.com/carve-csi/carve/pkg/fleet/fakelvmd"
	"github.com/carve-csi/carve/pkg/uplink"
)

// replica is a whole Controller, run as cmd/controller does.
type replica struct {
	c      *Controller
	uplink string
	stop   func()
}

// freeAddress finds an address that nobody listens on.
func freeAddress(t *testing.T) string {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	return lis.Addr().String()
}

func startReplica(t *testing.T, client *fake.Clientset, name string, changes ...func(*Options)) *replica {
	t.Helper()
	r := &replica{uplink: freeAddress(t)}
	o := Options{
		Client: client, Namespace: "carve-system", UplinkListen: r.uplink, UplinkHost: "carve-uplink.test",
		NodeServiceAccount: "carve-node", Identity: name, LeaderElect: true, CompleteBinding: true,
		Registerer: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler),
	}
	for _, change := range changes {
		change(&o)
	}
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	r.c = c
	for _, informer := range c.core.informers() {
		if err := informer.SetTransform(func(obj any) (any, error) { return obj, nil }); err != nil {
			t.Fatal(err)
		}
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
		case <-time.After(30 * time.Second):
			t.Errorf("replica %s did not stop within 30 s", name)
		}
	})
	t.Cleanup(r.stop)
	eventually(t, name+" is ready", func() bool { return c.Ready(context.Background()) == nil })
	return r
}

func (r *replica) leads() bool {
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	return r.c.acting != nil
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(soon); !cond(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", soon, what)
		}
	}
}

// realisticClient accepts tokens that name the node that they are bound to.
func realisticClient(t *testing.T) *fake.Clientset {
	t.Helper()
	client := fake.NewClientset(&v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-system", UID: "the-cluster"}})
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

// connect runs a node's client against the replicas.
func connect(t *testing.T, client *fake.Clientset, node string, lvmd *fakelvmd.Server, replicas ...*replica) {
	t.Helper()
	ca, err := client.CoreV1().ConfigMaps("carve-system").Get(t.Context(), trust.CAName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	token := "e30." + base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"exp":%d}`, time.Now().Add(time.Hour).Unix())) + ".c2ln"
	for name, content := range map[string]string{"ca.crt": ca.Data[trust.CABundleKey], "token": token} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range replicas {
		server := grpc.NewServer(uplink.ServerOptions()...)
		lvmdv1.RegisterLVMDServer(server, lvmd)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = uplink.RunClient(ctx, uplink.ClientOptions{
				Addresses: r.uplink, ServerName: "carve-uplink.test", NodeName: node, Serve: server.Serve,
				CAFile: filepath.Join(dir, "ca.crt"), TokenFile: filepath.Join(dir, "token"), Log: slog.New(slog.DiscardHandler),
			})
		}()
		t.Cleanup(func() { cancel(); <-done; server.Stop() })
	}
}

func TestAStandByKnowsTheFleetAndTakesOverWhenTheLeaderStops(t *testing.T) {
	client := realisticClient(t)
	h := &harness{t: t, client: client}
	first := startReplica(t, client, "first")
	eventually(t, "the first leads", first.leads)
	second := startReplica(t, client, "second")
	h.class("carve", nil)
	lvmd := h.node("n1", 0)
	lvmd.Resize("local", gib)
	connect(t, client, "n1", lvmd, first, second)
	for _, r := range []*replica{first, second} {
		eventually(t, "the node is connected to both", func() bool { return r.c.core.fleet.Connected() == 1 })
	}
	h.claim("one", "n1", func(c *v1.PersistentVolumeClaim) { c.Spec.Resources.Requests = nil })
	h.claim("two", "n1", nil)
	eventually(t, "a claim is served", h.bound("two"))
	if second.leads() {
		t.Fatal("both lead")
	}
	if owner := lvmd.Volumes()["pvc-uid-two"].GetOwner(); owner.GetClusterId() != "the-cluster" {
		t.Errorf("owner %v", owner)
	}
	first.stop()
	eventually(t, "the second leads", second.leads)
	h.claim("three", "n1", nil)
	eventually(t, "a claim is served by the second", h.bound("three"))
	eventually(t, "capacity is published by the second", h.capacityIs("n1", gib-2*100*mib))
}

func TestANodeCannotSpeakForAnother(t *testing.T) {
	client := realisticClient(t)
	r := startReplica(t, client, "only")
	connect(t, client, "n2", fakelvmd.New("n2", fakelvmd.Class{Name: "local", Bytes: gib}), r) // its token is bound to n1
	time.Sleep(500 * time.Millisecond)
	if r.c.core.fleet.Connected() != 0 {
		t.Error("a token of n1 let n2 in")
	}
}

func TestOptionsThatCannotWorkAreErrors(t *testing.T) {
	good := Options{Client: fake.NewClientset(), Namespace: "n", UplinkHost: "h", NodeServiceAccount: "s",
		Registerer: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler)}
	for name, change := range map[string]func(*Options){
		"no client":                        func(o *Options) { o.Client = nil },
		"no namespace":                     func(o *Options) { o.Namespace = "" },
		"no uplink name":                   func(o *Options) { o.UplinkHost = "" },
		"no service account":               func(o *Options) { o.NodeServiceAccount = "" },
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
