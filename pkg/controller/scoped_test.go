package controller

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"

	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func everyClaim(*v1.PersistentVolumeClaim) bool { return true }

func TestInformersThatAreLentLoseTheHandlersOfTheBorrower(t *testing.T) {
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "one"}}
	client := fake.NewClientset(claim, &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "one"}})
	all := informers.NewSharedInformerFactory(client, 0)
	lent := newScopedInformers(all, everyClaim)
	var claims, volumes, ours atomic.Int32
	count := func(n *atomic.Int32) cache.ResourceEventHandler {
		return cache.ResourceEventHandlerFuncs{AddFunc: func(any) { n.Add(1) }}
	}
	must.Get(lent.Core().V1().PersistentVolumeClaims().Informer().AddEventHandlerWithResyncPeriod(count(&claims), time.Minute))(t)
	must.Get(lent.Core().V1().PersistentVolumes().Informer().AddEventHandler(count(&volumes)))(t)
	all.Start(t.Context().Done())
	t.Cleanup(all.Shutdown)
	waittest.Until(t, "both are seen", func() bool { return claims.Load() == 1 && volumes.Load() == 1 })
	if lent.again(claim); claims.Load() != 2 || volumes.Load() != 1 {
		t.Errorf("a claim that is to be looked at again: %d claims, %d volumes", claims.Load(), volumes.Load())
	}

	lent.release()
	lent.again(claim)
	must.Get(all.Core().V1().PersistentVolumeClaims().Informer().AddEventHandler(count(&ours)))(t)
	must.Get(client.CoreV1().PersistentVolumeClaims("default").Create(t.Context(), &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "two"}}, metav1.CreateOptions{}))(t)
	waittest.Until(t, "our own handler sees both claims", func() bool { return ours.Load() == 2 })
	if claims.Load() != 2 {
		t.Errorf("a handler that was lent saw %d claims more", claims.Load()-2)
	}
}

func boundWithSize(name, request, capacity string) *v1.PersistentVolumeClaim {
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	claim.Spec.Resources.Requests = v1.ResourceList{v1.ResourceStorage: resource.MustParse(request)}
	claim.Status.Phase, claim.Status.Capacity = v1.ClaimBound, v1.ResourceList{v1.ResourceStorage: resource.MustParse(capacity)}
	return claim
}

func TestALibraryThatBeginsSeesTheClaimsThatWaitForItAndAllThatChangesLater(t *testing.T) {
	client := fake.NewClientset(boundWithSize("grows", "2Gi", "1Gi"))
	for i := range 100 {
		must.Get(client.CoreV1().PersistentVolumeClaims("default").Create(t.Context(), boundWithSize(fmt.Sprint("idle-", i), "1Gi", "1Gi"), metav1.CreateOptions{}))(t)
	}
	all := informers.NewSharedInformerFactory(client, 0)
	claims := all.Core().V1().PersistentVolumeClaims().Informer()
	all.Start(t.Context().Done())
	t.Cleanup(all.Shutdown)
	waittest.Until(t, "the cache is filled", func() bool { return claims.HasSynced() && len(claims.GetStore().ListKeys()) == 101 })
	saw := make(chan string, 200)
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { saw <- "added: " + obj.(*v1.PersistentVolumeClaim).Name },
		UpdateFunc: func(_, obj any) { saw <- "changed: " + obj.(*v1.PersistentVolumeClaim).Name },
	}
	lent := newScopedInformers(all, waitsForGrowth)
	defer lent.release()
	r := must.Get(lent.Core().V1().PersistentVolumeClaims().Informer().AddEventHandlerWithResyncPeriod(handler, 0))(t)
	waittest.Until(t, "the library has what was there", r.HasSynced)
	must.Get(client.CoreV1().PersistentVolumeClaims("default").Update(t.Context(), boundWithSize("idle-7", "2Gi", "1Gi"), metav1.UpdateOptions{}))(t)
	must.Get(client.CoreV1().PersistentVolumeClaims("default").Create(t.Context(), boundWithSize("new", "1Gi", "1Gi"), metav1.CreateOptions{}))(t)
	for _, want := range []string{"added: grows", "changed: idle-7", "added: new"} {
		if got := <-saw; got != want {
			t.Fatalf("the library sees %q, want %q", got, want)
		}
	}
}

func TestALibraryLooksAgainAtTheClaimsThatWaitForIt(t *testing.T) {
	modified := func(name, asked, has string) *v1.PersistentVolumeClaim {
		claim := boundWithSize(name, "1Gi", "1Gi")
		claim.Spec.VolumeAttributesClassName, claim.Status.CurrentVolumeAttributesClassName = &asked, &has
		return claim
	}
	claims := []*v1.PersistentVolumeClaim{
		boundWithSize("grows", "2Gi", "1Gi"), boundWithSize("has-its-size", "1Gi", "1Gi"), boundWithSize("has-more", "1Gi", "2Gi"),
		modified("changes", "fast", "slow"), modified("has-its-class", "fast", "fast"), modified("asks-for-none", "", "fast"),
	}
	begun := modified("change-was-begun", "slow", "slow")
	begun.Status.ModifyVolumeStatus = &v1.ModifyVolumeStatus{TargetVolumeAttributesClassName: "fast", Status: v1.PersistentVolumeClaimModifyVolumeInProgress}
	if !waitsForClass(begun) {
		t.Error("a claim of which a change was begun waits for nothing")
	}
	for name, waits := range map[string]func(*v1.PersistentVolumeClaim) bool{"grows": waitsForGrowth, "changes": waitsForClass} {
		t.Run(name, func(t *testing.T) {
			lent := newScopedInformers(informers.NewSharedInformerFactory(fake.NewClientset(), 0), waits)
			looks := make(chan string)
			must.Get(lent.Core().V1().PersistentVolumeClaims().Informer().AddEventHandlerWithResyncPeriod(cache.ResourceEventHandlerFuncs{AddFunc: func(obj any) {
				looks <- obj.(*v1.PersistentVolumeClaim).Name
			}}, 0))(t)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				defer close(looks)
				lent.resync(ctx, time.Millisecond, func() []*v1.PersistentVolumeClaim { return claims })
			}()
			for range 3 {
				if got := <-looks; got != name {
					t.Errorf("it looks at %s, which waits for nothing", got)
				}
			}
			cancel()
			for range looks {
			}
			<-done
		})
	}
}

// The library writes an answer older than a change or deletion that the informer has seen.
func TestWhatALibraryWritesIntoAStoreIsNoNewsToUs(t *testing.T) {
	version := func(version, uid string) *v1.PersistentVolumeClaim {
		return &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c", UID: types.UID(uid), ResourceVersion: version}}
	}
	const key = "default/c"
	for name, test := range map[string]struct{ informers, written, read *v1.PersistentVolumeClaim }{
		"the informer is behind":                 {version("5", "a"), version("6", "a"), version("6", "a")},
		"the informer has it":                    {version("6", "a"), version("6", "a"), version("6", "a")},
		"the informer has a newer one":           {version("7", "a"), version("6", "a"), version("7", "a")},
		"the informer has seen that it is gone":  {nil, version("6", "a"), nil},
		"the informer has another of that name":  {version("5", "b"), version("6", "a"), version("5", "b")},
		"a number is larger than another's text": {version("9", "a"), version("10", "a"), version("10", "a")},
	} {
		t.Run(name, func(t *testing.T) {
			all := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
			ours := all.Core().V1().PersistentVolumeClaims().Informer().GetStore()
			if test.informers != nil {
				must.Succeed(t, ours.Add(test.informers))
			}
			lent := newScopedInformers(all, everyClaim).Core().V1().PersistentVolumeClaims().Informer().GetStore()
			must.Succeed(t, lent.Update(test.written))
			if got, exists, err := ours.GetByKey(key); err != nil || exists != (test.informers != nil) || exists && got != any(test.informers) {
				t.Errorf("our store has %v, %v", got, err)
			}
			for range 2 {
				got, exists, err := lent.GetByKey(key)
				if err != nil || exists != (test.read != nil) || exists && got.(*v1.PersistentVolumeClaim).ResourceVersion != test.read.ResourceVersion {
					t.Errorf("the library reads %v, %v, want %v", got, err, test.read)
				}
			}
		})
	}
}
