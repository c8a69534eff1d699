package reclaim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carve-csi/carve/api/config"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/luks"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/layout"
	"github.com/carve-csi/carve/pkg/lvm/lvmfake"
	"github.com/carve-csi/carve/pkg/lvmd/inventory"
	"github.com/carve-csi/carve/pkg/lvmd/journal"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
	"github.com/carve-csi/carve/pkg/lvmd/volumegroup"
	"github.com/carve-csi/carve/pkg/lvmd/zeroed"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

const (
	extent = 4 << 20
	// size is that of each volume, in extents: one and a quarter chunks.
	size = 20
)

// id supports 26*26 volumes.
func id(n int) string {
	return fmt.Sprintf("cv%s%c%c", strings.Repeat("a", 24), 'a'+n/26, 'a'+n%26)
}

// recorder is a fake LVM that records operations on volumes, in order.
type recorder struct {
	*lvmfake.Groups
	mu  sync.Mutex
	did []string
	// refuse may fail an operation, by its name in did. It, longer and bare are set before use.
	refuse func(what string) error
	// shorter is subtracted from the size of devices at opening.
	shorter, opens, closes atomic.Int64
	// longer adds an extent to the segments of volumes, after their devices were opened.
	longer bool
	// bare is the volume whose device has no table.
	bare string
}

func (r *recorder) note(what string, args ...any) error {
	r.mu.Lock()
	r.did = append(r.did, fmt.Sprintf(what, args...))
	r.mu.Unlock()
	if r.refuse == nil {
		return nil
	}
	word, _, _ := strings.Cut(what, " ")
	return r.refuse(word)
}

func (r *recorder) notes() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.did)
}

func (r *recorder) Tag(ctx context.Context, group string, volumes []string, tag string) error {
	if err := r.note("tag %d %s", len(volumes), tag); err != nil {
		return err
	}
	return r.Groups.Tag(ctx, group, volumes, tag)
}

func (r *recorder) Remove(ctx context.Context, group string, volumes []string) error {
	if err := r.note("remove %d", len(volumes)); err != nil {
		return err
	}
	return r.Groups.Remove(ctx, group, volumes)
}

func (r *recorder) Open(group, volume string) (blockdev.Handle, error) {
	h, err := r.Groups.Open(group, volume)
	if err != nil {
		return nil, err
	}
	r.opens.Add(1)
	return &handle{h, r, h.Size() - r.shorter.Load()}, nil
}

func (r *recorder) Mapping(group, volume string) ([]lvm.Segment, error) {
	segments, err := r.Groups.Mapping(group, volume)
	if volume == r.bare {
		return nil, nil
	}
	if r.longer && err == nil {
		more := segments[len(segments)-1]
		more.Areas = slices.Clone(more.Areas)
		more.Offset += extent
		more.Areas[0].Start += extent
		segments = append(segments, more)
	}
	return segments, err
}

type handle struct {
	blockdev.Handle
	*recorder
	// As in the kernel, size is the device's at opening.
	size int64
}

func (h *handle) Size() int64 { return h.size }

func (h *handle) Zero(off, length int64) error {
	if err := h.note("zero %d+%d", off>>20, length>>20); err != nil {
		return err
	}
	return h.Handle.Zero(off, length)
}

func (h *handle) Overwrite(off, length int64) error {
	if err := h.note("overwrite %d+%d", off>>20, length>>20); err != nil {
		return err
	}
	return h.Handle.Overwrite(off, length)
}

func (h *handle) Discard(off, length int64) error {
	if err := h.note("discard %d+%d", off>>20, length>>20); err != nil {
		return err
	}
	return h.Handle.Discard(off, length)
}

func (h *handle) Sync() error {
	if err := h.note("sync"); err != nil {
		return err
	}
	return h.Handle.Sync()
}

func (h *handle) Close() error {
	h.closes.Add(1)
	return h.Handle.Close()
}

// node is a machine with a group, carve, with volumes of one class, and a journal. It outlives
// lvmd's process runs.
type node struct {
	t          *testing.T
	lvm        *recorder
	class      string
	journal    *journal.Journal
	checkpoint int64
	slowAfter  time.Duration
	skipAfter  int
	groups     *volumegroup.Groups
}

// newNode creates volumes with the tags of the identity and the given ones.
func newNode(t *testing.T, volumes int, encryption string, tags ...string) *node {
	t.Helper()
	return newNodeOf(t, []int64{int64(volumes) * size}, volumes, encryption, tags...)
}

// newNodeOf is newNode for disks of the given numbers of extents.
func newNodeOf(t *testing.T, disks []int64, volumes int, encryption string, tags ...string) *node {
	t.Helper()
	n := &node{t: t, lvm: &recorder{Groups: lvmfake.New()}}
	n.lvm.AddGroupOf("carve", extent, disks...)
	for i := range volumes {
		ident := spec.Identity{Name: id(i), Class: "local", Block: true, Size: spec.Size{Required: size * extent}, Encryption: encryption}
		must.Succeed(t, n.lvm.Create(t.Context(), lvm.CreateOptions{
			Group: "carve", Volume: id(i), Layout: layout.Layout{Type: layout.Linear}, Extents: size, Tags: append(ident.Tags(), tags...),
		}))
	}
	j, _, _, err := journal.Open(filepath.Join(t.TempDir(), "journal"))
	must.Succeed(t, err)
	n.journal = j
	t.Cleanup(func() { must.Succeed(t, j.Close()) })
	return n
}

// start begins a process run, in which it deletes the volumes that are not deleted yet. It ends
// with the test, or when stop is called.
func (n *node) start(crash func(m *inventory.Inventory, point string)) (m *inventory.Inventory, stop func()) {
	n.t.Helper()
	content := "apiVersion: carve.csi.local/v1\nkind: LvmdConfig\ndeviceClasses:\n- {name: local, default: true, volumeGroup: carve" + n.class + "}\n"
	c := must.Get(config.Parse("lvmd.yaml", []byte(content)))(n.t)
	log := slog.New(slog.DiscardHandler)
	m = inventory.NewInventory("run", inventory.Options{Log: log})
	work, cancel := context.WithCancel(context.Background())
	var background sync.WaitGroup
	groups := volumegroup.New(volumegroup.Options{
		LVM: n.lvm, Journal: n.journal, Inventory: m, Log: log, StateDir: n.t.TempDir(), Work: work,
		Probe:   func(string) (filesystem.Info, error) { return filesystem.Info{}, filesystem.ErrUnformatted },
		Inspect: func(string, string) (luks.State, error) { return luks.Made, nil },
		Spawn:   func(do func()) { background.Go(do) }, Resume: func(inventory.Admission) {},
		Responding: func(bool) {}, Scanned: func() {},
	})
	n.groups = groups
	listed := must.Get(groups.Configure(c, nil))(n.t)
	g := groups.Named("carve")
	records := must.Get(n.journal.Volumes())(n.t)
	m.Recall(records, nil)
	must.Succeed(n.t, groups.Load(must.Get(groups.Scan(n.t.Context(), listed))(n.t)))
	r := New(Options{LVM: n.lvm, Journal: n.journal, Inventory: m, Groups: groups, Log: log, Crash: func(point string) { crash(m, point) }, Checkpoint: n.checkpoint, SlowAfter: n.slowAfter, SkipAfter: n.skipAfter})
	for name, v := range m.Inspect() {
		if v.Record.Phase != spec.Deleting {
			claimed := must.Get(m.ClaimForDeletion(inventory.ToDelete{ID: name}))(n.t)
			record := claimed.Record()
			record.Phase = spec.Deleting
			must.Succeed(n.t, n.journal.PutVolume(record))
			claimed.MarkDeleted(nil)
		}
	}
	background.Go(func() { r.WipeLoop(work, g) })
	background.Go(func() { r.RemoveLoop(work, g) })
	g.Reclaim()
	stop = sync.OnceFunc(func() {
		cancel()
		background.Wait()
		n.lvm.CloseAll()
	})
	n.t.Cleanup(stop)
	return m, stop
}

func (n *node) scan() {
	n.t.Helper()
	g := n.groups.Named("carve")
	done := must.Get(n.groups.Acquire(n.t.Context(), g))(n.t)
	defer done()
	must.Succeed(n.t, n.groups.Rescan(g))
}

func (n *node) reclaimed(m *inventory.Inventory) {
	n.t.Helper()
	waittest.Until(n.t, "nothing is left of the volumes", func() bool {
		records, err := n.journal.Volumes()
		return err == nil && len(records) == 0 && len(m.Inspect()) == 0
	}, func() any { return n.lvm.notes() })
	found := must.Get(n.lvm.Scan(n.t.Context(), []string{"carve"}))(n.t)
	if left := found[0].Volumes; len(left) > 0 {
		n.t.Errorf("LVM has %+v", left)
	}
}

// failing fails the first times operations of the name.
func failing(what string, times int32) func(string) error {
	var failed atomic.Int32
	return func(does string) error {
		if does == what && failed.Add(1) <= times {
			return errors.New("broken")
		}
		return nil
	}
}

func TestADeletedVolumeIsMarkedWipedDurablyAndThenRemoved(t *testing.T) {
	for name, test := range map[string]struct {
		class      string
		encryption string
		tags       []string
		fails      bool
		want       []string
	}{
		"one of a class without more":           {want: []string{"tag 1 carve.deleted", "zero 0+64", "zero 64+16", "sync", "remove 1"}},
		"one that was marked by an earlier run": {tags: []string{spec.TagDeleted}, want: []string{"zero 0+64", "zero 64+16", "sync", "remove 1"}},
		"one of which a write fails": {fails: true,
			want: []string{"tag 1 carve.deleted", "zero 0+64", "zero 0+64", "zero 64+16", "sync", "remove 1"}},
		"one that is to be overwritten": {class: ", wipe: zero", want: []string{"tag 1 carve.deleted", "overwrite 0+64", "overwrite 64+16", "sync", "remove 1"}},
		"one that is to be discarded":   {class: ", wipe: discard", want: []string{"tag 1 carve.deleted", "discard 0+64", "discard 64+16", "sync", "remove 1"}},
		"one that is not to be wiped":   {class: ", wipe: none", want: []string{"tag 1 carve.deleted", "sync", "remove 1"}},
		"one whose user had the key loses its header in any case": {class: ", wipe: none", encryption: names.EncryptionLUKS,
			want: []string{"tag 1 carve.deleted", "overwrite 0+16", "sync", "sync", "remove 1"}},
		"and it loses its header once": {encryption: names.EncryptionLUKS,
			want: []string{"tag 1 carve.deleted", "overwrite 0+16", "sync", "zero 0+64", "zero 64+16", "sync", "remove 1"}},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, 1, test.encryption, test.tags...)
			n.class = test.class
			if test.fails {
				n.lvm.refuse = failing("zero", 1)
			}
			m, stop := n.start(func(*inventory.Inventory, string) {})
			n.reclaimed(m)
			stop()
			if got := n.lvm.notes(); !slices.Equal(got, test.want) {
				t.Errorf("done was %q, want %q", got, test.want)
			}
		})
	}
}

func TestOneCommandMarksOrRemovesManyVolumesButNotMoreThanItMay(t *testing.T) {
	const volumes = MaxRemoved + 4
	n := newNode(t, volumes, "")
	n.class = ", wipe: none"
	var first sync.Once
	m, _ := n.start(func(m *inventory.Inventory, point string) {
		if point == "delete: removed" {
			first.Do(func() { gather(m) })
		}
	})
	n.reclaimed(m)
	marks, removals := 0, 0
	for _, did := range n.lvm.notes() {
		var count int
		if _, err := fmt.Sscanf(did, "tag %d", &count); err == nil {
			marks++
			if count > maxMarked {
				t.Errorf("%d volumes were marked by one command", count)
			}
		}
		if _, err := fmt.Sscanf(did, "remove %d", &count); err == nil {
			removals++
			if count > MaxRemoved {
				t.Errorf("%d volumes were removed by one command", count)
			}
		}
	}
	if marks != 2 || removals > 3 {
		t.Errorf("%d commands marked and %d removed %d volumes", marks, removals, volumes)
	}
}

// gather waits, for a bounded time, until all remaining volumes are wiped.
func gather(m *inventory.Inventory) {
	wiped := func() bool {
		for _, v := range m.Inspect() {
			if v.State != inventory.Wiped {
				return false
			}
		}
		return true
	}
	for deadline := time.Now().Add(waittest.Limit); !wiped() && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
}

func TestWipingGoesOnWhereTheLastCheckpointWas(t *testing.T) {
	for name, test := range map[string]struct {
		checkpoint int64
		wiped      int64
		next       string
	}{
		"after each chunk": {checkpoint: WipeChunk, wiped: WipeChunk, next: "zero 64+16"},
		"as usual":         {next: "zero 0+64"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, 1, "")
			n.checkpoint = test.checkpoint
			var broken atomic.Bool
			n.lvm.refuse = func(does string) error {
				if broken.Load() && does == "zero" {
					return errors.New("broken")
				}
				return nil
			}
			_, stop := n.start(func(_ *inventory.Inventory, point string) {
				if point == "delete: chunk wiped" {
					broken.Store(true)
				}
			})
			waittest.Until(t, "the second chunk cannot be wiped", func() bool { return slices.Contains(n.lvm.notes(), "zero 64+16") })
			stop()
			if got := must.Get(n.journal.Volumes())(t)[id(0)].Wiped; got != test.wiped {
				t.Errorf("the journal has that %d bytes are wiped, want %d", got, test.wiped)
			}
			broken.Store(false)
			before := len(n.lvm.notes())
			m, _ := n.start(func(*inventory.Inventory, string) {})
			n.reclaimed(m)
			if did := n.lvm.notes()[before:]; did[0] != test.next {
				t.Errorf("the next run did %q, want %q first", did, test.next)
			}
		})
	}
}

// A device may be shorter than its volume after a killed lvextend, until it is repaired.
func TestADeviceThatIsShorterThanItsVolumeIsNotWipedBeforeItIsRepaired(t *testing.T) {
	for encryption, header := range map[string][]string{"": nil, names.EncryptionLUKS: {"overwrite 0+16", "sync"}} {
		n := newNode(t, 1, encryption)
		n.lvm.shorter.Store(extent)
		m, stop := n.start(func(*inventory.Inventory, string) {})
		waittest.Until(t, "the device is opened again", func() bool { return n.lvm.opens.Load() > 1 || len(m.Inspect()) == 0 })
		early := n.lvm.notes()
		n.lvm.shorter.Store(0)
		n.reclaimed(m)
		stop()
		want := slices.Concat([]string{"tag 1 carve.deleted"}, header, []string{"zero 0+64", "zero 64+16", "sync", "remove 1"})
		if got := n.lvm.notes(); !slices.Equal(early, want[:1]) || !slices.Equal(got, want) {
			t.Errorf("encryption %q: done was %q, then %q, want %q, then %q", encryption, early, got, want[:1], want)
		}
		if zeroed := n.zeroed(); zeroed != size*extent {
			t.Errorf("encryption %q: %d bytes are known to be zero, want all of the volume", encryption, zeroed)
		}
	}
}

func TestWhatAVolumeGotAfterItsLastChunkWasWipedIsNotTakenForZero(t *testing.T) {
	n := newNodeOf(t, []int64{size + 1}, 1, "")
	n.lvm.longer = true
	m, stop := n.start(func(*inventory.Inventory, string) {})
	n.reclaimed(m)
	stop()
	if zeroed := n.zeroed(); zeroed != 0 {
		t.Errorf("%d bytes are known to be zero, and the volume had more than was wiped", zeroed)
	}
}

// zeroed returns the number of zeroed bytes in the journal.
func (n *node) zeroed() (bytes int64) {
	n.t.Helper()
	for _, edges := range must.Get(n.journal.Groups())(n.t)["carve"].Zeroed {
		for i := 0; i < len(edges); i += 2 {
			bytes += edges[i+1] - edges[i]
		}
	}
	return bytes
}

// A broken device stays broken for long: retry less and less often.
func TestWhatFailsIsTriedAgainLaterAndLater(t *testing.T) {
	for _, what := range []string{"tag", "zero", "sync", "remove"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, 1, "")
			fail := failing(what, 2)
			var mu sync.Mutex
			var tried []time.Time
			n.lvm.refuse = func(does string) error {
				err := fail(does)
				mu.Lock()
				defer mu.Unlock()
				if does == what && len(tried) < 3 {
					tried = append(tried, time.Now())
				}
				return err
			}
			m, stop := n.start(func(*inventory.Inventory, string) {})
			n.reclaimed(m)
			stop()
			if first, second := tried[1].Sub(tried[0]), tried[2].Sub(tried[1]); first < 250*time.Millisecond || second < 500*time.Millisecond {
				t.Errorf("it was tried again after %v and %v, want 250 ms and then twice as long, or later", first, second)
			}
		})
	}
}

// refusesAt makes the disk refuse writes to a byte of any volume.
func refusesAt(bad int64) func(string, string, int64, int64) error {
	return func(_, _ string, off, length int64) error {
		if off <= bad && bad < off+length {
			return fmt.Errorf("zero: %w", unix.EIO)
		}
		return nil
	}
}

func TestWipeSkipsASectorThatTakesNoWrite(t *testing.T) {
	t.Parallel()
	n := newNode(t, 1, "")
	n.skipAfter = 2
	const bad = 5<<20 + 4096
	refuses := refusesAt(bad)
	var mu sync.Mutex
	wiped := zeroed.Set{}
	n.lvm.BeforeZero = func(group, volume string, off, length int64) error {
		err := refuses(group, volume, off, length)
		if err == nil {
			mu.Lock()
			defer mu.Unlock()
			wiped = wiped.Plus(zeroed.Span{From: off, To: off + length})
		}
		return err
	}
	m, stop := n.start(func(*inventory.Inventory, string) {})
	n.reclaimed(m)
	known, _ := n.groups.Named("carve").Remember()
	stop()
	want := zeroed.Set{{From: 0, To: 5 << 20}, {From: 5<<20 + skipUnit, To: size * extent}}
	if !slices.Equal(wiped, want) {
		t.Errorf("wiped was %v, want %v", wiped, want)
	}
	if len(known.Zeroed) > 0 {
		t.Errorf("free space is taken for zeroes: %v", known.Zeroed)
	}
}

func TestWipeWaitsForADiskThatTakesNoWriteAtAll(t *testing.T) {
	t.Parallel()
	n := newNode(t, 1, "")
	n.skipAfter = 1
	var tried atomic.Int64
	var works atomic.Bool
	n.lvm.BeforeZero = func(_, _ string, off, _ int64) error {
		if works.Load() {
			return nil
		}
		if off == 0 {
			tried.Add(1)
		}
		return unix.ENODATA
	}
	m, stop := n.start(func(*inventory.Inventory, string) {})
	waittest.Until(t, "the wipe was tried in small parts", func() bool { return tried.Load() > 3 })
	time.Sleep(100 * time.Millisecond)
	if left := m.Inspect(); len(left) != 1 {
		t.Errorf("%d volumes are left, want 1", len(left))
	}
	works.Store(true)
	n.reclaimed(m)
	known, _ := n.groups.Named("carve").Remember()
	stop()
	if len(known.Zeroed) == 0 {
		t.Error("the free space is not known to be zero")
	}
}
