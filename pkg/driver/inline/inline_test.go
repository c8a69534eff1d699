package inline

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/driver/csierror"
	"github.com/carve-csi/carve/pkg/driver/kubelet"
	"github.com/carve-csi/carve/pkg/driver/lvmdclient"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
)

const gib = 1 << 30

// fixture has Volumes with an lvmd of one class of ten GiB, and a kubelet's
// directory with one Pod, the plugin's.
type fixture struct {
	*Volumes
	t      *testing.T
	lvmd   *lvmdfake.Server
	dir    string
	events []string
	locked error
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{t: t, lvmd: lvmdfake.New("node", lvmdfake.Class{Name: "local", Default: true, Bytes: 10 * gib}), dir: t.TempDir()}
	listener, server := bufconn.Listen(1<<20), grpc.NewServer()
	lvmdv1.RegisterLVMDServer(server, f.lvmd)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	conn := must.Get(grpc.NewClient("passthrough:lvmd", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) })))(t)
	t.Cleanup(func() { conn.Close() })
	f.Volumes = New(Options{
		Enabled: true, Kubelet: kubelet.Dir(f.dir), LVMD: lvmdclient.Client{LVMDClient: lvmdv1.NewLVMDClient(conn)},
		Lock: func(string) (func(), error) { return func() {}, f.locked },
		Explain: func(err error, v *lvmdv1.Volume) error {
			return fmt.Errorf("%w: volume %s is explained", err, v.GetName())
		},
		Count: func(event string) { f.events = append(f.events, event) },
		Log:   slog.New(slog.DiscardHandler),
	})
	f.pod("plugin")
	return f
}

func (f *fixture) pod(uid string) {
	f.t.Helper()
	must.Succeed(f.t, os.MkdirAll(filepath.Join(f.dir, "pods", uid), 0o700))
}

func (f *fixture) podGoes(uid string) {
	f.t.Helper()
	must.Succeed(f.t, os.RemoveAll(filepath.Join(f.dir, "pods", uid)))
}

func volumeOf(pod string) string { return fmt.Sprintf("csi-%064x", pod) }

// request returns the kubelet's request for a Pod, with additional attributes.
func (f *fixture) request(pod string, attributes ...string) Request {
	all := map[string]string{
		"carve.csi.local/size": "1Gi", "csi.storage.k8s.io/ephemeral": "true", "csi.storage.k8s.io/pod.uid": pod,
		"csi.storage.k8s.io/pod.name": "web", "csi.storage.k8s.io/pod.namespace": "shop", "csi.storage.k8s.io/serviceAccount.name": "default",
	}
	for i := 0; i < len(attributes); i += 2 {
		all[attributes[i]] = attributes[i+1]
	}
	return Request{CSI: &csi.NodePublishVolumeRequest{
		VolumeId: volumeOf(pod), TargetPath: filepath.Join(f.dir, "pods", pod, "volumes/kubernetes.io~csi/scratch/mount"), VolumeContext: all,
	}}
}

func (f *fixture) publish(pod string) {
	f.t.Helper()
	f.pod(pod)
	must.Succeed(f.t, f.Publish(f.t.Context(), f.request(pod), func(*lvmdv1.Volume) error { return nil }))
	f.events = nil
}

// want checks the existing volumes, and the events counted since publish.
func (f *fixture) want(events []string, volumes ...string) {
	f.t.Helper()
	if got := slices.Sorted(maps.Keys(f.lvmd.Volumes())); !slices.Equal(got, slices.Sorted(slices.Values(volumes))) {
		f.t.Errorf("volumes %q, want %q", got, volumes)
	}
	if !slices.Equal(f.events, events) {
		f.t.Errorf("events %q, want %q", f.events, events)
	}
}

func (f *fixture) wantError(err error, code codes.Code, words string) {
	f.t.Helper()
	if err == nil && code == codes.OK {
		return
	}
	if err == nil || csierror.CodeOf(err) != code || !strings.Contains(err.Error(), words) {
		f.t.Errorf("got %v with code %v, want %v with %q", err, csierror.CodeOf(err), code, words)
	}
}

func TestAFailedPublicationLeavesNothing(t *testing.T) {
	mounts := func(*lvmdv1.Volume) error { return nil }
	fails := func(*lvmdv1.Volume) error { return errors.New("it cannot be mounted") }
	for name, test := range map[string]struct {
		prepare func(*fixture)
		request func(*fixture) Request
		mount   func(*lvmdv1.Volume) error
		code    codes.Code
		words   string
		events  []string
		left    []string
	}{
		"one that works":             {mount: mounts, events: []string{EventMade}, left: []string{volumeOf("pod")}},
		"one that is repeated":       {prepare: func(f *fixture) { f.publish("pod") }, mount: mounts, left: []string{volumeOf("pod")}},
		"one that cannot be mounted": {mount: fails, code: codes.Unknown, words: "cannot be mounted", events: []string{EventMade, EventRemoved}},
		"one that cannot be mounted again keeps its data": {prepare: func(f *fixture) { f.publish("pod") }, mount: fails,
			code: codes.Unknown, words: "cannot be mounted", left: []string{volumeOf("pod")}},
		"one while another call is under way": {prepare: func(f *fixture) { f.locked = csierror.New(codes.Aborted, errors.New("another call")) },
			mount: mounts, code: codes.Aborted, words: "another call"},
		"one that is too large for the node": {prepare: func(f *fixture) { f.options.MaxBytes = gib - 1 },
			mount: mounts, code: codes.InvalidArgument, words: "--inline-max-size", events: []string{EventTooLarge}},
		"one that was made before there was the limit": {prepare: func(f *fixture) { f.publish("pod"); f.options.MaxBytes = gib - 1 },
			mount: mounts, left: []string{volumeOf("pod")}},
		"one that lvmd refuses": {request: func(f *fixture) Request { return f.request("pod", "carve.csi.local/size", "11Gi") },
			mount: mounts, code: codes.ResourceExhausted, words: "lvmd: ", events: []string{EventRefused}},
		"one of a class that is not there": {request: func(f *fixture) Request { return f.request("pod", "carve.csi.local/device-class", "fast") },
			mount: mounts, code: codes.InvalidArgument, words: "volumeAttributes[carve.csi.local/device-class]"},
		"one where they are switched off": {prepare: func(f *fixture) { f.options.Enabled = false },
			mount: mounts, code: codes.FailedPrecondition, words: "use a generic ephemeral volume"},
		"one with a volume that is no Pod's": {prepare: func(f *fixture) { f.lvmd.Put(&lvmdv1.Volume{Id: "cv", Name: volumeOf("pod")}) },
			mount: mounts, code: codes.AlreadyExists, words: `belongs to Pod ""`, left: []string{volumeOf("pod")}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			if test.prepare != nil {
				test.prepare(f)
			}
			request := f.request("pod")
			if test.request != nil {
				request = test.request(f)
			}
			f.wantError(f.Publish(t.Context(), request, test.mount), test.code, test.words)
			f.want(test.events, test.left...)
		})
	}
}

func TestWhatAPodAsksForIsWhatLvmdIsAskedFor(t *testing.T) {
	f := newFixture(t)
	request := f.request("pod", "carve.csi.local/device-class", "local", "carve.csi.local/encryption", "ephemeral",
		"carve.csi.local/profile", "scratch", "carve.csi.local/mkfs-inode-size", "512")
	request.FSType = "ext4"
	var mounted *lvmdv1.Volume
	must.Succeed(t, f.Publish(t.Context(), request, func(v *lvmdv1.Volume) error { mounted = v; return nil }))
	if mounted.GetName() != volumeOf("pod") || mounted.GetSizeBytes() != gib || mounted.GetFsType() != "ext4" || mounted.GetDeviceClass() != "local" ||
		mounted.GetEncryption() != "ephemeral" || mounted.GetProfile() != "scratch" || mounted.GetFsSettings()["inode-size"] != "512" ||
		mounted.GetMode() != lvmdv1.VolumeMode_VOLUME_MODE_FILESYSTEM {
		t.Errorf("mounted %v", mounted)
	}
	if o := mounted.GetOwner(); o.GetPodUid() != "pod" || o.GetPodName() != "web" || o.GetPodNamespace() != "shop" {
		t.Errorf("its owner is %v", o)
	}
}

func TestOnlyAVolumeOfAPodIsRemoved(t *testing.T) {
	f := newFixture(t)
	f.publish("pod")
	f.lvmd.Put(&lvmdv1.Volume{Id: "cv", Name: "claimed"})
	f.wantError(f.Remove(t.Context(), "none"), codes.OK, "")
	f.wantError(f.Remove(t.Context(), "claimed"), codes.FailedPrecondition, "belongs to no Pod")
	f.want(nil, "claimed", volumeOf("pod"))

	f.lvmd.SetHooks(lvmdfake.Hooks{BeforeDelete: func(_ context.Context, r *lvmdv1.DeleteVolumeRequest) error {
		return apierror.VolumeInUse(r.GetId(), errors.New("it is mounted"))
	}})
	f.wantError(f.Remove(t.Context(), volumeOf("pod")), codes.FailedPrecondition, "it is mounted: volume "+volumeOf("pod")+" is explained")
	f.want(nil, "claimed", volumeOf("pod"))
	f.lvmd.SetHooks(lvmdfake.Hooks{})
	f.wantError(f.Remove(t.Context(), volumeOf("pod")), codes.OK, "")
	f.want([]string{EventRemoved}, "claimed")
}

func TestAVolumeIsReclaimedAfterItsPodWasGoneForTheGrace(t *testing.T) {
	begin := time.Now()
	for name, test := range map[string]struct {
		// after is how long the Pod had been gone at the second check.
		after time.Duration
		// meanwhile runs before the second check.
		meanwhile   func(*fixture)
		gone, known bool
	}{
		"a moment early":                         {after: Grace - 1, known: true},
		"in time":                                {after: Grace, gone: true},
		"not while a call for it is under way":   {after: Grace, meanwhile: func(f *fixture) { f.locked = errors.New("another call") }, known: true},
		"not when its Pod is back":               {after: Grace, meanwhile: func(f *fixture) { f.pod("pod") }},
		"not when lvmd does not answer":          {after: Grace, meanwhile: func(f *fixture) { f.lvmd.SetDown(true) }},
		"not when no Pod at all has a directory": {after: Grace, meanwhile: func(f *fixture) { f.podGoes("plugin") }},
		"not when its Pod comes at the last moment": {after: Grace, meanwhile: func(f *fixture) {
			f.options.Lock = func(string) (func(), error) { f.pod("pod"); return func() {}, nil }
		}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.publish("pod")
			f.lvmd.Put(&lvmdv1.Volume{Id: "cv", Name: "claimed"})
			f.podGoes("pod")
			id := f.lvmd.Volumes()[volumeOf("pod")].GetId()
			known := f.ReclaimOnce(t.Context(), Abandoned{}, begin)
			if len(known) != 1 || !known[id].Equal(begin) {
				t.Fatalf("abandoned are %v", known)
			}
			if test.meanwhile != nil {
				test.meanwhile(f)
			}
			known = f.ReclaimOnce(t.Context(), known, begin.Add(test.after))
			if since, ok := known[id]; ok != test.known || ok && !since.Equal(begin) {
				t.Errorf("abandoned are %v", known)
			}
			if test.gone {
				f.want([]string{EventReclaimed}, "claimed")
				return
			}
			f.want(nil, "claimed", volumeOf("pod"))
		})
	}
}
