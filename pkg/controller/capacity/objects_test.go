package capacity

import (
	"testing"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

type clock struct{ time.Time }

func (c *clock) now() time.Time { return c.Time }

func objectOfVersion(version string) *storagev1.CSIStorageCapacity {
	return &storagev1.CSIStorageCapacity{ObjectMeta: metav1.ObjectMeta{
		Namespace: "carve", Name: "node-1--scratch", UID: types.UID("1"), ResourceVersion: version}}
}

func wantVersion(t *testing.T, o *objects, want string) {
	t.Helper()
	got := ""
	if object := o.get("carve/node-1--scratch"); object != nil {
		got = object.ResourceVersion
	}
	if got != want {
		t.Errorf("version %q is current, want %q", got, want)
	}
}

func TestACreatedObjectIsKnownUntilTheInformerHasHadItsTime(t *testing.T) {
	now := clock{time.Unix(0, 0)}
	o := newObjects(cache.NewStore(cache.MetaNamespaceKeyFunc), now.now)
	o.wrote(objectOfVersion("10"))
	for range 3 { // each read keeps it
		now.Time = now.Add(unseenMax / 4)
		wantVersion(t, o, "10")
	}
	now.Time = now.Add(unseenMax / 4)
	wantVersion(t, o, "")
	// The API server has it after all, or it was created again.
	o.wrote(objectOfVersion("10"))
	wantVersion(t, o, "10")
}

func TestTheNewerOfWhatWasWrittenAndWhatWasSeenIsCurrent(t *testing.T) {
	store := cache.NewStore(cache.MetaNamespaceKeyFunc)
	now := clock{time.Unix(0, 0)}
	o := newObjects(store, now.now)
	see := func(version string) {
		t.Helper()
		object := objectOfVersion(version)
		if err := store.Update(object); err != nil {
			t.Fatal(err)
		}
		o.seen(object)
	}
	see("10")
	wantVersion(t, o, "10")
	o.wrote(objectOfVersion("12"))
	see("11")
	wantVersion(t, o, "12")
	now.Time = now.Add(2 * unseenMax) // once seen, it stays while the informer has it
	wantVersion(t, o, "12")
	see("13")
	wantVersion(t, o, "13")

	if err := store.Delete(objectOfVersion("13")); err != nil {
		t.Fatal(err)
	}
	wantVersion(t, o, "")
	o.deleted(objectOfVersion("13"))
	o.wrote(objectOfVersion("12")) // the late answer to a write before the deletion
	wantVersion(t, o, "")
}
