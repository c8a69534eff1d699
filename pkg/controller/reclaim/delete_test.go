package reclaim

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/clientfake"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/controller/workloop"
	"github.com/carve-csi/carve/pkg/must"
)

func TestOfAttemptsThatFailOnlySomeAreReported(t *testing.T) {
	for what, c := range map[string]struct {
		inUse bool
		want  []int
	}{
		"a volume in use":     {true, []int{5, 11, 17}},
		"a node that refuses": {false, []int{0, 1, 2, 3, 4, 5, 11, 17}},
	} {
		var reported []int
		for failures := range 20 {
			if worthReporting(failures, c.inUse) {
				reported = append(reported, failures)
			}
		}
		if !slices.Equal(reported, c.want) {
			t.Errorf("%s: reported after %v failures, want %v", what, reported, c.want)
		}
	}
}

func TestADeletedClaimIsForgottenWithItsVolume(t *testing.T) {
	client := clientfake.New()
	all := informers.NewSharedInformerFactory(client, 0)
	c := must.Get(cluster.New(client, nil, all, all, slog.New(slog.DiscardHandler)))(t)
	d := NewDeleter(c, Options{Metrics: NewMetrics(prometheus.NewRegistry())})
	d.claimGone["pvc-1"] = goneClaim{uid: "claim"}
	if again, err := d.sync(t.Context(), "pvc-1"); again != 0 || err != nil {
		t.Errorf("looked at again after %v: %v", again, err)
	}
	if len(d.claimGone) != 0 {
		t.Errorf("remembered of a volume that is gone: %v", d.claimGone)
	}
}

// The queue of the only worker has many volumes of one namespace before one of another. None names
// its node, which gives an Event.
func TestNamespacesTakeTurnsAtTheirDeletions(t *testing.T) {
	client := clientfake.New()
	all := informers.NewSharedInformerFactory(client, 0)
	c := must.Get(cluster.New(client, nil, all, all, slog.New(slog.DiscardHandler)))(t)
	events := record.NewFakeRecorder(100)
	c.Recorder = events
	d := NewDeleter(c, Options{Parallel: 1, Metrics: NewMetrics(prometheus.NewRegistry())})
	add := func(namespace, name string) {
		pv := released(namespace, name)
		must.Get(client.CoreV1().PersistentVolumes().Create(t.Context(), pv, metav1.CreateOptions{}))(t)
		must.Succeed(t, c.Volumes.GetIndexer().Add(pv))
		d.loop.Add(name)
	}
	for i := range 8 {
		add("crowd", fmt.Sprintf("c%d", i))
	}
	add("other", "o")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { d.loop.Run(ctx); close(done) }()
	first := []string{<-events.Events, <-events.Events}
	cancel()
	<-done
	if !slices.ContainsFunc(first, func(e string) bool { return strings.Contains(e, "PersistentVolume o:") }) {
		t.Errorf("the first volumes that were looked at are %q, want one of each namespace", first)
	}
}

// released returns a volume with the policy Delete whose claim is gone. It names no node, so an
// attempt to delete it fails with an Event.
func released(namespace, name string) *v1.PersistentVolume {
	return &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-of-" + name), ResourceVersion: "1"},
		Spec: v1.PersistentVolumeSpec{
			PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimDelete,
			ClaimRef:                      &v1.ObjectReference{Namespace: namespace, Name: "c", UID: "1"},
			PersistentVolumeSource:        v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: names.Driver, VolumeHandle: name}},
		},
		Status: v1.PersistentVolumeStatus{Phase: v1.VolumeReleased},
	}
}

func newDeleterOf(t *testing.T, client *fake.Clientset, pv *v1.PersistentVolume) (*Deleter, *record.FakeRecorder) {
	t.Helper()
	all := informers.NewSharedInformerFactory(client, 0)
	c := must.Get(cluster.New(client, nil, all, all, slog.New(slog.DiscardHandler)))(t)
	events := record.NewFakeRecorder(100)
	c.Recorder = events
	must.Succeed(t, c.Volumes.GetIndexer().Add(pv))
	return NewDeleter(c, Options{Metrics: NewMetrics(prometheus.NewRegistry())}), events
}

// syncOnce calls sync as the loop does.
func syncOnce(t *testing.T, d *Deleter, name string) (again time.Duration, err error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	d.loop = workloop.New(workloop.Options[string]{Name: "volumes", Parallel: 1, RetryMin: time.Hour, RetryMax: time.Hour,
		Work: func(ctx context.Context, name string) (time.Duration, error) {
			defer cancel()
			again, err = d.sync(ctx, name)
			return 0, nil
		}})
	d.loop.Add(name)
	d.loop.Run(ctx)
	return again, err
}

// The cache shows the volume as released.
func TestVolumeIsKeptUnlessAPIServerHasItReleased(t *testing.T) {
	claim := func(name, uid, volume string) *v1.PersistentVolumeClaim {
		return &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID(uid)},
			Spec: v1.PersistentVolumeClaimSpec{VolumeName: volume}}
	}
	given := func(pv *v1.PersistentVolume) { pv.Spec.ClaimRef.Name, pv.Spec.ClaimRef.UID = "next", "2" }
	const attempt = "spec.nodeAffinity does not name one node"
	for name, test := range map[string]struct {
		now   func(*v1.PersistentVolume) // changes that the cache lacks
		claim *v1.PersistentVolumeClaim
		lacks string // the resource for which the API server fails
		err   string
	}{
		"its claim is gone":                         {err: attempt},
		"another claim has its claim's name":        {claim: claim("c", "2", ""), err: attempt},
		"another claim of that name asks for it":    {claim: claim("c", "2", "pvc-1"), err: attempt},
		"its claim has got another volume":          {claim: claim("c", "1", "static"), err: attempt},
		"its claim is there":                        {claim: claim("c", "1", "pvc-1")},
		"its claim is not bound yet":                {claim: claim("c", "1", "")},
		"it was given to another claim":             {now: given, claim: claim("next", "2", "pvc-1")},
		"it was given to a claim of another volume": {now: given, claim: claim("next", "2", "pvc-2")},
		"it is reserved for a claim":                {now: func(pv *v1.PersistentVolume) { pv.Spec.ClaimRef.UID = "" }},
		"it is for no claim":                        {now: func(pv *v1.PersistentVolume) { pv.Spec.ClaimRef = nil }},
		"it is retained": {now: func(pv *v1.PersistentVolume) {
			pv.Spec.PersistentVolumeReclaimPolicy = v1.PersistentVolumeReclaimRetain
		}},
		"it is bound":                      {now: func(pv *v1.PersistentVolume) { pv.Status.Phase = v1.VolumeBound }},
		"it was made again":                {now: func(pv *v1.PersistentVolume) { pv.UID = "another" }},
		"it is gone":                       {now: func(pv *v1.PersistentVolume) { pv.Name = "other" }},
		"PersistentVolumes cannot be read": {lacks: "persistentvolumes", err: "read PersistentVolume pvc-1: no answer"},
		"claims cannot be read":            {lacks: "persistentvolumeclaims", err: "read claim team/c: no answer"},
	} {
		t.Run(name, func(t *testing.T) {
			client := clientfake.New()
			cached := released("team", "pvc-1")
			now := cached.DeepCopy()
			if test.now != nil {
				test.now(now)
			}
			must.Succeed(t, client.Tracker().Add(now))
			if test.claim != nil {
				must.Succeed(t, client.Tracker().Add(test.claim))
			}
			clientfake.React(client, "get", cmp.Or(test.lacks, "none"), func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, errors.New("no answer")
			})
			d, events := newDeleterOf(t, client, cached)
			again, err := syncOnce(t, d, "pvc-1")
			switch {
			case test.err == "" && (err != nil || again != keptRetry):
				t.Errorf("got %v, %v, want it kept, and looked at again in %v", again, err, keptRetry)
			case test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)):
				t.Errorf("got error %v, want one with %q", err, test.err)
			}
			if got := len(events.Events); got > 0 && test.err != attempt {
				t.Errorf("an Event says %q", <-events.Events)
			}
		})
	}
}

// The volume is available and being deleted.
func TestVolumeIsNotWithdrawnFromClaimThatCacheLacks(t *testing.T) {
	client := clientfake.New(&v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "next"},
		Spec: v1.PersistentVolumeClaimSpec{VolumeName: "pvc-1"}})
	pv, now := released("team", "pvc-1"), metav1.Now()
	pv.Spec.ClaimRef, pv.Status.Phase, pv.DeletionTimestamp, pv.Finalizers = nil, v1.VolumeAvailable, &now, []string{cluster.Finalizer}
	must.Succeed(t, client.Tracker().Add(pv))
	d, events := newDeleterOf(t, client, pv)
	if _, err := syncOnce(t, d, pv.Name); err == nil || !strings.Contains(err.Error(), "claim team/next names the volume") || len(events.Events) != 0 {
		t.Errorf("got error %v, want one that names the claim, and no Event yet", err)
	}
}

// The volume gets another claim after the deletion of its claim was seen.
func TestVolumeIsMarkedReleasedOnlyAsSeen(t *testing.T) {
	client := clientfake.New()
	pv := released("team", "pvc-1")
	pv.Status.Phase, pv.Finalizers = v1.VolumeBound, []string{cluster.Finalizer}
	clientfake.React(client, "patch", "persistentvolumes", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if patch, ok := action.(clienttesting.PatchAction); !ok || !bytes.Contains(patch.GetPatch(), []byte(`"resourceVersion":"1"`)) {
			t.Errorf("the volume is changed whatever else has changed: %+v", action)
		}
		return true, nil, apierrors.NewConflict(v1.Resource("persistentvolumes"), pv.Name, nil)
	})
	d, events := newDeleterOf(t, client, pv)
	d.claimGone[pv.Name] = goneClaim{uid: pv.Spec.ClaimRef.UID}
	if again, err := syncOnce(t, d, pv.Name); again != 0 || err != nil || len(events.Events) > 0 {
		t.Errorf("got %v, %v, %d Events, want it left until its next event", again, err, len(events.Events))
	}
	if len(d.claimGone) != 1 {
		t.Error("after a conflict it is forgotten that the claim is gone")
	}
}
