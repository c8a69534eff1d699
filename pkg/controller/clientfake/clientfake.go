// Package clientfake corrects client-go's fake clientset for tests.
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

// New returns a fake clientset whose watches deliver copies, and whose leases have resource
// versions with conflicts. fake.NewClientset delivers objects made between an informer's list
// and its watch as stored, so the informer's transform races with their readers; and it lets
// two replicas get a released lease.
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

// drained ends the goroutine of watch.Filter, which would block on an unread event.
type drained struct{ watch.Interface }

// Stop ends the watch and its goroutine.
func (d drained) Stop() {
	d.Interface.Stop()
	go func() {
		for range d.ResultChan() {
			continue // until it is closed
		}
	}()
}

// versions stamps objects. The clientset serialises the calls.
type versions struct {
	client *fake.Clientset
	last   int
}

// stamp rejects an update made from an older version.
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

// React answers requests before the clientset does, from now on. Unlike PrependReactor, which
// changes the chain without the lock under which it is read, it is safe while the clientset is
// used.
func React(client *fake.Clientset, verb, resource string, reaction clienttesting.ReactionFunc) {
	client.Lock()
	defer client.Unlock()
	client.PrependReactor(verb, resource, reaction)
}
