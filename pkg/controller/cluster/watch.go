package cluster

import (
	"fmt"

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

// indexed returns the objects that have a value in an index, which is one of the informer's.
func indexed[T cache.Object](informer cache.TypedSharedIndexInformer[T], index, value string) []T {
	objects, err := informer.GetTypedIndexer().ByTypedIndex(index, value)
	if err != nil {
		return nil // there is the index
	}
	return objects
}

// Handler adds an event handler to an informer, and returns what removes it.
type Handler func() (remove func(), err error)

// On is the handler of an informer's events.
func On[T cache.Object](informer cache.TypedSharedIndexInformer[T], funcs cache.TypedResourceEventHandlerFuncs[T]) Handler {
	return func() (remove func(), err error) {
		registered, err := informer.AddTypedEventHandler(funcs)
		if err != nil {
			return nil, fmt.Errorf("watch %T: %w", *new(T), err)
		}
		return func() { _ = informer.RemoveEventHandler(registered) }, nil
	}
}

// OnChange is the handler that calls changed with each object, as it is at first and as it
// becomes, and deleted, unless it is nil, with each that is gone, as it was last known.
func OnChange[T cache.Object](informer cache.TypedSharedIndexInformer[T], changed, deleted func(T)) Handler {
	return On(informer, cache.TypedResourceEventHandlerFuncs[T]{
		AddFunc: changed, UpdateFunc: func(_, now T) { changed(now) },
		DeleteFunc: func(gone cache.DeletedObject[T]) {
			if last := gone.OptionalObj; deleted != nil && last != *new(T) {
				deleted(last)
			}
		},
	})
}

// Watch adds handlers. They are called until stop is called.
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
