package journal

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"runtime/debug"
	"strconv"
	"syscall"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/carve-csi/carve/api/config"
	"github.com/carve-csi/carve/api/leadership"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
	"github.com/carve-csi/carve/pkg/must"
)

// The kernel rejects the open.
func TestAJournalThatCannotBeOpenedIsNotTakenForDamaged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	must.Succeed(t, os.MkdirAll(filepath.Join(path, "in it"), 0o700))
	j, _, aside, err := Open(path)
	if !errors.Is(err, syscall.EISDIR) || aside != "" {
		t.Errorf("opened %v, moved aside %q, error %v; want EISDIR", j, aside, err)
	}
	if _, err := os.Stat(filepath.Join(path, "in it")); err != nil {
		t.Error(err)
	}
}

func open(t *testing.T, path string) *Journal {
	t.Helper()
	j, _, aside, err := Open(path)
	if err != nil || aside != "" {
		t.Fatalf("moved aside %q, error %v", aside, err)
	}
	t.Cleanup(func() { _ = j.Close() })
	return j
}

func TestWhatIsStoredIsReadByTheNextRun(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	j := open(t, path)
	volume, gone := spec.Record{ID: "cv1", Group: "g", Phase: spec.Ready}, spec.Record{ID: "cv2", Group: "g"}
	group := Group{UUID: "u", Seqno: 3, Zeroed: map[string][]int64{"pv": {0, 4096, 8192, 12288}}}
	bindings := Bindings{"local": {Groups: []string{"g"}, Type: config.Thin, Medium: config.Disk, Pool: "p"}}
	device, other := Device{UUID: "d1", Group: "g", Device: "/dev/sdb", Joined: true}, Device{UUID: "d2", Group: "other"}
	pool := &PoolIntent{Group: "g", Pool: "p", UUID: "u", Seqno: 3, Metadata: 2 << 20, Unnamed: []string{"lvol0"}}
	leader := leadership.Leadership{Cluster: "c"}
	must.Succeed(t, j.PutVolume(volume, func(tx *Tx) error { return tx.PutGroup("g", group) }))
	must.Succeed(t, j.PutVolume(gone))
	must.Succeed(t, j.RemoveVolumes([]string{gone.ID, "cv3"}, func(tx *Tx) error { return tx.PutBindings(bindings) }))
	identity := Identity{UUID: "u", Devices: []string{"d1"}}
	must.Succeed(t, j.PutIdentity("g", identity))
	must.Succeed(t, j.PutIdentity("other", Identity{UUID: "v"}))
	must.Succeed(t, j.PutIdentity("other", Identity{}))
	must.Succeed(t, j.PutDevices(device, other, Device{UUID: "d3", Group: "g"}))
	must.Succeed(t, j.RemoveDevices("d3", "d4"))
	must.Succeed(t, j.PutPoolIntent(pool))
	must.Succeed(t, j.PutPoolIntent(&PoolIntent{Group: "g", Pool: "q"}))
	must.Succeed(t, j.RemovePoolIntent(&PoolIntent{Group: "g", Pool: "q"}))
	must.Succeed(t, j.PutLeaders([]leadership.Leadership{leader}))
	must.Succeed(t, j.Close())

	j = open(t, path)
	for what, c := range map[string]struct{ got, want any }{
		"volumes":  {must.Get(j.Volumes())(t), map[string]spec.Record{"cv1": volume}},
		"groups":   {must.Get(j.Groups())(t), map[string]Group{"g": group}},
		"known by": {must.Get(j.Identities())(t), map[string]Identity{"g": identity}},
		"bindings": {must.Get(j.Bindings())(t), bindings},
		"devices":  {must.Get(j.Devices("g"))(t), map[string]Device{"d1": device}},
		"pools":    {must.Get(j.PoolIntents())(t), map[string]*PoolIntent{PoolKey("g", "p"): pool}},
		"leaders":  {must.Get(j.Leaders())(t), []leadership.Leadership{leader}},
	} {
		if !reflect.DeepEqual(c.got, c.want) {
			t.Errorf("%s: %+v, want %+v", what, c.got, c.want)
		}
	}
}

// The cut is in the zeroed space of a fragmented group.
func TestAJournalThatWasCutOffIsNotUsed(t *testing.T) {
	dir := t.TempDir()
	whole := filepath.Join(dir, "whole")
	j := open(t, whole)
	group := Group{UUID: "u", Zeroed: map[string][]int64{"pv": make([]int64, 20_000)}}
	must.Succeed(t, j.Update(func(tx *Tx) error { return tx.PutGroup("g", group) }))
	must.Succeed(t, j.Close())
	content := must.Get(os.ReadFile(whole))(t)
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	for cut := 1; cut < len(content)/os.Getpagesize(); cut++ {
		path := filepath.Join(dir, strconv.Itoa(cut))
		must.Succeed(t, os.WriteFile(path, content[:cut*os.Getpagesize()], 0o600))
		j, _, _, err := Open(path)
		must.Succeed(t, err)
		_ = must.Get(j.Groups())(t) // It would fault in a truncated file.
		must.Succeed(t, j.Close())
	}
}

func TestTheDevicesThatAGroupIsKnownByAreThoseOfItsUUID(t *testing.T) {
	j := open(t, filepath.Join(t.TempDir(), "journal.db"))
	must.Succeed(t, j.PutIdentity("g", Identity{UUID: "u", Devices: []string{"d1"}}))
	// An earlier version writes the UUID alone.
	must.Succeed(t, j.db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(bucketUUIDs).Put([]byte("g"), []byte("v")) }))
	if got, want := must.Get(j.Identities())(t), map[string]Identity{"g": {UUID: "v"}}; !reflect.DeepEqual(got, want) {
		t.Errorf("the group is known by %v, want %v", got, want)
	}
}

func TestATransactionThatFailsHasNoEffect(t *testing.T) {
	j := open(t, filepath.Join(t.TempDir(), "journal.db"))
	wrong := errors.New("something")
	err := j.PutVolume(spec.Record{ID: "cv1"}, func(*Tx) error { return wrong })
	if !errors.Is(err, wrong) || !errors.Is(err, apierror.ErrNotStored) {
		t.Errorf("error %v", err)
	}
	if records := must.Get(j.Volumes())(t); len(records) > 0 {
		t.Errorf("stored %v", records)
	}
}

func TestEveryCommitHasACrashPointBeforeAndAfterIt(t *testing.T) {
	j := open(t, filepath.Join(t.TempDir(), "journal.db"))
	stored := map[string]bool{}
	j.SetCrashPoint(func(point string) { stored[point] = len(must.Get(j.Volumes())(t)) > 0 })
	must.Succeed(t, j.PutVolume(spec.Record{ID: "cv1"}))
	want := map[string]bool{"journal: before a commit": false, "journal: after a commit": true}
	if !reflect.DeepEqual(stored, want) {
		t.Errorf("stored at %v, want %v", stored, want)
	}
}
