//go:build apiserver

package controller

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/volume"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/fleet/fakelvmd"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// observation is what a user and the rest of Kubernetes see, without what
// differs between any two runs.
type observation struct {
	Claim   string // phase, or "gone"
	Notes   map[string]string
	Guards  []string // the claim's finalizers
	Volume  *volumeObservation
	OnNodes map[string]int // volumes on each node
	Events  []string       `json:",omitempty"` // types and reasons of the provisioner's Events on the claim
	Told    []string       `json:",omitempty"` // and of those on its volume
	Story   []string       // what else was seen on the way
}

type volumeObservation struct {
	NameIsOfClaim, RefIsOfClaim bool
	Phase                       v1.PersistentVolumePhase
	Annotations                 map[string]string
	Finalizers                  []string
	Deleting                    bool
	Spec                        v1.PersistentVolumeSpec
	HandleIsOnNode              bool
}

func (w *world) observe(t *testing.T, claim *v1.PersistentVolumeClaim) observation {
	t.Helper()
	out := observation{Claim: "gone", OnNodes: map[string]int{}, Story: w.notes}
	if now, err := w.client.CoreV1().PersistentVolumeClaims(w.namespace).Get(t.Context(), claim.Name, metav1.GetOptions{}); err == nil {
		out.Claim, out.Notes, out.Guards = string(now.Status.Phase), now.Annotations, now.Finalizers
		// The PV controller's request to a provisioner. Ours does not wait for
		// it, and the PV controller does not make it for a claim whose volume
		// exists already.
		delete(out.Notes, volume.AnnStorageProvisioner)
		delete(out.Notes, volume.AnnBetaStorageProvisioner)
	}
	handles := map[string]bool{}
	for name, node := range w.nodes {
		for _, v := range node.Volumes() {
			if v.GetName() == w.volumeOf(claim) {
				out.OnNodes[name]++
				handles[v.GetId()] = true
			}
		}
	}
	if pv := w.pv(claim); pv != nil {
		spec := *pv.Spec.DeepCopy()
		delete(pv.Annotations, names.AnnotationVolumeGroup) // upstream knows nothing of groups
		maps.DeleteFunc(pv.Annotations, noSecret)
		out.Volume = &volumeObservation{
			NameIsOfClaim: pv.Name == volumeName(claim), RefIsOfClaim: belongsTo(pv, claim) && spec.ClaimRef.Kind == "PersistentVolumeClaim" && spec.ClaimRef.APIVersion == "v1",
			Phase: pv.Status.Phase, Annotations: pv.Annotations, Finalizers: slices.Sorted(slices.Values(pv.Finalizers)),
			Deleting: pv.DeletionTimestamp != nil, HandleIsOnNode: handles[spec.CSI.VolumeHandle],
		}
		spec.ClaimRef, spec.CSI.VolumeHandle = nil, ""
		delete(spec.CSI.VolumeAttributes, identityKey)
		out.Volume.Spec = spec
	}
	out.Events = w.eventsOn(t, w.namespace, claim.Name)
	out.Told = w.eventsOn(t, metav1.NamespaceDefault, w.volumeOf(claim))
	return out
}

// eventsOn are the types and reasons of the provisioner's Events on an object.
func (w *world) eventsOn(t *testing.T, namespace, name string) (found []string) {
	t.Helper()
	events := must.Get(w.client.CoreV1().Events(namespace).List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + name}))(t)
	for _, e := range events.Items {
		seen := e.Type + " " + e.Reason
		if strings.HasPrefix(e.Source.Component, "carve") && !slices.Contains(found, seen) {
			found = append(found, seen)
		}
	}
	slices.Sort(found)
	return found
}

// noSecret tells the annotations by which external-provisioner says that a
// deletion needs no Secret: what is not there says the same.
func noSecret(key, value string) bool {
	return strings.HasPrefix(key, "volume.kubernetes.io/provisioner-deletion-secret-") && value == ""
}

// volumeOf is the name of a claim's PersistentVolume, and of its volume.
func (w *world) volumeOf(claim *v1.PersistentVolumeClaim) string {
	return cmp.Or(w.volume, volumeName(claim))
}

// note adds to what is compared.
func (w *world) note(format string, args ...any) {
	w.notes = append(w.notes, fmt.Sprintf(format, args...))
}

// scenario is one story of a claim. It returns the claim once its end is reached.
type scenario struct {
	name string
	run  func(*testing.T, *world) *v1.PersistentVolumeClaim
	// spared are Events that upstream sends and ours does not.
	spared []string
}

func (w *world) class(t *testing.T, change func(*storagev1.StorageClass)) string {
	t.Helper()
	mode, reclaim := storagev1.VolumeBindingWaitForFirstConsumer, v1.PersistentVolumeReclaimDelete
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "story"}, Provisioner: names.Driver,
		VolumeBindingMode: &mode, ReclaimPolicy: &reclaim, MountOptions: []string{"noatime"}}
	if change != nil {
		change(class)
	}
	must.Get(w.client.StorageV1().StorageClasses().Create(t.Context(), class, metav1.CreateOptions{}))(t)
	t.Cleanup(func() {
		_ = w.client.StorageV1().StorageClasses().Delete(context.Background(), class.Name, metav1.DeleteOptions{})
	})
	return class.Name
}

func (w *world) claim(t *testing.T, class, node string, change func(*v1.PersistentVolumeClaim)) *v1.PersistentVolumeClaim {
	t.Helper()
	claim := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "claim", Annotations: map[string]string{}},
		Spec: v1.PersistentVolumeClaimSpec{
			StorageClassName: &class, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("100Mi")}},
		},
	}
	if node != "" {
		claim.Annotations[volume.AnnSelectedNode] = node
	}
	if change != nil {
		change(claim)
	}
	created := must.Get(w.client.CoreV1().PersistentVolumeClaims(w.namespace).Create(t.Context(), claim, metav1.CreateOptions{}))(t)
	return created
}

func (w *world) get(claim *v1.PersistentVolumeClaim) *v1.PersistentVolumeClaim {
	now, err := w.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Get(context.Background(), claim.Name, metav1.GetOptions{})
	if err != nil {
		return nil
	}
	return now
}

func (w *world) pv(claim *v1.PersistentVolumeClaim) *v1.PersistentVolume {
	now, err := w.client.CoreV1().PersistentVolumes().Get(context.Background(), w.volumeOf(claim), metav1.GetOptions{})
	if err != nil {
		return nil
	}
	return now
}

func (w *world) waitBound(t *testing.T, claim *v1.PersistentVolumeClaim) {
	t.Helper()
	waittest.Until(t, "claim is bound", func() bool {
		now, pv := w.get(claim), w.pv(claim)
		return now.Status.Phase == v1.ClaimBound && pv != nil && pv.Status.Phase == v1.VolumeBound
	})
}

// waitReleased waits until a claim is handed back to the scheduler.
func (w *world) waitReleased(t *testing.T, claim *v1.PersistentVolumeClaim) {
	t.Helper()
	waittest.Until(t, "selection is taken back", func() bool { return w.get(claim).Annotations[volume.AnnSelectedNode] == "" })
}

// selectNode does what the scheduler does.
func (w *world) selectNode(t *testing.T, claim *v1.PersistentVolumeClaim, node string) {
	t.Helper()
	must.Get(w.client.CoreV1().PersistentVolumeClaims(w.namespace).Patch(t.Context(), claim.Name, types.MergePatchType,
		fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, volume.AnnSelectedNode, node), metav1.PatchOptions{}))(t)
}

// refuseDeletes has a node fail its first deletions.
func (w *world) refuseDeletes(node string, times int32, with error) {
	var calls atomic.Int32
	w.nodes[node].SetHooks(fakelvmd.Hooks{BeforeDelete: func(context.Context, *lvmdv1.DeleteVolumeRequest) error {
		if calls.Add(1) <= times {
			return with
		}
		return nil
	}})
}

func accessible(mode v1.PersistentVolumeAccessMode) func(*v1.PersistentVolumeClaim) {
	return func(c *v1.PersistentVolumeClaim) { c.Spec.AccessModes = []v1.PersistentVolumeAccessMode{mode} }
}

func (w *world) delete(t *testing.T, claim *v1.PersistentVolumeClaim) {
	t.Helper()
	must.Succeed(t, w.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Delete(t.Context(), claim.Name, metav1.DeleteOptions{}))
	waittest.Until(t, "claim is gone", func() bool { return w.get(claim) == nil })
}

func (w *world) patchPV(t *testing.T, claim *v1.PersistentVolumeClaim, patch string) {
	t.Helper()
	must.Get(w.client.CoreV1().PersistentVolumes().Patch(t.Context(), w.volumeOf(claim), types.MergePatchType, []byte(patch), metav1.PatchOptions{}))(t)
}

func (w *world) waitNothingLeft(t *testing.T, claim *v1.PersistentVolumeClaim) {
	t.Helper()
	waittest.Until(t, "nothing is left", func() bool { return w.pv(claim) == nil && w.observe(t, claim).volumes() == 0 })
}

func (o observation) volumes() int {
	sum := 0
	for _, n := range o.OnNodes {
		sum += n
	}
	return sum
}

var stories = []scenario{
	{name: "late binding", run: func(t *testing.T, w *world) *v1.PersistentVolumeClaim {
		claim := w.claim(t, w.class(t, nil), "n2", nil)
		w.waitBound(t, claim)
		return claim
	}},
	{name: "immediate binding", run: func(t *testing.T, w *world) *v1.PersistentVolumeClaim {
		w.nodes["n2"].Resize("local", 8*mib) // which node is preferred is everybody's own
		claim := w.claim(t, w.class(t, immediate), "", nil)
		w.waitBound(t, claim)
		return claim
	}},
	{name: "raw block under Retain", run: func(t *testing.T, w *world) *v1.PersistentVolumeClaim {
		block, retain := v1.PersistentVolumeBlock, v1.PersistentVolumeReclaimRetain
		class := w.class(t, func(c *storagev1.StorageClass) { c.ReclaimPolicy = &retain })
		claim := w.claim(t, class, "n1", func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeMode = &block })
		w.waitBound(t, claim)
		return claim
	}},
	{name: "once-per-Pod access", run: func(t *testing.T, w *world) *v1.PersistentVolumeClaim {
		claim := w.claim(t, w.class(t, nil), "n1", accessible(v1.ReadWriteOncePod))
		w.waitBound(t, claim)
		return claim
	}},
	{name: "a full node, then another", run: func(t *testing.T, w *world) *v1.PersistentVolumeClaim {
		w.nodes["n1"].Resize("local", 8*mib)
		claim := w.claim(t, w.class(t, nil), "n1", nil)
		w.waitReleased(t, claim)
		w.selectNode(t, claim, "n2")
		w.waitBound(t, claim)
		return claim
	}},
	{name: "a node that fails at first", run: func(t *testing.T, w *world) *v1.PersistentVolumeClaim {
		var calls atomic.Int32
		w.nodes["n1"].SetHooks(fakelvmd.Hooks{BeforeCreate: func(context.Context, *lvmdv1.CreateVolumeRequest) error {
			if calls.Add(1) == 1 {
				return fakelvmd.Error(codes.Internal, names.ReasonCommandFailed, "lvcreate failed")
			}
			return nil
		}})
		claim := w.claim(t, w.class(t, nil), "n1", nil)
		w.waitBound(t, claim)
		return claim
	}},
	{name: "an answer that is lost", run: func(t *testing.T, w *world) *v1.PersistentVolumeClaim {
		var calls atomic.Int32
		w.nodes["n1"].SetHooks(fakelvmd.Hooks{AfterCreate: func(context.Context, *lvmdv1.Volume) error {
			if calls.Add(1) == 1 {
				return status.Error(codes.Unavailable, "connection lost")
			}
			return nil
		}})
		claim := w.claim(t, w.class(t, nil), "n1", nil)
		w.waitBound(t, claim)
		return claim
	}, spared: []string{"Warning ProvisioningFailed"}}, // one lost answer is made good silently
	{name: "deletion", run: func(t *testing.T, w *world) *v1.PersistentVolumeClaim {
		claim := w.claim(t, w.class(t, nil), "n1", nil)
		w.waitBound(t, claim)
		w.delete(t, claim)
		w.waitNothingLeft(t, claim)
		return claim
	}},
	{name: "deletion under Retain", run: func(t *testing.T, w *world) *v1.PersistentVolumeClaim {
		retain := v1.PersistentVolumeReclaimRetain
		claim := w.claim(t, w.class(t, func(c *storagev1.StorageClass) { c.ReclaimPolicy = &retain }), "n1", nil)
		w.waitBound(t, claim)
		w.delete(t, claim)
		waittest.Until(t, "volume is released", func() bool { return w.pv(claim).Status.Phase == v1.VolumeReleased })
		return claim
	}},
	{name: "a policy changed to Retain, and back", run: func(t *testing.T, w *world) *v1.PersistentVolumeClaim {
		claim := w.claim(t, w.class(t, nil), "n1", nil)
		w.waitBound(t, claim)
		w.patchPV(t, claim, `{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}`)
		waittest.Until(t, "finalizer is gone", func() bool { return !slices.Contains(w.pv(claim).Finalizers, finalizer) })
		w.patchPV(t, claim, `{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`)
		waittest.Until(t, "finalizer is back", func() bool { return slices.Contains(w.pv(claim).Finalizers, finalizer) })
		return claim
	}},
	{name: "a volume deleted before its claim", run: func(t *testing.T, w *world) *v1.PersistentVolumeClaim {
		claim := w.claim(t, w.class(t, nil), "n1", nil)
		w.waitBound(t, claim)
		must.Succeed(t, w.client.CoreV1().PersistentVolumes().Delete(t.Context(), volumeName(claim), metav1.DeleteOptions{}))
		time.Sleep(time.Second)
		if pv := w.pv(claim); pv == nil || pv.DeletionTimestamp == nil {
			t.Error("the volume did not wait for its claim")
		}
		w.delete(t, claim)
		w.waitNothingLeft(t, claim)
		return claim
	}},
	{name: "a node that cannot delete at first", run: func(t *testing.T, w *world) *v1.PersistentVolumeClaim {
		w.refuseDeletes("n1", 2, fakelvmd.Error(codes.Internal, names.ReasonCommandFailed, "lvremove failed"))
		claim := w.claim(t, w.class(t, nil), "n1", nil)
		w.waitBound(t, claim)
		w.delete(t, claim)
		w.waitNothingLeft(t, claim)
		return claim
	}},
	{name: "a volume that is in use for a moment when its claim is deleted", run: func(t *testing.T, w *world) *v1.PersistentVolumeClaim {
		w.refuseDeletes("n1", 2, fakelvmd.Error(codes.FailedPrecondition, names.ReasonVolumeInUse, "it is mounted"))
		claim := w.claim(t, w.class(t, nil), "n1", nil)
		w.waitBound(t, claim)
		w.delete(t, claim)
		w.waitNothingLeft(t, claim)
		return claim
	}, spared: []string{"Warning VolumeFailedDelete"}}, // ours lets the kubelet unmount it first
	{name: "a selected node that is gone, then another", run: func(t *testing.T, w *world) *v1.PersistentVolumeClaim {
		claim := w.claim(t, w.class(t, nil), "gone", nil)
		w.waitReleased(t, claim)
		w.selectNode(t, claim, "n2")
		w.waitBound(t, claim)
		return claim
	}},
	{name: "a class for one node", run: func(t *testing.T, w *world) *v1.PersistentVolumeClaim {
		claim := w.claim(t, w.class(t, onlyOn("n2")), "n2", nil)
		w.waitBound(t, claim)
		return claim
	}},
	{name: "immediate binding of a class for one node", run: func(t *testing.T, w *world) *v1.PersistentVolumeClaim {
		claim := w.claim(t, w.class(t, func(c *storagev1.StorageClass) { immediate(c); onlyOn("n2")(c) }), "", nil)
		w.waitBound(t, claim)
		return claim
	}},
	{name: "a volume for many writers", run: func(t *testing.T, w *world) *v1.PersistentVolumeClaim {
		claim := w.claim(t, w.class(t, nil), "n1", accessible(v1.ReadWriteMany))
		w.refused(t, claim)
		return claim
	}, spared: []string{"Normal Provisioning"}}, // ours refuses it first
	{name: "a volume for many readers", run: func(t *testing.T, w *world) *v1.PersistentVolumeClaim {
		claim := w.claim(t, w.class(t, nil), "n1", accessible(v1.ReadOnlyMany))
		w.refused(t, claim)
		return claim
	}, spared: []string{"Normal Provisioning"}},
	{name: "a claim deleted while its volume is made", run: func(t *testing.T, w *world) *v1.PersistentVolumeClaim {
		entered, release := make(chan struct{}, 8), make(chan struct{})
		w.nodes["n1"].SetHooks(fakelvmd.Hooks{BeforeCreate: func(context.Context, *lvmdv1.CreateVolumeRequest) error {
			entered <- struct{}{}
			<-release
			return nil
		}})
		claim := w.claim(t, w.class(t, nil), "n1", nil)
		<-entered
		w.delete(t, claim)
		time.Sleep(300 * time.Millisecond)
		close(release)
		waittest.Until(t, "volume was made", func() bool { return w.nodes["n1"].Creates() > 0 })
		w.waitNothingLeft(t, claim)
		return claim
	}},
}

// actors are those whose doings are compared, by name.
type actors map[string]func(*testing.T, *world)

// TestUsersSeeWhatTheUpstreamProvisionerWouldShowThem tells every story to ours and to
// external-provisioner, which makes the PersistentVolume as it is made upstream.
func TestUsersSeeWhatTheUpstreamProvisionerWouldShowThem(t *testing.T) {
	client := connectToAPIServer(t)
	for i, story := range slices.Concat(stories, staticStories) {
		t.Run(story.name, func(t *testing.T) {
			story.tell(t, actors{"ours": oursActs, "upstream": sidecarActs}, func(t *testing.T, who string) *world {
				w := newWorld(t, client)
				w.namespace = fmt.Sprintf("story-%d-%s", i, who)
				return w
			})
		})
	}
}

// tell lets each actor act in a world of its own, and compares what is seen.
func (s scenario) tell(t *testing.T, acting actors, newWorld func(t *testing.T, who string) *world) {
	t.Helper()
	seen := map[string]string{}
	for who, acts := range acting {
		t.Run(who, func(t *testing.T) {
			w := newWorld(t, who)
			ns := &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}}
			must.Get(w.client.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}))(t)
			acts(t, w)
			claim := s.run(t, w)
			look := func() string {
				t.Helper()
				observed := w.observe(t, claim)
				if who == "upstream" {
					isSpared := func(e string) bool { return slices.Contains(s.spared, e) }
					observed.Events, observed.Told = slices.DeleteFunc(observed.Events, isSpared), slices.DeleteFunc(observed.Told, isSpared)
				}
				text := must.Get(json.MarshalIndent(observed, "", "  "))(t)
				return string(text)
			}
			// Events are sent in the background. There may be more than are expected, but once
			// those are there of the one who acts second, there is less to wait for.
			if len(seen) == 0 {
				time.Sleep(time.Second)
			} else {
				var first string
				for _, first = range seen {
				}
				for deadline := time.Now().Add(5 * time.Second); look() != first && time.Now().Before(deadline); {
					time.Sleep(50 * time.Millisecond)
				}
				time.Sleep(300 * time.Millisecond)
			}
			seen[who] = look()
			w.tidy(t, claim)
		})
	}
	if seen["ours"] != seen["upstream"] {
		t.Errorf("users see, with ours:\n%s\nwith upstream's:\n%s", seen["ours"], seen["upstream"])
	}
}

// tidy leaves nothing of a claim for the next story.
func (w *world) tidy(t *testing.T, claim *v1.PersistentVolumeClaim) {
	t.Helper()
	if pv := w.pv(claim); pv != nil {
		w.patchPV(t, claim, `{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`)
	}
	if w.get(claim) != nil {
		w.delete(t, claim)
	}
	w.waitNothingLeft(t, claim)
}
