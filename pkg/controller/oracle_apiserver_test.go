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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/diff"
	"k8s.io/component-helpers/storage/volume"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/controller/objects"
	"github.com/carve-csi/carve/pkg/controller/provision"
	"github.com/carve-csi/carve/pkg/controller/spec"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// observation omits differences between any two runs.
type observation struct {
	Claim    string // phase, or "gone"
	Notes    map[string]string
	Guards   []string // the claim's finalizers
	Volume   *volumeObservation
	OnNodes  map[string]int // volumes on each node
	Events   []string       `json:",omitempty"` // types and reasons of the provisioner's Events on the claim
	OnVolume []string       `json:",omitempty"` // the same on its volume
	Seen     []string       // observed during the scenario
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
	out := observation{Claim: "gone", OnNodes: map[string]int{}, Seen: w.notes}
	if now := w.get(claim); now != nil {
		out.Claim, out.Notes, out.Guards = string(now.Status.Phase), now.Annotations, now.Finalizers
		// The PV controller's request to a provisioner. Ours does not wait for it, and the PV
		// controller makes it only while the claim's volume does not exist.
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
		its := *pv.Spec.DeepCopy()
		delete(pv.Annotations, names.AnnotationVolumeGroup) // upstream does not know groups
		maps.DeleteFunc(pv.Annotations, noSecret)
		out.Volume = &volumeObservation{
			NameIsOfClaim: pv.Name == spec.VolumeName(claim), RefIsOfClaim: objects.BelongsTo(pv, claim) && its.ClaimRef.Kind == "PersistentVolumeClaim" && its.ClaimRef.APIVersion == "v1",
			Phase: pv.Status.Phase, Annotations: pv.Annotations, Finalizers: slices.Sorted(slices.Values(pv.Finalizers)),
			Deleting: pv.DeletionTimestamp != nil, HandleIsOnNode: handles[its.CSI.VolumeHandle],
		}
		its.ClaimRef, its.CSI.VolumeHandle = nil, ""
		delete(its.CSI.VolumeAttributes, provision.IdentityKey)
		out.Volume.Spec = its
	}
	out.Events = w.eventsOn(t, w.namespace, claim.Name)
	out.OnVolume = w.eventsOn(t, metav1.NamespaceDefault, w.volumeOf(claim))
	return out
}

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

// noSecret matches external-provisioner's annotations for a deletion without a Secret, which
// equal no annotation.
func noSecret(key, value string) bool {
	return strings.HasPrefix(key, "volume.kubernetes.io/provisioner-deletion-secret-") && value == ""
}

func (w *world) volumeOf(claim *v1.PersistentVolumeClaim) string {
	return cmp.Or(w.volume, spec.VolumeName(claim))
}

func (w *world) note(format string, args ...any) {
	w.notes = append(w.notes, fmt.Sprintf(format, args...))
}

// scenario returns its claim at the end.
type scenario struct {
	name string
	run  func(*testing.T, *world) *v1.PersistentVolumeClaim
	// spared are Events that only upstream sends.
	spared []string
}

func (w *world) class(t *testing.T, change func(*storagev1.StorageClass)) string {
	t.Helper()
	mode, reclaim := storagev1.VolumeBindingWaitForFirstConsumer, v1.PersistentVolumeReclaimDelete
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "scenario"}, Provisioner: names.Driver,
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
	return found(func() (*v1.PersistentVolumeClaim, error) {
		return w.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Get(context.Background(), claim.Name, metav1.GetOptions{})
	})
}

func (w *world) pv(claim *v1.PersistentVolumeClaim) *v1.PersistentVolume {
	return found(func() (*v1.PersistentVolume, error) {
		return w.client.CoreV1().PersistentVolumes().Get(context.Background(), w.volumeOf(claim), metav1.GetOptions{})
	})
}

// found repeats a read that fails; it returns nil if the object does not exist.
func found[T any](read func() (*T, error)) *T {
	for deadline := time.Now().Add(waittest.Limit); ; time.Sleep(50 * time.Millisecond) {
		now, err := read()
		switch {
		case err == nil:
			return now
		case apierrors.IsNotFound(err):
			return nil
		case time.Now().After(deadline):
			panic(err)
		}
	}
}

func (w *world) volumeIs(claim *v1.PersistentVolumeClaim, is func(*v1.PersistentVolume) bool) func() bool {
	return func() bool { pv := w.pv(claim); return pv != nil && is(pv) }
}

func phaseIs(phase v1.PersistentVolumePhase) func(*v1.PersistentVolume) bool {
	return func(pv *v1.PersistentVolume) bool { return pv.Status.Phase == phase }
}

func hasFinalizer(pv *v1.PersistentVolume) bool {
	return slices.Contains(pv.Finalizers, cluster.Finalizer)
}

func (w *world) waitBound(t *testing.T, claim *v1.PersistentVolumeClaim) {
	t.Helper()
	waittest.Until(t, "claim is bound", func() bool {
		now, pv := w.get(claim), w.pv(claim)
		return now != nil && now.Status.Phase == v1.ClaimBound && pv != nil && pv.Status.Phase == v1.VolumeBound
	})
}

// selectAnother acts as the scheduler after a claim is rescheduled, and waits until it is
// bound. The upstream library writes the rescheduled claim into its informer's cache, maybe
// over a newer selection, which it then sees only at the claim's next change.
func (w *world) selectAnother(t *testing.T, claim *v1.PersistentVolumeClaim, node string) {
	t.Helper()
	waittest.Until(t, "selection is taken back", func() bool {
		now := w.get(claim)
		return now != nil && now.Annotations[volume.AnnSelectedNode] == ""
	})
	w.selectNode(t, claim, node)
	changes := 0
	waittest.Until(t, "volume is made", func() bool {
		if w.pv(claim) != nil {
			return true
		}
		if changes++; w.isUpstream {
			must.Get(w.client.CoreV1().PersistentVolumeClaims(w.namespace).Patch(t.Context(), claim.Name, types.MergePatchType,
				fmt.Appendf(nil, `{"metadata":{"labels":{"changes":"%d"}}}`, changes), metav1.PatchOptions{}))(t)
		}
		return false
	})
	w.waitBound(t, claim)
}

func (w *world) selectNode(t *testing.T, claim *v1.PersistentVolumeClaim, node string) {
	t.Helper()
	must.Get(w.client.CoreV1().PersistentVolumeClaims(w.namespace).Patch(t.Context(), claim.Name, types.MergePatchType,
		fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, volume.AnnSelectedNode, node), metav1.PatchOptions{}))(t)
}

func (w *world) refuseDeletes(node string, times int32, with error) {
	var calls atomic.Int32
	w.nodes[node].SetHooks(lvmdfake.Hooks{BeforeDelete: func(context.Context, *lvmdv1.DeleteVolumeRequest) error {
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

// passing creates, binds and deletes a claim. The actor has then seen all earlier events: all
// objects of a kind come by one watch.
func (w *world) passing(t *testing.T) {
	t.Helper()
	claim := w.claim(t, "scenario", "n2", named("passing", nil))
	w.waitBound(t, claim)
	w.delete(t, claim)
	w.waitNothingLeft(t, claim)
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

var scenarios = []scenario{
	{name: "late binding", run: func(t *testing.T, w *world) *v1.PersistentVolumeClaim {
		claim := w.claim(t, w.class(t, nil), "n2", nil)
		w.waitBound(t, claim)
		return claim
	}},
	{name: "immediate binding", run: func(t *testing.T, w *world) *v1.PersistentVolumeClaim {
		w.nodes["n2"].Resize("local", 8*mib) // each provisioner prefers another node
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
		w.selectAnother(t, claim, "n2")
		return claim
	}},
	{name: "a node that fails at first", run: func(t *testing.T, w *world) *v1.PersistentVolumeClaim {
		var calls atomic.Int32
		w.nodes["n1"].SetHooks(lvmdfake.Hooks{BeforeCreate: func(context.Context, *lvmdv1.CreateVolumeRequest) error {
			if calls.Add(1) == 1 {
				return lvmdfake.Error(codes.Internal, names.ReasonCommandFailed, "lvcreate failed")
			}
			return nil
		}})
		claim := w.claim(t, w.class(t, nil), "n1", nil)
		w.waitBound(t, claim)
		return claim
	}},
	{name: "an answer that is lost", run: func(t *testing.T, w *world) *v1.PersistentVolumeClaim {
		var calls atomic.Int32
		w.nodes["n1"].SetHooks(lvmdfake.Hooks{AfterCreate: func(context.Context, *lvmdv1.Volume) error {
			if calls.Add(1) == 1 {
				return status.Error(codes.Unavailable, "connection lost")
			}
			return nil
		}})
		claim := w.claim(t, w.class(t, nil), "n1", nil)
		w.waitBound(t, claim)
		return claim
	}, spared: []string{"Warning ProvisioningFailed"}}, // ours hides one lost answer
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
		waittest.Until(t, "volume is released", w.volumeIs(claim, phaseIs(v1.VolumeReleased)))
		return claim
	}},
	{name: "a policy changed to Retain, and back", run: func(t *testing.T, w *world) *v1.PersistentVolumeClaim {
		claim := w.claim(t, w.class(t, nil), "n1", nil)
		w.waitBound(t, claim)
		w.patchPV(t, claim, `{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}`)
		waittest.Until(t, "finalizer is gone", w.volumeIs(claim, func(pv *v1.PersistentVolume) bool { return !hasFinalizer(pv) }))
		w.patchPV(t, claim, `{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`)
		waittest.Until(t, "finalizer is back", w.volumeIs(claim, hasFinalizer))
		return claim
	}},
	{name: "a volume deleted before its claim", run: func(t *testing.T, w *world) *v1.PersistentVolumeClaim {
		claim := w.claim(t, w.class(t, nil), "n1", nil)
		w.waitBound(t, claim)
		must.Succeed(t, w.client.CoreV1().PersistentVolumes().Delete(t.Context(), spec.VolumeName(claim), metav1.DeleteOptions{}))
		w.passing(t) // its deletion is seen after this one
		if pv := w.pv(claim); pv == nil || pv.DeletionTimestamp == nil || !hasFinalizer(pv) || w.observe(t, claim).volumes() != 1 {
			t.Errorf("the volume did not wait for its claim: %+v, %d on the nodes", pv, w.observe(t, claim).volumes())
		}
		w.delete(t, claim)
		w.waitNothingLeft(t, claim)
		return claim
	}},
	{name: "a node that cannot delete at first", run: func(t *testing.T, w *world) *v1.PersistentVolumeClaim {
		w.refuseDeletes("n1", 2, lvmdfake.Error(codes.Internal, names.ReasonCommandFailed, "lvremove failed"))
		claim := w.claim(t, w.class(t, nil), "n1", nil)
		w.waitBound(t, claim)
		w.delete(t, claim)
		w.waitNothingLeft(t, claim)
		return claim
	}},
	{name: "a volume that is in use for a moment when its claim is deleted", run: func(t *testing.T, w *world) *v1.PersistentVolumeClaim {
		w.refuseDeletes("n1", 2, lvmdfake.Error(codes.FailedPrecondition, names.ReasonVolumeInUse, "it is mounted"))
		claim := w.claim(t, w.class(t, nil), "n1", nil)
		w.waitBound(t, claim)
		w.delete(t, claim)
		w.waitNothingLeft(t, claim)
		return claim
	}, spared: []string{"Warning VolumeFailedDelete"}}, // ours waits for the kubelet's unmount
	{name: "a selected node that is gone, then another", run: func(t *testing.T, w *world) *v1.PersistentVolumeClaim {
		claim := w.claim(t, w.class(t, nil), "gone", nil)
		w.selectAnother(t, claim, "n2")
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
	}},
	{name: "a volume for many readers", run: func(t *testing.T, w *world) *v1.PersistentVolumeClaim {
		claim := w.claim(t, w.class(t, nil), "n1", accessible(v1.ReadOnlyMany))
		w.refused(t, claim)
		return claim
	}},
	{name: "a claim deleted while its volume is made", run: func(t *testing.T, w *world) *v1.PersistentVolumeClaim {
		entered, release := make(chan struct{}, 8), make(chan struct{})
		w.nodes["n1"].SetHooks(lvmdfake.Hooks{BeforeCreate: func(context.Context, *lvmdv1.CreateVolumeRequest) error {
			entered <- struct{}{}
			<-release
			return nil
		}})
		claim := w.claim(t, w.class(t, nil), "n1", nil)
		<-entered
		w.delete(t, claim)
		w.passing(t) // its claim is seen after the deletion
		close(release)
		waittest.Until(t, "volume was made", func() bool { return w.nodes["n1"].Creates() > 0 })
		w.waitNothingLeft(t, claim)
		return claim
	}},
}

type actors map[string]func(*testing.T, *world)

func TestUsersSeeWhatTheUpstreamProvisionerWouldShowThem(t *testing.T) {
	client := connectToAPIServer(t)
	for i, s := range slices.Concat(scenarios, staticScenarios) {
		t.Run(s.name, func(t *testing.T) {
			s.compare(t, actors{"ours": oursActs, "upstream": sidecarActs}, func(t *testing.T, who string) *world {
				w := newWorld(t, client)
				w.namespace = fmt.Sprintf("scenario-%d-%s", i, who)
				return w
			})
		})
	}
}

// isQuiet reports whether we send an Event only after delays or failures, so that it depends
// on the test's speed.
func isQuiet(event string) bool {
	return event == "Normal "+cluster.ReasonProvisioning || event == "Normal "+cluster.ReasonSucceeded
}

// compare runs each actor in its own world. Events are sent in the background: after a
// difference both run once more, with more time.
func (s scenario) compare(t *testing.T, acting actors, newWorld func(t *testing.T, who string) *world) {
	t.Helper()
	for i, waitTimeout := range []time.Duration{time.Second, 10 * time.Second} {
		seen := map[string]string{}
		for who, acts := range acting {
			t.Run(who, func(t *testing.T) {
				w := newWorld(t, who)
				if i > 0 {
					w.namespace += "-again"
				}
				seen[who] = s.observed(t, w, who, acts, seen, waitTimeout)
			})
		}
		if t.Failed() || seen["ours"] == seen["upstream"] {
			return
		}
		difference := "what users see, - with upstream's, + with ours:\n" + diff.Diff(seen["upstream"], seen["ours"])
		if waitTimeout > time.Second {
			t.Error(difference)
		} else {
			t.Log(difference)
		}
	}
}

// observed waits for the Events sent by the actor, and up to 5 × waitTimeout for those the
// other actor caused before.
func (s scenario) observed(t *testing.T, w *world, who string, acts func(*testing.T, *world), others map[string]string, waitTimeout time.Duration) string {
	t.Helper()
	ns := &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}}
	must.Get(w.client.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}))(t)
	acts(t, w)
	claim := s.run(t, w)
	look := func() string {
		t.Helper()
		observed := w.observe(t, claim)
		observed.Events = slices.DeleteFunc(observed.Events, isQuiet)
		if who == "upstream" {
			isSpared := func(e string) bool { return slices.Contains(s.spared, e) }
			observed.Events, observed.OnVolume = slices.DeleteFunc(observed.Events, isSpared), slices.DeleteFunc(observed.OnVolume, isSpared)
		}
		text := must.Get(json.MarshalIndent(observed, "", "  "))(t)
		return string(text)
	}
	w.waitEvents(t)
	for _, first := range others {
		for deadline := time.Now().Add(5 * waitTimeout); look() != first && time.Now().Before(deadline); {
			time.Sleep(50 * time.Millisecond)
		}
	}
	text := look()
	w.tidy(t, claim)
	return text
}

// waitEvents sends one more Event and waits for it: an actor sends its Events in order.
func (w *world) waitEvents(t *testing.T) {
	t.Helper()
	last := w.claim(t, "scenario", "n2", named("last", accessible(v1.ReadWriteMany)))
	waittest.Until(t, "the actor's last Event is there", func() bool {
		return slices.Contains(w.eventsOn(t, w.namespace, last.Name), "Warning "+cluster.ReasonFailed)
	})
	w.delete(t, last)
}

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
