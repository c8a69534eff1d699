// Package lvmtest is the suite that every implementation of lvm.Groups must pass, and so what
// callers may rely on. Each implementation provides an Env with an empty volume group, and
// removes the group afterwards.
package lvmtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/layout"
	"github.com/carve-csi/carve/pkg/lvm/ondisk"
	"github.com/carve-csi/carve/pkg/must"
)

// Env is an LVM to test, with one empty volume group of at least 16 extents.
type Env struct {
	Groups lvm.Groups
	Group  string
	// Hold opens a volume's device like a user, until release.
	Hold func(group, volume string) (release func(), err error)
	// HoldCrypt is Hold for its encrypted device.
	HoldCrypt func(group, volume string) (release func(), err error)
	// Deactivate removes the devices of the group's volumes, like a reboot.
	Deactivate func()
	// MakeInconsistent leaves a volume's device like an extension that is killed before it
	// commits.
	MakeInconsistent func(volume string)
	// MakeSnapshot creates a snapshot with a size of its own, like an administrator.
	MakeSnapshot func(origin, name string)
}

// Run runs the suite. setup returns a fresh Env and registers its clean-up on t.
func Run(t *testing.T, setup func(t *testing.T) Env) {
	for _, c := range []struct {
		name string
		test func(*testing.T, Env)
	}{
		{"a scan of an unknown group finds nothing and is no error", unknownGroup},
		{"a created volume has its size, its tags and a device", created},
		{"each change raises the sequence number by exactly one", seqno},
		{"the largest volume fits and one extent more does not", exact},
		{"a fragmented group still gives a volume of all that is free", fragmented},
		{"volumes fit into the metadata until it is full, and not one more", metadata},
		{"a name is given once", exists},
		{"changes to what is not there say so", notFound},
		{"an extended volume is larger and keeps its device", extended},
		{"several volumes are removed by one call", removed},
		{"what another volume depends on is neither removed nor grown", dependedOn},
		{"an open volume is neither opened again nor removed", busy},
		{"a zeroed range needs an open handle and frees the device when closed", zeroed},
		{"volumes without devices get them back by activation", activated},
		{"what a killed extension leaves is found and repaired", repaired},
		{"a renamed volume keeps its device and what it holds", renamed},
		{"tags are put on and taken off by one call", retagged},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, setup(t)) })
	}
	for _, c := range cryptCases {
		t.Run(c.name, func(t *testing.T) { c.test(t, setup(t)) })
	}
	for _, c := range thinCases {
		t.Run(c.name, func(t *testing.T) { c.test(t, setup(t)) })
	}
}

func (e Env) scan(t *testing.T) lvm.Group {
	t.Helper()
	found, err := e.Groups.Scan(t.Context(), []string{e.Group})
	if err != nil || len(found) != 1 {
		t.Fatalf("Scan: %d groups, error %v", len(found), err)
	}
	return found[0]
}

func (e Env) create(t *testing.T, name string, extents int64, tags ...string) {
	t.Helper()
	if err := e.Groups.Create(t.Context(), lvm.CreateOptions{Group: e.Group, Volume: name, Extents: extents, Tags: tags}); err != nil {
		t.Fatalf("Create %s of %d extents: %v", name, extents, err)
	}
}

func wantErr(t *testing.T, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s: error %v, want %v", what, got, want)
	}
}

func unknownGroup(t *testing.T, e Env) {
	e.scan(t)
	found, err := e.Groups.Scan(t.Context(), []string{"carve-no-such-group"})
	if err != nil || len(found) != 0 {
		t.Errorf("Scan: %v, error %v", found, err)
	}
	_, err = e.Groups.Metadata("carve-no-such-group")
	wantErr(t, "Metadata", err, lvm.ErrNotFound)
}

func created(t *testing.T, e Env) {
	before := e.scan(t)
	tags := []string{"carve", "carve.name=pvc-1", "carve.odd=" + ondisk.EscapeTag("ä b,c\"#$'")}
	e.create(t, "cv1", 3, tags...)
	g := e.scan(t)
	v := g.Volume("cv1")
	if v == nil {
		t.Fatal("the volume is not there")
	}
	if want := 3 * g.ExtentSize; v.Size != want {
		t.Errorf("size %d, want %d", v.Size, want)
	}
	got := slices.Sorted(slices.Values(v.Tags))
	if want := slices.Sorted(slices.Values(tags)); !slices.Equal(got, want) {
		t.Errorf("tags %q, want %q", got, want)
	}
	if v.Attr.Activation != lvm.Active || v.Attr.Health != lvm.Healthy || v.Created.IsZero() {
		t.Errorf("volume %+v", v)
	}
	if before.Allocatable()-g.Allocatable() != 3 || before.FreeExtents-g.FreeExtents != 3 {
		t.Errorf("3 extents taken: allocatable %d, then %d; free %d, then %d",
			before.Allocatable(), g.Allocatable(), before.FreeExtents, g.FreeExtents)
	}
	d, err := e.Groups.Device(e.Group, "cv1")
	if err != nil {
		t.Fatal(err)
	}
	if d.Path != "/dev/"+e.Group+"/cv1" || d.OpenCount != 0 || d.Suspended || d.Major == 0 {
		t.Errorf("device %+v", d)
	}
	numbers, err := e.Groups.Numbers(e.Group)
	if want := map[string]blockdev.Number{"cv1": d.Number()}; err != nil || !maps.Equal(numbers.Volumes, want) {
		t.Errorf("numbers %v, error %v, want %v", numbers.Volumes, err, want)
	}
	if numbers, err = e.Groups.Numbers("carve-no-such-group"); err != nil || len(numbers.Volumes) > 0 {
		t.Errorf("numbers of no group: %v, error %v", numbers.Volumes, err)
	}
}

func seqno(t *testing.T, e Env) {
	g := e.scan(t)
	want := g.Seqno
	check := func(after string) {
		t.Helper()
		want++
		got, err := e.Groups.Metadata(e.Group)
		if err != nil || got.Seqno != want {
			t.Errorf("after %s: metadata %+v, want sequence number %d, error %v", after, got, want, err)
			want = got.Seqno
		}
	}
	e.create(t, "cv1", 1, "carve", "carve.name=x")
	check("the first create")
	e.create(t, "cv2", 2, "carve", "carve.name=y")
	check("the second create")
	must.Succeed(t, e.Groups.Extend(t.Context(), e.Group, "cv1", 4))
	check("an extension")
	must.Succeed(t, e.Groups.ExtendAt(t.Context(), want, e.Group, "cv1", 5))
	check("an extension at the number")
	wantErr(t, "an extension at another number", e.Groups.ExtendAt(t.Context(), want-1, e.Group, "cv1", 6), lvm.ErrChanged)
	must.Succeed(t, e.Groups.Remove(t.Context(), e.Group, []string{"cv1", "cv2"}))
	check("the removal of two")
	if got := e.scan(t).Seqno; got != want {
		t.Errorf("the scan says %d, the disk %d", got, want)
	}
}

func exact(t *testing.T, e Env) {
	g := e.scan(t)
	most := g.Allocatable()
	err := e.Groups.Create(t.Context(), lvm.CreateOptions{Group: e.Group, Volume: "cv1", Extents: most + 1})
	wantErr(t, "one extent too many", err, lvm.ErrNoSpace)
	e.create(t, "cv1", most)
	err = e.Groups.Create(t.Context(), lvm.CreateOptions{Group: e.Group, Volume: "cv2", Extents: 1})
	wantErr(t, "in a full group", err, lvm.ErrNoSpace)
	wantErr(t, "extending in a full group", e.Groups.Extend(t.Context(), e.Group, "cv1", most+1), lvm.ErrNoSpace)
	g = e.scan(t)
	if g.Allocatable() != 0 || g.FreeExtents != 0 || len(g.Volumes) != 1 {
		t.Errorf("full group: allocatable %d, free %d, %d volumes", g.Allocatable(), g.FreeExtents, len(g.Volumes))
	}
}

func fragmented(t *testing.T, e Env) {
	e.scan(t)
	for _, n := range []string{"cv1", "cv2", "cv3", "cv4", "cv5"} {
		e.create(t, n, 2)
	}
	must.Succeed(t, e.Groups.Remove(t.Context(), e.Group, []string{"cv1", "cv3"}))
	g := e.scan(t)
	if g.FreeSegments != 3 && g.FreeSegments != 4 {
		t.Errorf("%d free segments; the holes of cv1 and cv3 and the rest of one or two disks are 3 or 4", g.FreeSegments)
	}
	free := g.FreeSegments
	e.create(t, "cv6", g.Allocatable())
	g = e.scan(t)
	if got := g.Allocatable(); got != 0 || g.FreeSegments != 0 {
		t.Errorf("%d extents left, in %d segments", got, g.FreeSegments)
	}
	if got := g.Volume("cv6").Segments; got != free {
		t.Errorf("%d segments, want %d", got, free)
	}
}

// metadata fills the metadata before the extents, by volumes with the largest tags.
func metadata(t *testing.T, e Env) {
	e.scan(t)
	tags := make([]string, 64)
	made := 0
	for ; made < 400; made++ {
		m, err := e.Groups.Metadata(e.Group)
		if err != nil {
			t.Fatal(err)
		}
		for i := range tags {
			tags[i] = fmt.Sprintf("t%d-%d-%s", made, i, strings.Repeat("x", 1000))
		}
		err = e.Groups.Create(t.Context(), lvm.CreateOptions{Group: e.Group, Volume: fmt.Sprintf("cv%d", made), Extents: 1, Tags: tags})
		if fits := m.Fits(tags, 1); fits && err != nil {
			t.Fatalf("volume %d does not fit into %+v: %v", made, m, err)
		}
		if err != nil {
			wantErr(t, "Create", err, lvm.ErrNoSpace)
			break
		}
		after, err := e.Groups.Metadata(e.Group)
		if grown, most := after.Size-m.Size, layout.VolumeText(tags, 1); err != nil || grown <= 0 && made > 1 || made > 1 && grown > most {
			t.Errorf("volume %d took %d bytes, at most %d are foreseen; error %v", made, grown, most, err)
		}
	}
	if made < 2 || made == 400 {
		t.Errorf("%d volumes fit", made)
	}
	g := e.scan(t)
	if len(g.Volumes) != made || g.Allocatable() == 0 {
		t.Errorf("%d volumes were made, %d are there, %d extents are left", made, len(g.Volumes), g.Allocatable())
	}
}

func exists(t *testing.T, e Env) {
	e.scan(t)
	e.create(t, "cv1", 1)
	err := e.Groups.Create(t.Context(), lvm.CreateOptions{Group: e.Group, Volume: "cv1", Extents: 1})
	wantErr(t, "Create", err, lvm.ErrExists)
}

func notFound(t *testing.T, e Env) {
	e.scan(t)
	ctx := t.Context()
	wantErr(t, "Extend", e.Groups.Extend(ctx, e.Group, "cv1", 2), lvm.ErrNotFound)
	wantErr(t, "Remove", e.Groups.Remove(ctx, e.Group, []string{"cv1"}), lvm.ErrNotFound)
	_, err := e.Groups.Device(e.Group, "cv1")
	wantErr(t, "Device", err, lvm.ErrNotFound)
	_, err = e.Groups.Open(e.Group, "cv1")
	wantErr(t, "Open", err, lvm.ErrNotFound)
	err = e.Groups.Create(ctx, lvm.CreateOptions{Group: "carve-no-such-group", Volume: "cv1", Extents: 1})
	wantErr(t, "Create in no group", err, lvm.ErrNotFound)
}

func extended(t *testing.T, e Env) {
	e.scan(t)
	e.create(t, "cv1", 1)
	before, err := e.Groups.Device(e.Group, "cv1")
	if err != nil {
		t.Fatal(err)
	}
	release, err := e.Hold(e.Group, "cv1")
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	must.Succeed(t, e.Groups.Extend(t.Context(), e.Group, "cv1", 5))
	g := e.scan(t)
	if v := g.Volume("cv1"); v.Size != 5*g.ExtentSize {
		t.Errorf("size %d, want 5 extents", v.Size)
	}
	after, err := e.Groups.Device(e.Group, "cv1")
	if err != nil || after.Major != before.Major || after.Minor != before.Minor || after.Suspended {
		t.Errorf("device %+v, then %+v, error %v", before, after, err)
	}
}

// The snapshot is newer than the last scan, so only LVM knows of it.
func dependedOn(t *testing.T, e Env) {
	e.scan(t)
	for _, name := range []string{"cv1", "cv2"} {
		e.create(t, name, 1)
	}
	before := e.scan(t)
	has := func(want bool) {
		t.Helper()
		if got, err := e.Groups.HasDependents(e.Group, "cv1"); got != want || err != nil {
			t.Errorf("cv1 has dependents: %v, error %v, want %v", got, err, want)
		}
	}
	has(false)
	if d := before.Dependents(); len(d) > 0 {
		t.Errorf("before there is a snapshot: %v", d)
	}
	e.MakeSnapshot("cv1", "snap")
	has(true)
	wantErr(t, "removing an origin, and another volume", e.Groups.Remove(t.Context(), e.Group, []string{"cv1", "cv2"}), lvm.ErrHasDependents)
	if err := e.Groups.Extend(t.Context(), e.Group, "cv1", 2); err == nil {
		t.Error("an origin was grown")
	}
	g := e.scan(t)
	if g.Volume("cv1") == nil || g.Volume("snap") == nil || g.Volume("cv2") != nil {
		t.Errorf("volumes %+v, want the origin and its snapshot", g.Volumes)
	}
	want := lvm.Dependent{Name: "snap", Is: "is a snapshot of it", Remedy: "lvs --all " + e.Group + ", copy what is needed, lvremove " + e.Group + "/snap"}
	if d := g.Dependents(); len(d) != 1 || !slices.Equal(d["cv1"], []lvm.Dependent{want}) {
		t.Errorf("dependents %v, want %v", d, want)
	}
	must.Succeed(t, e.Groups.Remove(t.Context(), e.Group, []string{"snap"}))
	has(false)
	must.Succeed(t, e.Groups.Remove(t.Context(), e.Group, []string{"cv1"}))
	_, err := e.Groups.HasDependents(e.Group, "cv1")
	wantErr(t, "of a volume without a device", err, lvm.ErrNotFound)
}

func removed(t *testing.T, e Env) {
	before := e.scan(t)
	names := []string{"cv1", "cv2", "cv3"}
	for _, n := range names {
		e.create(t, n, 1)
	}
	must.Succeed(t, e.Groups.Remove(t.Context(), e.Group, names))
	g := e.scan(t)
	if len(g.Volumes) != 0 || g.Allocatable() != before.Allocatable() {
		t.Errorf("left: %+v; allocatable %d, was %d", g.Volumes, g.Allocatable(), before.Allocatable())
	}
}

func busy(t *testing.T, e Env) {
	e.scan(t)
	e.create(t, "cv1", 1)
	release, err := e.Hold(e.Group, "cv1")
	if err != nil {
		t.Fatal(err)
	}
	_, err = e.Groups.Open(e.Group, "cv1")
	wantErr(t, "Open", err, lvm.ErrBusy)
	wantErr(t, "Remove", e.Groups.Remove(t.Context(), e.Group, []string{"cv1"}), lvm.ErrBusy)
	if d, err := e.Groups.Device(e.Group, "cv1"); err != nil || d.OpenCount != 1 {
		t.Errorf("device %+v, error %v", d, err)
	}
	release()
	if err := e.Groups.Remove(t.Context(), e.Group, []string{"cv1"}); err != nil {
		t.Error(err)
	}
}

func zeroed(t *testing.T, e Env) {
	g := e.scan(t)
	e.create(t, "cv1", 2)
	h, err := e.Groups.Open(e.Group, "cv1")
	if err != nil {
		t.Fatal(err)
	}
	if h.Size() != 2*g.ExtentSize {
		t.Errorf("size %d, want %d", h.Size(), 2*g.ExtentSize)
	}
	_, err = e.Groups.Open(e.Group, "cv1")
	wantErr(t, "a second Open", err, lvm.ErrBusy)
	half := g.ExtentSize / 2
	for _, c := range []struct {
		name  string
		clear func(off, length int64) error
		// may lists what the cleared range may contain.
		may []byte
	}{
		{"Zero", h.Zero, []byte{0}},
		{"Overwrite", h.Overwrite, []byte{0}},
		{"Discard", h.Discard, []byte{0, 0x5a}},
	} {
		write(t, h, 0, h.Size(), 0x5a)
		// From the middle of the first extent into the second.
		if err := errors.Join(c.clear(half, g.ExtentSize), h.Sync()); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		reads(t, c.name+" before its range", h, 0, half, 0x5a)
		reads(t, c.name, h, half, g.ExtentSize, c.may...)
		reads(t, c.name+" after its range", h, half+g.ExtentSize, half, 0x5a)
	}
	if err := h.Close(); err != nil {
		t.Error(err)
	}
	if err := e.Groups.Remove(context.WithoutCancel(t.Context()), e.Group, []string{"cv1"}); err != nil {
		t.Error(err)
	}
}

func write(t *testing.T, h blockdev.Handle, off, length int64, pattern byte) {
	t.Helper()
	must.Get(h.WriteAt(bytes.Repeat([]byte{pattern}, int(length)), off))(t)
}

// reads fails the test if a range contains anything else than may.
func reads(t *testing.T, what string, h blockdev.Handle, off, length int64, may ...byte) {
	t.Helper()
	b := make([]byte, length)
	if _, err := h.ReadAt(b, off); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	if others := bytes.Trim(b, string(may)); len(others) > 0 {
		t.Errorf("%s: %#x is read within %d bytes at %d, want one of %#x", what, others[0], length, off, may)
	}
}

func repaired(t *testing.T, e Env) {
	g := e.scan(t)
	e.create(t, "cv1", 1)
	e.create(t, "cv2", 1)
	inconsistent := func(want ...string) {
		t.Helper()
		if got, err := e.Groups.Inconsistent(e.Group); err != nil || !slices.Equal(got, want) {
			t.Errorf("inconsistent: %q, want %q, error %v", got, want, err)
		}
	}
	inconsistent()
	e.MakeInconsistent("cv2")
	inconsistent("cv2")
	if err := e.Groups.Repair(t.Context(), e.Group, []string{"cv1"}); err != nil {
		t.Error(err)
	}
	inconsistent("cv2") // Repair was not asked for it.
	for range 2 {
		if err := e.Groups.Repair(t.Context(), e.Group, []string{"cv1", "cv2"}); err != nil {
			t.Error(err)
		}
		inconsistent()
	}
	if d, err := e.Groups.Device(e.Group, "cv2"); err != nil || d.Suspended {
		t.Errorf("device %+v, error %v", d, err)
	}
	h := must.Get(e.Groups.Open(e.Group, "cv2"))(t)
	if h.Size() != g.ExtentSize {
		t.Errorf("size %d, want %d", h.Size(), g.ExtentSize)
	}
	if err := errors.Join(h.Zero(0, g.ExtentSize), h.Close()); err != nil {
		t.Error(err)
	}
	if err := e.Groups.Repair(t.Context(), "carve-no-such-group", []string{"cv1"}); err != nil {
		t.Errorf("in no group: %v", err)
	}
}

func activated(t *testing.T, e Env) {
	e.scan(t)
	e.create(t, "cv1", 1)
	e.create(t, "cv2", 1)
	e.Deactivate()
	_, err := e.Groups.Device(e.Group, "cv1")
	wantErr(t, "Device of an inactive volume", err, lvm.ErrNotFound)
	g := e.scan(t)
	if a := g.Volume("cv1").Attr.Activation; a != lvm.Inactive {
		t.Errorf("activation %v", a)
	}
	for range 2 {
		must.Succeed(t, e.Groups.Activate(t.Context(), e.Group, []string{"cv1"}))
		if d, err := e.Groups.Device(e.Group, "cv1"); err != nil || !strings.HasSuffix(d.Path, "/cv1") {
			t.Errorf("device %+v, error %v", d, err)
		}
		_, err := e.Groups.Device(e.Group, "cv2")
		wantErr(t, "Device of a volume that was not named", err, lvm.ErrNotFound)
	}
	wantErr(t, "Activate with a volume that does not exist",
		e.Groups.Activate(t.Context(), e.Group, []string{"cv9", "cv2"}), lvm.ErrNotFound)
	if _, err := e.Groups.Device(e.Group, "cv2"); err != nil {
		t.Errorf("the other volume was not activated: %v", err)
	}
}

func renamed(t *testing.T, e Env) {
	e.scan(t)
	e.create(t, "made-by-another", 2)
	e.create(t, "cv2", 1)
	h := must.Get(e.Groups.Open(e.Group, "made-by-another"))(t)
	must.Get(h.WriteAt([]byte("kkkk"), 4096))(t)
	must.Succeed(t, h.Sync())
	must.Succeed(t, h.Close())
	before := must.Get(e.Groups.Device(e.Group, "made-by-another"))(t)
	must.Succeed(t, e.Groups.Rename(t.Context(), e.Group, "made-by-another", "cv1"))
	g := e.scan(t)
	if g.Volume("cv1") == nil || g.Volume("made-by-another") != nil {
		t.Errorf("volumes %+v", g.Volumes)
	}
	after := must.Get(e.Groups.Device(e.Group, "cv1"))(t)
	if after.Number() != before.Number() || after.Path == before.Path {
		t.Errorf("device %+v, was %+v", after, before)
	}
	h = must.Get(e.Groups.Open(e.Group, "cv1"))(t)
	held := make([]byte, 4)
	must.Get(h.ReadAt(held, 4096))(t)
	if string(held) != "kkkk" {
		t.Errorf("it holds %q", held)
	}
	must.Succeed(t, h.Close())
	if _, err := e.Groups.Device(e.Group, "made-by-another"); !errors.Is(err, lvm.ErrNotFound) {
		t.Errorf("the former device: error %v", err)
	}
	wantErr(t, "Rename to a name that is taken", e.Groups.Rename(t.Context(), e.Group, "cv1", "cv2"), lvm.ErrExists)
	wantErr(t, "Rename of nothing", e.Groups.Rename(t.Context(), e.Group, "made-by-another", "cv3"), lvm.ErrNotFound)
}

func retagged(t *testing.T, e Env) {
	e.scan(t)
	e.create(t, "cv1", 1, "a", "b")
	for _, c := range []struct{ remove, add, want []string }{
		{[]string{"a", "never-there"}, []string{"c", "d=e"}, []string{"b", "c", "d=e"}},
		{[]string{"b", "c"}, []string{"c", "f"}, []string{"c", "d=e", "f"}},
	} {
		must.Succeed(t, e.Groups.Retag(t.Context(), e.Group, "cv1", c.remove, c.add))
		g := e.scan(t)
		if tags := slices.Sorted(slices.Values(g.Volume("cv1").Tags)); !slices.Equal(tags, c.want) {
			t.Errorf("%q were taken off, %q put on: tags %q, want %q", c.remove, c.add, tags, c.want)
		}
	}
	wantErr(t, "Retag", e.Groups.Retag(t.Context(), e.Group, "cv9", nil, []string{"a"}), lvm.ErrNotFound)
}
