package controller

import (
	"context"
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

func TestInformersThatAreLentLoseTheHandlersOfTheBorrower(t *testing.T) {
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "one"}}
	client := fake.NewClientset(claim, &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "one"}})
	all := informers.NewSharedInformerFactory(client, 0)
	lent := newScopedInformers(all)
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

func TestALibraryLooksAgainAtTheClaimsThatWaitForIt(t *testing.T) {
	bound := func(name, request, capacity string) *v1.PersistentVolumeClaim {
		claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
		claim.Spec.Resources.Requests = v1.ResourceList{v1.ResourceStorage: resource.MustParse(request)}
		claim.Status.Phase, claim.Status.Capacity = v1.ClaimBound, v1.ResourceList{v1.ResourceStorage: resource.MustParse(capacity)}
		return claim
	}
	modified := func(name, asked, has string) *v1.PersistentVolumeClaim {
		claim := bound(name, "1Gi", "1Gi")
		claim.Spec.VolumeAttributesClassName, claim.Status.CurrentVolumeAttributesClassName = &asked, &has
		return claim
	}
	claims := []*v1.PersistentVolumeClaim{
		bound("grows", "2Gi", "1Gi"), bound("has-its-size", "1Gi", "1Gi"), bound("has-more", "1Gi", "2Gi"),
		modified("changes", "fast", "slow"), modified("has-its-class", "fast", "fast"), modified("asks-for-none", "", "fast"),
	}
	for name, waits := range map[string]func(*v1.PersistentVolumeClaim) bool{"grows": waitsForGrowth, "changes": waitsForClass} {
		t.Run(name, func(t *testing.T) {
			lent := newScopedInformers(informers.NewSharedInformerFactory(fake.NewClientset(), 0))
			looks := make(chan string)
			must.Get(lent.Core().V1().PersistentVolumeClaims().Informer().AddEventHandlerWithResyncPeriod(cache.ResourceEventHandlerFuncs{AddFunc: func(obj any) {
				looks <- obj.(*v1.PersistentVolumeClaim).Name
			}}, 0))(t)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				defer close(looks)
				lent.resync(ctx, time.Millisecond, func() []*v1.PersistentVolumeClaim { return claims }, waits)
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

// The library writes an answer that came before a change that the informer has seen, or before a deletion.
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
			lent := newScopedInformers(all).Core().V1().PersistentVolumeClaims().Informer().GetStore()
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
