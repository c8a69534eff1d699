// Package clientfake is client-go's fake clientset, with three corrections, for tests whose API server is
// a fake.
package clientfake

import (
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// New returns a fake clientset with these objects, whose watches deliver copies. Those of
// fake.NewClientset deliver what was made between an informer's list and its watch as it is stored;
// the informer's transform then changes it, beside all that read it. Leases have resource versions, and an
// update of an older one is refused: fake.NewClientset lets two replicas get a lease that was released.
func New(objects ...runtime.Object) *fake.Clientset {
	client := fake.NewClientset(objects...)
	client.PrependWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
		var o metav1.ListOptions
		if w, ok := action.(clienttesting.WatchActionImpl); ok {
			o = w.ListOptions
		}
		w, err := client.Tracker().Watch(action.GetResource(), action.GetNamespace(), o)
		if err != nil {
			return false, nil, err
		}
		return true, drained{watch.Filter(w, func(e watch.Event) (watch.Event, bool) {
			e.Object = e.Object.DeepCopyObject()
			return e, true
		})}, nil
	})
	leases := &versions{client: client}
	client.PrependReactor("create", "leases", leases.stamp)
	client.PrependReactor("update", "leases", leases.stamp)
	return client
}

// drained is what watch.Filter returns, whose goroutine would else not end with an event that is not read.
type drained struct{ watch.Interface }

// Stop ends the watch, and its goroutine.
func (d drained) Stop() {
	d.Interface.Stop()
	go func() {
		for range d.ResultChan() {
			continue // until it is closed
		}
	}()
}

// versions gives objects resource versions. The clientset calls it for one request after the other.
type versions struct {
	client *fake.Clientset
	last   int
}

// stamp gives an object that is written the next version, or refuses it if it was made from an older one.
func (v *versions) stamp(action clienttesting.Action) (bool, runtime.Object, error) {
	write, ok := action.(interface{ GetObject() runtime.Object })
	if !ok {
		return false, nil, nil
	}
	object, err := meta.Accessor(write.GetObject())
	if err != nil {
		return true, nil, err
	}
	if action.GetVerb() == "update" {
		stored, err := v.client.Tracker().Get(action.GetResource(), action.GetNamespace(), object.GetName())
		if err != nil {
			return true, nil, err
		}
		if now, err := meta.Accessor(stored); err != nil || now.GetResourceVersion() != object.GetResourceVersion() {
			return true, nil, apierrors.NewConflict(action.GetResource().GroupResource(), object.GetName(), err)
		}
	}
	v.last++
	object.SetResourceVersion(strconv.Itoa(v.last))
	return false, nil, nil
}

// React has a function answer requests before the clientset does, from now on. It may be called while
// the clientset is used, which its PrependReactor may not: the list of these functions is read under
// the lock that is taken here, and changed by PrependReactor without.
func React(client *fake.Clientset, verb, resource string, reaction clienttesting.ReactionFunc) {
	client.Lock()
	defer client.Unlock()
	client.PrependReactor(verb, resource, reaction)
}
