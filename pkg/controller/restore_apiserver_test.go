//go:build apiserver

package controller

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/carve-csi/carve/api/leadership"
	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// plane is a test's own control plane.
type plane struct {
	t         *testing.T
	dir       string
	client    kubernetes.Interface
	arguments map[string][]string
	running   map[string]*exec.Cmd
	log       map[string]*bytes.Buffer
}

// In the order of their start.
var planeComponents = []string{"etcd", "kube-apiserver", "kube-controller-manager"}

const planeEtcd = "http://127.0.0.1:23790"

// newPlane starts a plane with the keys of the shared one, until the test ends.
func newPlane(t *testing.T) *plane {
	t.Helper()
	dir, pki := t.TempDir(), filepath.Join(filepath.Dir(os.Getenv("KUBECONFIG")), "pki")
	access := pathsResolved(t, must.Get(clientcmd.LoadFromFile(os.Getenv("KUBECONFIG")))(t))
	host := ""
	for _, c := range access.Clusters {
		host = must.Get(url.Parse(c.Server))(t).Hostname()
		c.Server = "https://" + net.JoinHostPort(host, "7443")
	}
	kubeconfig, etcd := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "etcd.yaml")
	must.Succeed(t, clientcmd.WriteToFile(*access, kubeconfig))
	const peer = "http://127.0.0.1:23800"
	must.Succeed(t, os.WriteFile(etcd, fmt.Appendf(nil, "name: default\ndata-dir: %q\nlisten-client-urls: %[2]s\nadvertise-client-urls: %[2]s\n"+
		"listen-peer-urls: %[3]s\ninitial-advertise-peer-urls: %[3]s\ninitial-cluster: default=%[3]s\nunsafe-no-fsync: true\nlog-level: warn\n",
		filepath.Join(dir, "etcd"), planeEtcd, peer), 0o600))
	p := &plane{t: t, dir: dir, running: map[string]*exec.Cmd{}, log: map[string]*bytes.Buffer{}, arguments: map[string][]string{
		"etcd": {"--config-file=" + etcd},
		"kube-apiserver": {"--etcd-servers=" + planeEtcd, "--advertise-address=" + host, "--bind-address=" + host, "--secure-port=7443",
			"--service-cluster-ip-range=10.96.0.0/16", "--authorization-mode=AlwaysAllow", "--shutdown-watch-termination-grace-period=1s",
			"--tls-cert-file=" + pki + "/apiserver.crt", "--tls-private-key-file=" + pki + "/apiserver.key", "--client-ca-file=" + pki + "/ca.crt",
			"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file=" + pki + "/service-accounts.crt",
			"--service-account-signing-key-file=" + pki + "/service-accounts.key"},
		"kube-controller-manager": {"--kubeconfig=" + kubeconfig, "--bind-address=127.0.0.1", "--secure-port=0", "--leader-elect=false",
			"--controllers=persistentvolume-binder-controller,persistentvolumeclaim-protection-controller,persistentvolume-protection-controller"},
	}}
	config := must.Get(clientcmd.BuildConfigFromFlags("", kubeconfig))(t)
	config.QPS = -1
	p.client = must.Get(kubernetes.NewForConfig(config))(t)
	t.Cleanup(func() {
		p.end(planeComponents...)
		for c, log := range p.log {
			if t.Failed() {
				t.Logf("the end of the log of %s:\n%s", c, log.Bytes()[max(0, log.Len()-4000):])
			}
		}
	})
	p.start(planeComponents...)
	return p
}

// start also waits until the API server, if it runs, serves.
func (p *plane) start(components ...string) {
	p.t.Helper()
	for _, c := range components {
		command := exec.Command(os.Getenv("KUBERNETES"), append([]string{c}, p.arguments[c]...)...)
		if p.log[c] == nil {
			p.log[c] = &bytes.Buffer{}
		}
		command.Stdout, command.Stderr = p.log[c], p.log[c]
		command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // it must not outlive a killed test
		must.Succeed(p.t, command.Start())
		p.running[c] = command
		if c == "etcd" {
			waittest.Succeeds(p.t, "etcd serves", func() error {
				response, err := http.Get(planeEtcd + "/readyz")
				if err != nil {
					return err
				}
				if response.StatusCode != http.StatusOK {
					err = fmt.Errorf("it answers %s", response.Status)
				}
				return errors.Join(err, response.Body.Close())
			})
		}
		if p.running["kube-apiserver"] != nil {
			waittest.Succeeds(p.t, "the API server serves", func() error {
				_, err := p.client.CoreV1().Namespaces().Get(p.t.Context(), metav1.NamespaceDefault, metav1.GetOptions{})
				return err
			})
		}
	}
}

func (p *plane) end(components ...string) {
	for _, c := range slices.Backward(components) {
		if command := p.running[c]; command != nil {
			_ = command.Process.Signal(syscall.SIGTERM)
			_ = command.Wait()
			delete(p.running, c)
		}
	}
}

func (p *plane) backUp() {
	p.t.Helper()
	p.end("etcd")
	must.Succeed(p.t, os.CopyFS(filepath.Join(p.dir, "backup"), os.DirFS(filepath.Join(p.dir, "etcd"))))
	p.start("etcd")
}

func (p *plane) restore() {
	p.t.Helper()
	p.end(planeComponents...)
	must.Succeed(p.t, os.RemoveAll(filepath.Join(p.dir, "etcd")))
	must.Succeed(p.t, os.CopyFS(filepath.Join(p.dir, "etcd"), os.DirFS(filepath.Join(p.dir, "backup"))))
	p.start(planeComponents...)
}

// refusesEarlierLeaders makes a node reject creates of earlier leaders than the newest seen,
// as lvmd does for an hour.
func refusesEarlierLeaders(node *lvmdfake.Server) {
	var mu sync.Mutex
	var newest leadership.Leadership
	node.SetHooks(lvmdfake.Hooks{BeforeCreate: func(ctx context.Context, _ *lvmdv1.CreateVolumeRequest) error {
		mu.Lock()
		defer mu.Unlock()
		caller, _, err := leadership.Of(ctx)
		if err != nil {
			return err
		}
		if caller.Before(newest) {
			return lvmdfake.Error(codes.FailedPrecondition, names.ReasonLeaderSuperseded, caller.String()+" is not "+newest.String())
		}
		newest = caller
		return nil
	}})
}

func TestAClusterGoesBackToABackupOfEtcd(t *testing.T) {
	p := newPlane(t)
	w := newWorld(t, p.client)
	w.namespace = metav1.NamespaceDefault
	node := w.nodes["n1"]
	refusesEarlierLeaders(node)
	class := w.class(t, nil)
	runs, stop := 0, func() {}
	end := func() { stop(); stop = func() {} }
	t.Cleanup(func() { end() })
	lead := func() (c *Controller) {
		end()
		runs++
		c, _, stop = startOn(t, w, Options{Client: w.client, Namespace: w.namespace, LeaderElect: true, Identity: fmt.Sprintf("run-%d", runs)})
		waittest.Until(t, "the controller leads", func() bool { return c.acting.Load() != nil })
		return c
	}
	lead()
	kept, deleted := w.claim(t, class, "n1", named("kept", nil)), w.claim(t, class, "n1", named("deleted", nil))
	w.waitBound(t, kept)
	w.waitBound(t, deleted)
	end()
	p.backUp()

	lead()
	c := lead() // its number is larger than the first leader's after the restore
	later := w.claim(t, class, "n1", named("later", nil))
	w.waitBound(t, later)
	of := func(claim *v1.PersistentVolumeClaim) *lvmdv1.Volume { return node.Volumes()[w.volumeOf(claim)] }
	a := newAuditor(c.core, false, 0, func(string) bool { return false })
	waittest.Until(t, "the node notes that a PersistentVolume names the volume", func() bool {
		a.Pass(t.Context())
		return !of(later).GetProvisional()
	})
	w.delete(t, deleted)
	w.waitNothingLeft(t, deleted)
	end()
	p.restore()
	if w.get(later) != nil || w.get(deleted) == nil || of(later) == nil || of(deleted) != nil {
		t.Fatalf("after the restore: claims %v, %v, on the node %v", w.get(later), w.get(deleted), node.Volumes())
	}

	lead()
	fresh := w.claim(t, class, "n1", named("fresh", nil))
	waittest.Until(t, "an Event says what is to be done", func() bool {
		return w.eventOn(t, fresh, cluster.ReasonFailed, "node n1", "restored from a backup of etcd, delete the Lease carve-controller") != nil
	})
	must.Succeed(t, w.client.CoordinationV1().Leases(w.namespace).Delete(t.Context(), leaseName, metav1.DeleteOptions{}))
	c = lead()
	w.waitBound(t, fresh)

	a = newAuditor(c.core, false, 0, func(string) bool { return false })
	a.MissingGrace = 1
	object := must.Get(w.client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{}))(t)
	waittest.Until(t, "both kinds of volumes are reported", func() bool {
		a.Pass(t.Context())
		missing := func(c v1.PersistentVolumeClaimCondition) bool { return c.Type == names.ConditionVolumeMissing }
		return w.eventOn(t, object, cluster.ReasonOrphanFound, "kept", of(later).GetId(), "made for claim default/later") != nil &&
			w.pv(deleted).Status.Reason == cluster.ReasonVolumeMissing && slices.ContainsFunc(w.get(deleted).Status.Conditions, missing)
	})
	if of(later) == nil || of(kept) == nil || w.pv(kept).Status.Reason != "" || w.get(kept).Status.Phase != v1.ClaimBound {
		t.Errorf("on the node are %v, the volume that was always there is %+v", node.Volumes(), w.pv(kept).Status)
	}
}
