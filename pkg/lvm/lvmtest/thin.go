package lvmtest

import (
	"errors"
	"slices"
	"testing"

	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/must"
)

var thinCases = []struct {
	name string
	test func(*testing.T, Env)
}{
	{"a thin pool takes its data and its metadata twice, and says how full it is", poolCreated},
	{"a thin volume has its virtual size, takes no extents and reads as zeroes", thinCreated},
	{"changes to thin volumes raise the sequence number by what is known", thinSteps},
	{"a snapshot holds what its origin held, and outlives it", snapshots},
	{"a discard gives a thin volume's chunks back, and leaves a snapshot what it has", thinDiscarded},
	{"a pool is extended, data and metadata", poolExtended},
	{"a full pool fails writes, gives no new volume, and recovers when volumes go", poolFull},
	{"tags are put on and taken off", tagged},
	{"thin volumes and pools get their devices back by activation", thinActivated},
}

const (
	poolExtents   = 6
	poolChunk     = 64 << 10
	poolName      = "pool"
	metadataBlock = 4096
)

func (e Env) pool(t *testing.T) lvm.Group {
	t.Helper()
	g := e.scan(t)
	err := e.Groups.CreatePool(t.Context(), lvm.PoolOptions{
		Group: e.Group, Pool: poolName, Extents: poolExtents, MetadataBytes: g.ExtentSize, ChunkSize: poolChunk,
	})
	if err != nil {
		t.Fatalf("CreatePool: %v", err)
	}
	return e.scan(t)
}

func (e Env) thin(t *testing.T, name string, extents int64, tags ...string) {
	t.Helper()
	g := e.scan(t)
	err := e.Groups.CreateThin(t.Context(), lvm.ThinOptions{
		Group: e.Group, Pool: poolName, Volume: name, Bytes: extents * g.ExtentSize, Tags: tags,
	})
	if err != nil {
		t.Fatalf("CreateThin %s: %v", name, err)
	}
}

func (e Env) status(t *testing.T) lvm.PoolStatus {
	t.Helper()
	s, err := e.Groups.PoolStatus(e.Group, poolName)
	if err != nil {
		t.Fatalf("PoolStatus: %v", err)
	}
	return s
}

func (e Env) fill(t *testing.T, name string, length int64, pattern byte) error {
	t.Helper()
	h, err := e.Groups.Open(e.Group, name)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, length)
	for i := range b {
		b[i] = pattern
	}
	_, err = h.WriteAt(b, 0)
	if err == nil {
		err = h.Sync()
	}
	return errors.Join(err, h.Close())
}

func (e Env) holds(t *testing.T, name string, off, length int64, pattern byte) {
	t.Helper()
	h, err := e.Groups.Open(e.Group, name)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, length)
	_, err = h.ReadAt(b, off)
	must.Succeed(t, errors.Join(err, h.Close()))
	for i, got := range b {
		if got != pattern {
			t.Errorf("%s: byte %d is %#x, want %#x", name, off+int64(i), got, pattern)
			return
		}
	}
}

func poolCreated(t *testing.T, e Env) {
	before := e.scan(t)
	g := e.pool(t)
	if got := before.Allocatable() - g.Allocatable(); got != poolExtents+2 {
		t.Errorf("the pool took %d extents, want %d", got, poolExtents+2)
	}
	p := g.Volume(poolName)
	if p == nil || p.Attr.Type != 't' || !p.Attr.ZeroNew || p.Size != poolExtents*g.ExtentSize || p.MetadataSize != g.ExtentSize || p.Pool != "" {
		t.Fatalf("pool %+v", p)
	}
	s := e.status(t)
	if s.DataUsed != 0 || s.DataTotal != p.Size/poolChunk || s.MetadataTotal != p.MetadataSize/metadataBlock ||
		s.MetadataUsed < 1 || s.Failed || s.ReadOnly || s.OutOfData || s.NeedsCheck || s.QueuesWhenFull {
		t.Errorf("status %+v", s)
	}
	_, err := e.Groups.PoolStatus(e.Group, "no-such-pool")
	wantErr(t, "PoolStatus", err, lvm.ErrNotFound)
}

func thinCreated(t *testing.T, e Env) {
	before := e.pool(t)
	e.thin(t, "cv1", 40, "carve", "carve.name=x")
	g := e.scan(t)
	v := g.Volume("cv1")
	if v == nil || v.Size != 40*g.ExtentSize || v.Pool != poolName || v.Attr.Type != 'V' || len(v.Tags) != 2 || v.Attr.Activation != lvm.Active {
		t.Fatalf("volume %+v", v)
	}
	if before.Allocatable() != g.Allocatable() {
		t.Errorf("it took %d extents", before.Allocatable()-g.Allocatable())
	}
	if d, err := e.Groups.Device(e.Group, "cv1"); err != nil || d.OpenCount != 0 {
		t.Errorf("device %+v, error %v", d, err)
	}
	e.holds(t, "cv1", 0, 1<<20, 0)
	must.Succeed(t, e.fill(t, "cv1", poolChunk, 0x5a))
	e.holds(t, "cv1", 0, poolChunk, 0x5a)
	e.holds(t, "cv1", poolChunk, poolChunk, 0)
	if s := e.status(t); s.DataUsed != 1 {
		t.Errorf("status %+v after one chunk was written", s)
	}
	err := e.Groups.CreateThin(t.Context(), lvm.ThinOptions{Group: e.Group, Pool: poolName, Volume: "cv1", Bytes: g.ExtentSize})
	wantErr(t, "the same name", err, lvm.ErrExists)
	err = e.Groups.CreateThin(t.Context(), lvm.ThinOptions{Group: e.Group, Pool: "no-such-pool", Volume: "cv2", Bytes: g.ExtentSize})
	wantErr(t, "no such pool", err, lvm.ErrNotFound)
	wantErr(t, "no such origin", e.Groups.Snapshot(t.Context(), lvm.SnapshotOptions{Group: e.Group, Origin: "cv9", Volume: "cs1"}), lvm.ErrNotFound)
}

func thinSteps(t *testing.T, e Env) {
	e.pool(t)
	want := e.scan(t).Seqno
	check := func(after string, steps uint64) {
		t.Helper()
		want += steps
		m, err := e.Groups.Metadata(e.Group)
		if err != nil || m.Seqno != want {
			t.Errorf("after %s: sequence number %d, want %d, error %v", after, m.Seqno, want, err)
			want = m.Seqno
		}
	}
	ctx := t.Context()
	e.thin(t, "cv1", 2, "carve")
	check("a create", lvm.ThinSteps)
	must.Succeed(t, e.Groups.Extend(ctx, e.Group, "cv1", 5))
	check("an extension", 1)
	must.Succeed(t, e.Groups.Snapshot(ctx, lvm.SnapshotOptions{Group: e.Group, Origin: "cv1", Volume: "cs1", Inactive: true}))
	check("a snapshot", lvm.ThinSteps)
	must.Succeed(t, e.Groups.Snapshot(ctx, lvm.SnapshotOptions{Group: e.Group, Origin: "cs1", Volume: "cv2"}))
	check("a snapshot of a snapshot", lvm.ThinSteps)
	must.Succeed(t, e.Groups.Remove(ctx, e.Group, []string{"cv1", "cs1", "cv2"}))
	check("the removal of three", 3*lvm.ThinSteps)
}

func snapshots(t *testing.T, e Env) {
	e.pool(t)
	ctx := t.Context()
	e.thin(t, "cv1", 4, "carve")
	must.Succeed(t, e.fill(t, "cv1", 2*poolChunk, 0x11))
	must.Succeed(t, e.Groups.Snapshot(ctx, lvm.SnapshotOptions{Group: e.Group, Origin: "cv1", Volume: "cs1", Tags: []string{"snap"}, Inactive: true}))
	must.Succeed(t, e.fill(t, "cv1", poolChunk, 0x22))
	g := e.scan(t)
	s := g.Volume("cs1")
	if s == nil || s.Pool != poolName || s.Origin != "cv1" || len(s.Tags) != 1 || s.Attr.Activation != lvm.Inactive || !s.Attr.SkipActivation {
		t.Fatalf("snapshot %+v", s)
	}
	_, err := e.Groups.Device(e.Group, "cs1")
	wantErr(t, "Device of an inactive snapshot", err, lvm.ErrNotFound)
	if got := e.status(t).DataUsed; got != 3 {
		t.Errorf("%d chunks are used, want 3", got)
	}
	must.Succeed(t, e.Groups.Remove(ctx, e.Group, []string{"cv1"}))
	must.Succeed(t, e.Groups.Snapshot(ctx, lvm.SnapshotOptions{Group: e.Group, Origin: "cs1", Volume: "cv2"}))
	g = e.scan(t)
	v := g.Volume("cv2")
	if v == nil || len(v.Tags) != 0 || v.Attr.SkipActivation || v.Attr.Activation != lvm.Active {
		t.Fatalf("volume %+v", v)
	}
	e.holds(t, "cv2", 0, 2*poolChunk, 0x11)
	must.Succeed(t, e.Groups.Remove(ctx, e.Group, []string{"cs1", "cv2"}))
	if got := e.status(t).DataUsed; got != 0 {
		t.Errorf("%d chunks are used by no volume", got)
	}
}

func thinDiscarded(t *testing.T, e Env) {
	g := e.pool(t)
	e.thin(t, "cv1", 4)
	must.Succeed(t, e.fill(t, "cv1", 2*poolChunk, 0x11))
	must.Succeed(t, e.Groups.Snapshot(t.Context(), lvm.SnapshotOptions{Group: e.Group, Origin: "cv1", Volume: "cv2"}))
	must.Succeed(t, e.fill(t, "cv1", poolChunk, 0x22))
	for _, c := range []struct{ off, length, left int64 }{
		{0, poolChunk, 2}, {poolChunk, 4*g.ExtentSize - poolChunk, 2},
	} {
		h := must.Get(e.Groups.Open(e.Group, "cv1"))(t)
		must.Succeed(t, errors.Join(h.Discard(c.off, c.length), h.Sync(), h.Close()))
		if got := e.status(t).DataUsed; got != c.left {
			t.Errorf("after a discard of %d bytes at %d, %d chunks are used, want %d", c.length, c.off, got, c.left)
		}
		e.holds(t, "cv1", c.off, poolChunk, 0)
	}
	e.holds(t, "cv2", 0, 2*poolChunk, 0x11)
}

func poolExtended(t *testing.T, e Env) {
	before := e.pool(t)
	e.thin(t, "cv1", 2)
	must.Succeed(t, e.Groups.ExtendPool(t.Context(), e.Group, poolName, poolExtents+2))
	must.Succeed(t, e.Groups.ExtendPoolMetadata(t.Context(), e.Group, poolName, 2*before.ExtentSize))
	g := e.scan(t)
	if p := g.Volume(poolName); p.Size != (poolExtents+2)*g.ExtentSize || p.MetadataSize != 2*g.ExtentSize {
		t.Errorf("pool %+v", p)
	}
	// The spare grows with the metadata, at once or when LVM next needs it.
	if took := before.Allocatable() - g.Allocatable(); took != 3 && took != 4 {
		t.Errorf("%d extents were taken, want 3 or 4", took)
	}
	if s := e.status(t); s.DataTotal != (poolExtents+2)*g.ExtentSize/poolChunk || s.MetadataTotal != 2*g.ExtentSize/metadataBlock {
		t.Errorf("status %+v", s)
	}
	err := e.Groups.ExtendPool(t.Context(), e.Group, poolName, poolExtents+2+g.Allocatable()+1)
	wantErr(t, "more than there is", err, lvm.ErrNoSpace)
}

func poolFull(t *testing.T, e Env) {
	g := e.pool(t)
	e.thin(t, "cv1", poolExtents+2)
	if err := e.fill(t, "cv1", (poolExtents+1)*g.ExtentSize, 0x33); err == nil {
		t.Error("more was written than the pool has")
	}
	s := e.status(t)
	if s.DataUsed != s.DataTotal || !s.OutOfData {
		t.Errorf("status %+v", s)
	}
	err := e.Groups.CreateThin(t.Context(), lvm.ThinOptions{Group: e.Group, Pool: poolName, Volume: "cv2", Bytes: g.ExtentSize})
	wantErr(t, "CreateThin", err, lvm.ErrNoSpace)
	err = e.Groups.Snapshot(t.Context(), lvm.SnapshotOptions{Group: e.Group, Origin: "cv1", Volume: "cs1"})
	wantErr(t, "Snapshot", err, lvm.ErrNoSpace)
	must.Succeed(t, e.Groups.Remove(t.Context(), e.Group, []string{"cv1"}))
	if s := e.status(t); s.DataUsed != 0 || s.OutOfData {
		t.Errorf("status %+v", s)
	}
	e.thin(t, "cv2", 1)
	e.holds(t, "cv2", 0, g.ExtentSize, 0)
	must.Succeed(t, e.fill(t, "cv2", poolChunk/2, 0x44))
	// The rest of a chunk that is new to the volume is zeroed, too.
	e.holds(t, "cv2", poolChunk/2, poolChunk/2, 0)
}

func thinActivated(t *testing.T, e Env) {
	e.pool(t)
	e.thin(t, "cv1", 1)
	must.Succeed(t, e.fill(t, "cv1", poolChunk, 0x66))
	must.Succeed(t, e.Groups.Snapshot(t.Context(), lvm.SnapshotOptions{Group: e.Group, Origin: "cv1", Volume: "cs1", Inactive: true}))
	e.Deactivate()
	_, err := e.Groups.PoolStatus(e.Group, poolName)
	wantErr(t, "PoolStatus of an inactive pool", err, lvm.ErrNotFound)
	e.scan(t)
	for range 2 {
		must.Succeed(t, e.Groups.Activate(t.Context(), e.Group, []string{poolName, "cv1"}))
		e.status(t)
		e.holds(t, "cv1", 0, poolChunk, 0x66)
		_, err = e.Groups.Device(e.Group, "cs1")
		wantErr(t, "Device of an inactive snapshot", err, lvm.ErrNotFound)
	}
}

func tagged(t *testing.T, e Env) {
	before := e.scan(t).Seqno
	e.create(t, "cv1", 1, "carve", "carve.copying", "carve.provisional")
	e.create(t, "cv2", 1, "carve.copying", "carve.provisional", "carve")
	must.Succeed(t, e.Groups.Untag(t.Context(), e.Group, []string{"cv1", "cv2"}, "carve.copying", "carve.provisional"))
	g := e.scan(t)
	for _, name := range []string{"cv1", "cv2"} {
		if v := g.Volume(name); len(v.Tags) != 1 || v.Tags[0] != "carve" || g.Seqno != before+4 {
			t.Errorf("volume %+v, sequence number %d, was %d", v, g.Seqno, before)
		}
	}
	before = g.Seqno
	must.Succeed(t, e.Groups.Tag(t.Context(), e.Group, []string{"cv1", "cv2"}, "carve.deleted"))
	g = e.scan(t)
	for _, name := range []string{"cv1", "cv2"} {
		if tags := g.Volume(name).Tags; !slices.Contains(tags, "carve") || !slices.Contains(tags, "carve.deleted") || len(tags) != 2 {
			t.Errorf("the tags of %s are %v, want carve and carve.deleted", name, tags)
		}
	}
	if g.Seqno != before+2 {
		t.Errorf("two volumes were tagged; the sequence number is %d, was %d", g.Seqno, before)
	}
	wantErr(t, "Tag", e.Groups.Tag(t.Context(), e.Group, []string{"cv9"}, "carve.deleted"), lvm.ErrNotFound)
	wantErr(t, "Untag", e.Groups.Untag(t.Context(), e.Group, []string{"cv9"}, "carve.copying"), lvm.ErrNotFound)
}
