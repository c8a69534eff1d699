package controller

import (
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
