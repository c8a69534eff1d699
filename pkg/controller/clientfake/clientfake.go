// Package clientfake is client-go's fake clientset, with two corrections, for tests whose API server is
// a fake.
package clientfake

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// New returns a fake clientset with these objects, whose watches deliver copies. Those of
// fake.NewClientset deliver what was made between an informer's list and its watch as it is stored;
// the informer's transform then changes it, beside all that read it.
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
		return true, watch.Filter(w, func(e watch.Event) (watch.Event, bool) {
			e.Object = e.Object.DeepCopyObject()
			return e, true
		}), nil
	})
	return client
}

// React has a function answer requests before the clientset does, from now on. It may be called while
// the clientset is used, which its PrependReactor may not: the list of these functions is read under
// the lock that is taken here, and changed by PrependReactor without.
func React(client *fake.Clientset, verb, resource string, reaction clienttesting.ReactionFunc) {
	client.Lock()
	defer client.Unlock()
	client.PrependReactor(verb, resource, reaction)
}
