package controller

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	schedulerv1 "k8s.io/kube-scheduler/config/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	"sigs.k8s.io/yaml"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/clientfake"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/scheduler"
	"github.com/carve-csi/carve/pkg/scheduler/extender"
	"github.com/carve-csi/carve/pkg/waittest"
)

func claimVolume(name string) v1.Volume {
	return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name}}}
}

func ephemeralVolume(name string) v1.Volume {
	class := "carve"
	return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{
		VolumeClaimTemplate: &v1.PersistentVolumeClaimTemplate{Spec: v1.PersistentVolumeClaimSpec{
			StorageClassName: &class, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("7Mi")}},
		}}}}}
}

func TestAPodDemandsWhatItsUnboundClaimsWillTake(t *testing.T) {
	h := newHarness(t, func(c *Controller) { c.core.pinGrace = time.Hour })
	h.node("n1", gib)
	h.class("carve", func(c *storagev1.StorageClass) { c.Parameters = map[string]string{names.ParamPlacement: "least-free"} })
	h.class("early", immediate)
	h.class("other", func(c *storagev1.StorageClass) { c.Provisioner = "other.csi" })
	h.class("fast", func(c *storagev1.StorageClass) { c.Parameters = map[string]string{names.ParamDeviceClass: "fast"} })
	in := func(class string) func(*v1.PersistentVolumeClaim) {
		return func(c *v1.PersistentVolumeClaim) { c.Spec.StorageClassName = &class }
	}
	h.claim("plain", "", nil)
	h.claim("early", "", in("early"))
	h.claim("other", "", in("other"))
	h.claim("fast", "", in("fast"))
	h.claim("wrong", "", func(c *v1.PersistentVolumeClaim) {
		c.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}
	})
	h.run()
	h.class("moving", movable)
	h.boundVolume("bound", "n1")
	owner := h.ownedPod("q", "")
	h.claim("q-data", "n1", func(c *v1.PersistentVolumeClaim) {
		in("moving")(c)
		c.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner, v1.SchemeGroupVersion.WithKind("Pod"))}
	})
	for _, uid := range []string{"uid-bound", "uid-q-data"} {
		waittest.Until(h.t, "the controller sees it", func() bool {
			claim := h.c.core.Claim(uid)
			return claim != nil && claim.Spec.VolumeName != ""
		})
	}
	waittest.Until(h.t, "it sees the movable volume", func() bool { _, err := h.c.core.VolumeLister.Get("pvc-uid-q-data"); return err == nil })
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default", UID: "uid-p"}}
	for name, test := range map[string]struct {
		volumes []v1.Volume
		want    []scheduler.Demand
		fails   bool
	}{
		"a Pod without volumes":        {},
		"a claim":                      {volumes: []v1.Volume{claimVolume("plain")}, want: []scheduler.Demand{{Claim: "uid-plain", Volume: "pvc-uid-plain", Bytes: 100 * mib, Policy: scheduler.LeastFree, StorageClass: "carve", Size: 100 * mib}}},
		"a claim that two volumes use": {volumes: []v1.Volume{claimVolume("plain"), claimVolume("plain")}, want: []scheduler.Demand{{Claim: "uid-plain", Volume: "pvc-uid-plain", Bytes: 100 * mib, Policy: scheduler.LeastFree, StorageClass: "carve", Size: 100 * mib}}},
		"another device class":         {volumes: []v1.Volume{claimVolume("fast")}, want: []scheduler.Demand{{Claim: "uid-fast", Volume: "pvc-uid-fast", Class: "fast", Bytes: 100 * mib, Policy: scheduler.MostFree, StorageClass: "fast", Size: 100 * mib}}},
		"a claim that is bound":        {volumes: []v1.Volume{claimVolume("bound")}},
		"a claim of a movable volume":  {volumes: []v1.Volume{claimVolume("q-data"), claimVolume("plain")}, want: []scheduler.Demand{{Claim: "uid-q-data", Node: "n1"}, {Claim: "uid-plain", Volume: "pvc-uid-plain", Bytes: 100 * mib, Policy: scheduler.LeastFree, StorageClass: "carve", Size: 100 * mib}}},
		"a claim that binds at once":   {volumes: []v1.Volume{claimVolume("early")}},
		"a claim of another driver":    {volumes: []v1.Volume{claimVolume("other")}},
		"a claim that we reject":       {volumes: []v1.Volume{claimVolume("wrong")}},
		"a claim that does not exist":  {volumes: []v1.Volume{claimVolume("missing")}, fails: true},
		"an ephemeral volume without its claim yet, which is as large as ext4 needs": {volumes: []v1.Volume{ephemeralVolume("e")}, want: []scheduler.Demand{{Bytes: 16 * mib, Policy: scheduler.LeastFree, StorageClass: "carve", Size: 16 * mib}}},
		"volumes of other kinds": {volumes: []v1.Volume{{Name: "x", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}},
	} {
		t.Run(name, func(t *testing.T) {
			p := pod.DeepCopy()
			p.Spec.Volumes = test.volumes
			got, err := h.c.core.demands(t.Context(), p)
			if !slices.Equal(got, test.want) || (err != nil) != test.fails {
				t.Errorf("got %+v %v, want %+v", got, err, test.want)
			}
		})
	}
	t.Run("an ephemeral volume's name that another claim has", func(t *testing.T) {
		h.claim("p-e", "", nil)
		p := pod.DeepCopy()
		p.Spec.Volumes = []v1.Volume{ephemeralVolume("e")}
		if got, err := h.c.core.demands(t.Context(), p); err == nil {
			t.Errorf("demands %+v", got)
		}
	})
}

func TestAClaimIsComparedWithThePublishedCapacityOfTheNode(t *testing.T) {
	h := newHarness(t)
	h.node("n1", gib)
	h.class("carve", nil)
	h.run()
	want := func(node, class string, size int64, fits bool) func() bool {
		return func() bool {
			return (h.c.published(node, scheduler.Demand{StorageClass: class, Size: size, Bytes: 2 * size}) == nil) == fits
		}
	}
	waittest.Until(t, "a claim fits that takes all", want("n1", "carve", gib, true))
	for _, fits := range []func() bool{want("n1", "carve", gib+1, false), want("n1", "other", mib, false), want("n2", "carve", mib, false)} {
		if !fits() {
			t.Error("a claim fits that is too large, of another class or on another node")
		}
	}
	h.c.core.available.Refused("n1", "carve") // of which the ledger learns nothing
	waittest.Until(t, "nothing fits", want("n1", "carve", mib, false))
}

// It leads for a while in between.
func TestAReplicaThatDoesNotLeadKnowsWhatClaimsWillTake(t *testing.T) {
	h := newHarness(t)
	h.node("n1", gib)
	h.class("carve", nil)
	ctx, cancel := context.WithCancel(context.Background())
	h.c.all.Start(ctx.Done())
	h.c.own.Start(ctx.Done())
	var leading sync.WaitGroup
	h.t.Cleanup(func() {
		cancel()
		leading.Wait()
		h.c.all.Shutdown()
		h.c.own.Shutdown()
		h.c.core.Fleet.Close()
		h.net.Close()
	})
	waittest.Until(h.t, "caches are complete", h.c.core.Synced)
	stop := must.Get(h.c.shadowReservations())(t)
	defer stop()
	h.attach(h.node("n2", 0), "n2")
	free := func(bytes int64) func() bool {
		return func() bool { left, ok := h.c.core.ledger.FreeSpace("n1", ""); return ok && left.Available == bytes }
	}
	waittest.Until(h.t, "all is free", free(gib))
	h.claim("a", "n1", nil)
	h.claim("b", "", nil)
	waittest.Until(h.t, "a is reserved", free(gib-100*mib))
	h.selectNode("b", "n1")
	waittest.Until(h.t, "b is reserved", free(gib-200*mib))
	h.selectNode("b", "n2")
	waittest.Until(h.t, "b went elsewhere", free(gib-100*mib))
	h.deleteClaim("a")
	waittest.Until(h.t, "a is gone", free(gib))
	leads, endLeading := context.WithCancel(ctx)
	defer endLeading()
	leading.Go(func() {
		if err := h.c.lead(leads); err != nil {
			t.Error(err)
		}
	})
	a := h.leader()
	h.selectNode("b", "n1")
	waittest.Until(h.t, "the leader's provisioner takes over", func() bool { return a.provisioner.Busy("uid-b") || h.volumes() == 1 })
	waittest.Until(h.t, "b is bound", h.bound("b"))
	waittest.Until(h.t, "b's volume is published", h.capacityIs("n1", gib-100*mib))
	endLeading()
	leading.Wait()
	h.claim("c", "n1", nil)
	waittest.Until(h.t, "c is reserved by the replica that led", free(gib-200*mib))
	h.change("n1", func(c *storagev1.CSIStorageCapacity) {
		metav1.SetMetaDataAnnotation(&c.ObjectMeta, names.AnnotationHeldBack, h.c.core.Now().Add(time.Hour).Format(time.RFC3339Nano))
	})
	waittest.Until(h.t, "it holds n1 back as the next leader does", func() bool { return len(h.c.core.available.HeldBack(cluster.CauseFailing)) == 1 })
}

// servingPair writes a key pair for 127.0.0.1, and returns a client that trusts it.
func servingPair(t *testing.T) (extender.Files, *http.Client) {
	t.Helper()
	server := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	pair := server.TLS.Certificates[0]
	key := must.Get(x509.MarshalPKCS8PrivateKey(pair.PrivateKey))(t)
	dir := t.TempDir()
	files := extender.Files{Certificate: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key")}
	for path, block := range map[string]*pem.Block{
		files.Certificate: {Type: "CERTIFICATE", Bytes: pair.Certificate[0]},
		files.Key:         {Type: "PRIVATE KEY", Bytes: key},
	} {
		must.Succeed(t, os.WriteFile(path, pem.EncodeToMemory(block), 0o600))
	}
	return files, server.Client()
}

func TestEveryReplicaAnswersTheScheduler(t *testing.T) {
	client := realisticClient(t)
	files, scheduler := servingPair(t)
	for _, name := range []string{"one", "two"} {
		address := freeAddress(t)
		startReplica(t, client, name, func(o *Options) { o.ExtenderListen, o.ExtenderFiles = address, files })
		body := must.Get(json.Marshal(extenderv1.ExtenderArgs{Pod: &v1.Pod{}, NodeNames: &[]string{"n1", "n2"}}))(t)
		var result extenderv1.ExtenderFilterResult
		waittest.Until(t, "replica "+name+" answers", func() bool {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+address+"/filter", bytes.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			res, err := scheduler.Do(req)
			if err != nil {
				return false
			}
			defer res.Body.Close()
			return res.StatusCode == http.StatusOK && json.NewDecoder(res.Body).Decode(&result) == nil
		})
		if result.NodeNames == nil || !slices.Equal(*result.NodeNames, []string{"n1", "n2"}) {
			t.Errorf("replica %s: %+v", name, result)
		}
	}
}

func TestWithoutAKeyPairTheSchedulerIsNotServed(t *testing.T) {
	_, err := New(Options{Client: clientfake.New(), Namespace: "carve-system", UplinkHost: "carve", NodeServiceAccount: "carve-node",
		ExtenderListen: ":0", Registerer: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler)})
	if err == nil {
		t.Error("made a controller")
	}
}

func TestTheExampleForTheSchedulerIsWhatItReads(t *testing.T) {
	content := must.Get(os.ReadFile("../../deploy/examples/kube-scheduler.yaml"))(t)
	var config schedulerv1.KubeSchedulerConfiguration
	must.Succeed(t, yaml.UnmarshalStrict(content, &config))
	if len(config.Extenders) != 1 {
		t.Fatalf("%d extenders", len(config.Extenders))
	}
	e := config.Extenders[0]
	if e.FilterVerb != "filter" || e.PrioritizeVerb != "prioritize" || e.BindVerb != "" || e.PreemptVerb != "" ||
		!e.NodeCacheCapable || !e.Ignorable || !e.EnableHTTPS || e.TLSConfig == nil || e.TLSConfig.Insecure {
		t.Errorf("%+v", e)
	}
}
