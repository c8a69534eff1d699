package cluster

import (
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// List returns every object in an informer's cache.
func List[T cache.Object](informer cache.TypedSharedIndexInformer[T]) []T {
	var all []T
	for _, obj := range informer.GetStore().List() {
		if object, ok := obj.(T); ok {
			all = append(all, object)
		}
	}
	return all
}

func indexed[T cache.Object](informer cache.TypedSharedIndexInformer[T], index, value string) []T {
	objects, err := informer.GetTypedIndexer().ByTypedIndex(index, value)
	if err != nil {
		return nil // the index exists
	}
	return objects
}

// Handler adds an event handler to an informer, and returns a function that removes it.
type Handler func() (remove func(), err error)

// On returns a Handler for an informer's events.
func On[T cache.Object](informer cache.TypedSharedIndexInformer[T], funcs cache.TypedResourceEventHandlerFuncs[T]) Handler {
	return func() (remove func(), err error) {
		registered, err := informer.AddTypedEventHandler(funcs)
		if err != nil {
			return nil, fmt.Errorf("watch %T: %w", *new(T), err)
		}
		return func() { _ = informer.RemoveEventHandler(registered) }, nil
	}
}

// apiObject is an object of the API server.
type apiObject interface {
	cache.Object
	GetUID() types.UID
}

// OnChange returns a Handler that calls changed with each object, initially and after changes, and
// deleted, unless nil, with the last known state of each removed one. An informer that missed a
// deletion, as across a relist, reports a new object of the same name as a change of the old one.
func OnChange[T apiObject](informer cache.TypedSharedIndexInformer[T], changed, deleted func(T)) Handler {
	if deleted == nil {
		deleted = func(T) {}
	}
	return On(informer, cache.TypedResourceEventHandlerFuncs[T]{
		AddFunc: changed,
		UpdateFunc: func(before, now T) {
			if before.GetUID() != now.GetUID() {
				deleted(before)
			}
			changed(now)
		},
		DeleteFunc: func(gone cache.DeletedObject[T]) {
			if last := gone.OptionalObj; last != *new(T) {
				deleted(last)
			}
		},
	})
}

// Watch adds handlers, and returns a function that removes them.
func Watch(handlers ...Handler) (stop func(), err error) {
	var added []func()
	stop = func() {
		for _, remove := range added {
			remove()
		}
	}
	for _, add := range handlers {
		remove, err := add()
		if err != nil {
			stop()
			return nil, err
		}
		added = append(added, remove)
	}
	return stop, nil
}
