package volumegroup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carve-csi/carve/api/conditions"
	"github.com/carve-csi/carve/api/config"
	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/luks"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/layout"
	"github.com/carve-csi/carve/pkg/lvm/lvmfake"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
	"github.com/carve-csi/carve/pkg/lvmd/fairqueue"
	"github.com/carve-csi/carve/pkg/lvmd/inventory"
	"github.com/carve-csi/carve/pkg/lvmd/journal"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

const (
	extent = 4 << 20
	ours   = "cvaaaaaaaaaaaaaaaaaaaaaaaaaa"
	first  = "first0-0000-0000-0000-0000-0000-000000"
	other  = "other0-0000-0000-0000-0000-0000-000000"
)

// fixture has the group carve of ten extents on a fake LVM.
type fixture struct {
	*Groups
	t   *testing.T
	lvm *lvmfake.Groups
	g   *Group
	// found is the answer of Probe.
	found filesystem.Info

	mu         sync.Mutex
	responding []bool
}

// newFixture creates volumes of two extents, by name with their tags.
func newFixture(t *testing.T, volumes map[string][]string) *fixture {
	t.Helper()
	f := &fixture{t: t, lvm: lvmfake.New()}
	f.lvm.AddGroup("carve", extent, 10)
	f.lvm.SetGroupUUID("carve", first)
	for _, name := range slices.Sorted(maps.Keys(volumes)) {
		f.create(name, volumes[name]...)
	}
	return f
}

func (f *fixture) create(name string, tags ...string) {
	f.t.Helper()
	must.Succeed(f.t, f.lvm.Create(f.t.Context(), lvm.CreateOptions{
		Group: "carve", Volume: name, Layout: layout.Layout{Type: layout.Linear}, Extents: 2, Tags: tags,
	}))
}

// start runs lvmd's start, with uuids as the configured volumeGroupUUIDs.
func (f *fixture) start(uuids ...string) {
	f.t.Helper()
	content := "apiVersion: carve.csi.local/v1\nkind: LvmdConfig\ndeviceClasses:\n- {name: local, default: true, volumeGroup: carve"
	if len(uuids) > 0 {
		content += ", volumeGroupUUIDs: [" + strings.Join(uuids, ", ") + "]"
	}
	c := must.Get(config.Parse("lvmd.yaml", []byte(content+"}\n")))(f.t)
	dir, log := f.t.TempDir(), slog.New(slog.DiscardHandler)
	j, _, _, err := journal.Open(filepath.Join(dir, "journal"))
	must.Succeed(f.t, err)
	work, cancel := context.WithCancel(context.Background())
	var background sync.WaitGroup
	f.t.Cleanup(func() {
		cancel()
		background.Wait()
		must.Succeed(f.t, j.Close())
	})
	f.Groups = New(Options{
		LVM: f.lvm, Journal: j, Inventory: inventory.NewInventory("run", inventory.Options{Log: log}), Log: log, StateDir: dir, Work: work,
		Probe: func(string) (filesystem.Info, error) {
			if f.found.Type == "" {
				return f.found, filesystem.ErrUnformatted
			}
			return f.found, nil
		},
		Inspect: func(string, string) (luks.State, error) { return luks.Blank, nil },
		Spawn:   func(do func()) { background.Go(do) },
		Resume:  func(inventory.Admission) {},
		Responding: func(all bool) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.responding = append(f.responding, all)
		},
		Scanned: func() {}, ProbeInterval: time.Millisecond, PollInterval: time.Hour,
	})
	names := must.Get(f.Configure(c, nil))(f.t)
	f.g = f.Named("carve")
	must.Succeed(f.t, f.Load(must.Get(f.Scan(f.t.Context(), names))(f.t)))
}

// named returns the tags of a raw volume of ours.
func named(name string) []string {
	return spec.Identity{Name: name, Class: "local", Block: true, Size: spec.Size{Required: 2 * extent}}.Tags()
}

// wantTrue checks that the inventory equals the disks.
func (f *fixture) wantTrue() {
	f.t.Helper()
	found := must.Get(f.lvm.Scan(f.t.Context(), []string{"carve"}))(f.t)
	must.Succeed(f.t, f.g.Compare(&found[0]))
}

func TestAfterAChangeTheInventoryIsTrueAndScannedOnlyWhereItMustBe(t *testing.T) {
	failed := errors.New("lvchange failed")
	for name, test := range map[string]struct {
		meanwhile func(*fixture)
		effect    inventory.Effect
		err       error
		scans     int
	}{
		"the command alone":                           {effect: inventory.Tagged(), scans: 0},
		"a command of which a scan shows what it did": {effect: inventory.Unknown(), scans: 1},
		"another program changes the group":           {meanwhile: func(f *fixture) { f.create("theirs") }, effect: inventory.Tagged(), scans: 1},
		"the command fails":                           {err: failed, scans: 1},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, map[string][]string{ours: named("a")})
			f.start()
			scans := f.lvm.Commands(lvmfake.OpScan)
			err := f.Change(t.Context(), f.g, func(ctx context.Context) (inventory.Effect, error) {
				if test.meanwhile != nil {
					test.meanwhile(f)
				}
				must.Succeed(t, f.lvm.Tag(ctx, "carve", []string{ours}, "tag"))
				return test.effect, test.err
			})
			if !errors.Is(err, test.err) {
				t.Errorf("got %v, want %v", err, test.err)
			}
			if n := f.lvm.Commands(lvmfake.OpScan) - scans; n != test.scans {
				t.Errorf("%d scans, want %d", n, test.scans)
			}
			f.wantTrue()
		})
	}
}

func TestOneChangeAtATimeAndOnceItRunsItRunsToItsEnd(t *testing.T) {
	f := newFixture(t, map[string][]string{ours: named("a")})
	f.start()
	ctx, leave := context.WithCancel(t.Context())
	begun, end, first := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		first <- f.Change(ctx, f.g, func(work context.Context) (inventory.Effect, error) {
			close(begun)
			<-end
			return inventory.Tagged(), errors.Join(work.Err(), f.lvm.Tag(work, "carve", []string{ours}, "tag"))
		})
	}()
	<-begun
	leave()
	waiting, give := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer give()
	if err := f.Change(waiting, f.g, func(context.Context) (inventory.Effect, error) {
		t.Error("a second command runs beside the first")
		return inventory.Tagged(), nil
	}); err == nil {
		t.Error("a change ended without its command")
	}
	close(end)
	if err := <-first; err != nil {
		t.Errorf("its caller left, and the command got %v", err)
	}
	f.wantTrue()
}

func TestAGroupForWhichACommandTimedOutIsUsedAgainWhenAScanSucceeds(t *testing.T) {
	f := newFixture(t, map[string][]string{ours: named("a")})
	var mu sync.Mutex
	hangs := false
	hang := func(on bool) {
		mu.Lock()
		defer mu.Unlock()
		hangs = on
	}
	f.lvm.Before = func(context.Context, lvmfake.Op, string) error {
		mu.Lock()
		defer mu.Unlock()
		if hangs {
			return lvm.ErrTimedOut
		}
		return nil
	}
	f.start()
	tag := func(ctx context.Context) (inventory.Effect, error) {
		return inventory.Tagged(), f.lvm.Tag(ctx, "carve", []string{ours}, "tag")
	}
	hang(true)
	if err := f.Change(t.Context(), f.g, tag); !errors.Is(err, lvm.ErrTimedOut) {
		t.Fatalf("got %v", err)
	}
	if err := f.Change(t.Context(), f.g, func(context.Context) (inventory.Effect, error) {
		t.Error("a command runs in a group that does not respond")
		return nil, nil
	}); err == nil {
		t.Error("a group that does not respond was changed")
	}
	hang(false)
	waittest.Succeeds(t, "the group is changed", func() error { return f.Change(t.Context(), f.g, tag) })
	// Changes succeed a moment before that is reported.
	waittest.Until(t, "false, then true is reported", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return slices.Equal(f.responding, []bool{false, true})
	})
}

func TestAnotherGroupOfTheNameIsTakenOnlyWhereItMayBe(t *testing.T) {
	for name, test := range map[string]struct {
		volumes map[string][]string
		listed  []string
		accept  bool
		taken   bool
	}{
		"none is lost, but lvmd runs":             {},
		"volumes could be lost":                   {volumes: map[string][]string{ours: named("a")}},
		"an administrator accepts it":             {volumes: map[string][]string{ours: named("a")}, accept: true, taken: true},
		"the configuration lists it, too":         {volumes: map[string][]string{ours: named("a")}, listed: []string{first, other}, taken: true},
		"the configuration lists the first alone": {listed: []string{first}},
		"nor does an administrator overrule that": {listed: []string{first}, accept: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, test.volumes)
			f.start(test.listed...)
			f.lvm.PlugGroup("carve", false)
			f.lvm.AddGroup("carve", extent, 10)
			f.lvm.SetGroupUUID("carve", other)
			accept := filepath.Join(f.StateDir, "accept-volume-group-"+other)
			if test.accept {
				must.Succeed(t, os.WriteFile(accept, nil, 0o600))
			}
			must.Succeed(t, f.Rescan(f.g))
			pinned := lvm.Identity(must.Get(f.Journal.Identities())(t)["carve"])
			if taken := pinned.UUID == other; taken != test.taken || !f.g.Known().Pinned.Equal(pinned) {
				t.Errorf("the journal has the group %q, the inventory %q", pinned, f.g.Known().Pinned)
			}
			refusal := f.Refusal(f.g).Message
			if test.taken != (refusal == "") || !test.taken && !strings.Contains(refusal, "touch "+accept) {
				t.Errorf("the refusal is %q", refusal)
			}
			if _, err := os.Stat(accept); test.taken && !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the file that accepts it is left: %v", err)
			}
		})
	}
}

func TestTheGroupIsNotTakenOnDisksOfWhichNoneIsItsOwn(t *testing.T) {
	volumes := map[string][]string{ours: named("a")}
	for name, test := range map[string]struct {
		volumes map[string][]string
		listed  []string
		accept  bool
		earlier bool
		taken   bool
	}{
		"volumes could be lost":             {volumes: volumes},
		"the configuration lists the group": {volumes: volumes, listed: []string{first}},
		"an administrator accepts it":       {volumes: volumes, accept: true, taken: true},
		"both":                              {volumes: volumes, listed: []string{first}, accept: true, taken: true},
		"none is lost, but lvmd runs":       {},
		"an earlier version kept no disks":  {volumes: volumes, earlier: true, taken: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, test.volumes)
			f.start(test.listed...)
			if got := f.identity().Devices; !slices.Equal(got, []string{"fake-pv-carve"}) {
				t.Fatalf("the group is known by %q", got)
			}
			if test.earlier {
				f.lvm.Pin("carve", lvm.Identity{UUID: first})
			}
			f.lvm.ReplaceDevice("carve", "fake-pv-carve", "forged")
			accept := filepath.Join(f.StateDir, "accept-volume-group-"+first)
			if test.accept {
				must.Succeed(t, os.WriteFile(accept, nil, 0o600))
			}
			must.Succeed(t, f.Rescan(f.g))
			want := "fake-pv-carve"
			if test.taken {
				want = "forged"
			}
			if got := f.identity(); !slices.Equal(got.Devices, []string{want}) || got.UUID != first || !f.g.Known().Pinned.Equal(got) {
				t.Errorf("the journal has %v, the inventory %v, want %s", got, f.g.Known().Pinned, want)
			}
			refused := f.Refusal(f.g)
			refusal := refused.Message
			if test.taken != (refusal == "") || !test.taken && (!strings.Contains(refusal, "touch "+accept) || !strings.Contains(refusal, "/dev/fake-carve")) {
				t.Errorf("the refusal is %q", refusal)
			}
			// Conditions are visible in Events.
			if strings.Contains(refusal, "fake-pv-") || !test.taken && refused.Devices != "fake-pv-carve" {
				t.Errorf("the refusal is %+v, want the UUID of the group's disk for the log alone", refused)
			}
			if got := len(must.Get(f.Journal.Volumes())(t)); got != len(test.volumes) {
				t.Errorf("the journal has %d volumes, want %d", got, len(test.volumes))
			}
			if _, err := os.Stat(accept); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the file that accepts it is left: %v", err)
			}
		})
	}
}

func (f *fixture) identity() lvm.Identity {
	f.t.Helper()
	return lvm.Identity(must.Get(f.Journal.Identities())(f.t)["carve"])
}

func TestTheDisksThatAGroupIsKnownByFollowItsMetadata(t *testing.T) {
	f := newFixture(t, nil)
	f.lvm.AddGroupOf("carve", extent, 5, 5)
	f.create(ours, named("a")...)
	f.start()
	has := func(when string, want ...string) {
		t.Helper()
		must.Succeed(t, f.Rescan(f.g))
		if got := f.identity().Devices; !slices.Equal(got, want) {
			t.Errorf("%s: the group is known by %q, want %q", when, got, want)
		}
		if refusal := f.Refusal(f.g).Message; refusal != "" {
			t.Errorf("%s: %s", when, refusal)
		}
	}
	has("at first", "fake-pv-carve-0", "fake-pv-carve-1")
	f.lvm.ReplaceDevice("carve", "fake-pv-carve-0", "third")
	has("one is replaced", "fake-pv-carve-1", "third")
	f.lvm.ReplaceDevice("carve", "fake-pv-carve-1", "fourth")
	has("so is the other", "fourth", "third")
	f.lvm.AddDisk(blockdev.Device{Name: "vdx", Size: 64 << 20})
	must.Succeed(t, f.lvm.InitDevice(t.Context(), lvm.InitOptions{Device: "/dev/vdx", UUID: "fifth", MetadataSize: 1 << 20, DataAlignment: 1 << 20}))
	must.Succeed(t, f.lvm.ExtendGroup(t.Context(), "carve", []string{"/dev/vdx"}))
	has("one is added", "fifth", "fourth", "third")
	for _, from := range []string{"third", "fourth", "fifth"} {
		f.lvm.ReplaceDevice("carve", from, "forged-"+from)
	}
	must.Succeed(t, f.Rescan(f.g))
	if f.Refusal(f.g).Message == "" || len(f.identity().Devices) != 3 || f.identity().Devices[0] != "fifth" {
		t.Errorf("all are others at once: refused for %q, known by %q", f.Refusal(f.g).Message, f.identity().Devices)
	}
}

func TestAGroupInWhichAllVolumesAreGoneAtOnceIsRefused(t *testing.T) {
	const second = "cvbbbbbbbbbbbbbbbbbbbbbbbbbb"
	one, two := map[string][]string{ours: named("a")}, map[string][]string{ours: named("a"), second: named("b")}
	for name, test := range map[string]struct {
		volumes  map[string][]string
		remove   []string
		accepted bool
	}{
		"the only one": {volumes: one, remove: []string{ours}, accepted: true},
		"one of two":   {volumes: two, remove: []string{ours}, accepted: true},
		"both":         {volumes: two, remove: []string{ours, second}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, test.volumes)
			f.start()
			must.Succeed(t, f.lvm.Remove(t.Context(), "carve", test.remove))
			kept := func() int { return len(must.Get(f.Journal.Volumes())(t)) }
			before := kept()
			must.Succeed(t, f.Rescan(f.g))
			if test.accepted {
				if got := kept(); got != before-len(test.remove) || f.Refusal(f.g).Message != "" {
					t.Errorf("the journal has %d volumes, want %d; refused for %q", got, before-len(test.remove), f.Refusal(f.g).Message)
				}
				return
			}
			accept := filepath.Join(f.StateDir, "accept-volume-group-"+first)
			refusal := f.Refusal(f.g).Message
			if kept() != before || f.g.Known().Scanned != nil || !strings.Contains(refusal, ours) || !strings.Contains(refusal, "touch "+accept) {
				t.Errorf("the journal has %d volumes, want %d; the group is %v; refused for %q", kept(), before, f.g.Known().Scanned, refusal)
			}
			must.Succeed(t, os.WriteFile(accept, nil, 0o600))
			must.Succeed(t, f.Rescan(f.g))
			if kept() != 0 || f.g.Known().Scanned == nil || f.Refusal(f.g).Message != "" {
				t.Errorf("accepted: the journal has %d volumes, want none; the group is %v; refused for %q", kept(), f.g.Known().Scanned, f.Refusal(f.g).Message)
			}
			if _, err := os.Stat(accept); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the file that accepts it is left: %v", err)
			}
		})
	}
}

func TestAGroupWhoseMetadataIsOlderThanItWasIsRefused(t *testing.T) {
	f := newFixture(t, map[string][]string{ours: named("a")})
	f.start()
	seqno := f.g.Known().Seqno
	f.lvm.SetSeqno("carve", seqno-1)
	must.Succeed(t, f.Rescan(f.g))
	accept := filepath.Join(f.StateDir, "accept-volume-group-"+first)
	refusal := f.Refusal(f.g)
	if refusal.Type != conditions.VolumeGroupOutdated || !strings.Contains(refusal.Message, "touch "+accept) || f.g.Known().Scanned != nil {
		t.Errorf("the group is %v, refused for %v", f.g.Known().Scanned, refusal)
	}
	err := f.Change(t.Context(), f.g, func(context.Context) (inventory.Effect, error) {
		t.Error("a command was run")
		return nil, nil
	})
	if want := new(apierror.Error); !errors.As(err, &want) {
		t.Errorf("a change fails with %v, want one of apierror", err)
	}
	f.lvm.SetSeqno("carve", seqno)
	must.Succeed(t, f.Rescan(f.g))
	if f.g.Known().Scanned == nil || f.Refusal(f.g).Message != "" {
		t.Errorf("with its number again, the group is %v, refused for %v", f.g.Known().Scanned, f.Refusal(f.g))
	}
	f.lvm.SetSeqno("carve", seqno-1)
	must.Succeed(t, f.Rescan(f.g))
	must.Succeed(t, os.WriteFile(accept, nil, 0o600))
	must.Succeed(t, f.Rescan(f.g))
	if f.g.Known().Scanned == nil || f.Refusal(f.g).Message != "" {
		t.Errorf("accepted, the group is %v, refused for %v", f.g.Known().Scanned, f.Refusal(f.g))
	}
	// The next start must not refuse it again.
	if got := must.Get(f.Journal.Groups())(t)["carve"].Seqno; got != seqno-1 {
		t.Errorf("the journal has the sequence number %d, want %d", got, seqno-1)
	}
	if _, err := os.Stat(accept); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file that accepts it is left: %v", err)
	}
}

func TestAGroupOfWhichADiskAndItsCopyAreThereIsNotTaken(t *testing.T) {
	for name, volumes := range map[string]map[string][]string{
		"with a volume":    {ours: named("a")},
		"without a volume": nil,
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, volumes)
			f.start()
			known := f.identity()
			f.lvm.SetCopied("carve", "/dev/copy")
			// A duplicate cannot be accepted.
			must.Succeed(t, os.WriteFile(filepath.Join(f.StateDir, "accept-volume-group-"+first), nil, 0o600))
			must.Succeed(t, f.Rescan(f.g))
			refusal := f.Refusal(f.g)
			if refusal.Type != conditions.DuplicateDevice || !strings.Contains(refusal.Message, "/dev/fake-carve and /dev/copy") || strings.Contains(refusal.Message, "fake-pv-") || f.g.Known().Scanned != nil {
				t.Errorf("the group is %v, refused for %v", f.g.Known().Scanned, refusal)
			}
			if got := f.identity(); !got.Equal(known) || !f.g.Known().Pinned.Equal(known) {
				t.Errorf("the journal has %v, the inventory %v, want %v", got, f.g.Known().Pinned, known)
			}
			f.lvm.SetCopied("carve", "")
			must.Succeed(t, f.Rescan(f.g))
			if f.g.Known().Scanned == nil || f.Refusal(f.g).Message != "" {
				t.Errorf("without the copy, the group is %v, refused for %v", f.g.Known().Scanned, f.Refusal(f.g))
			}
		})
	}
}

func TestAFileThatAcceptsNothingDoesNotAcceptWhatHappensLater(t *testing.T) {
	f := newFixture(t, map[string][]string{ours: named("a")})
	f.start()
	accept := filepath.Join(f.StateDir, "accept-volume-group-"+first)
	must.Succeed(t, os.WriteFile(accept, nil, 0o600))
	must.Succeed(t, f.Rescan(f.g))
	if _, err := os.Stat(accept); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file is left: %v", err)
	}
}

func TestAVolumeThatTheJournalDoesNotKnowIsAsFarAsItsDeviceShows(t *testing.T) {
	const uuid = "00000000-0000-4000-8000-000000000001"
	mounted := spec.Identity{
		Name: "a", Class: "local", Size: spec.Size{Required: 2 * extent}, Format: spec.Format{FSType: filesystem.Ext4, FSUUID: uuid},
	}.Tags()
	for name, test := range map[string]struct {
		tags  []string
		found filesystem.Info
		want  spec.Phase
	}{
		"a raw one":                            {tags: named("a"), want: spec.Ready},
		"one with its file system":             {tags: mounted, found: filesystem.Info{Type: filesystem.Ext4, UUID: uuid}, want: spec.Ready},
		"one without a file system":            {tags: mounted, want: spec.Unfinished},
		"one with the file system of another":  {tags: mounted, found: filesystem.Info{Type: filesystem.Ext4, UUID: "other"}, want: spec.Unfinished},
		"one that is deleted and partly wiped": {tags: append(mounted, spec.TagDeleted), want: spec.Deleting},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, map[string][]string{ours: test.tags, "theirs": nil})
			f.found = test.found
			f.start()
			records := must.Get(f.Journal.Volumes())(t)
			if len(records) != 1 || records[ours].Phase != test.want || records[ours].Ident.Name != "a" {
				t.Errorf("the journal has %+v, want one %s", records, test.want)
			}
			if got := f.Inventory.Inspect()[ours].Record.Phase; got != test.want {
				t.Errorf("the inventory has it as %s", got)
			}
		})
	}
}

func TestADeviceThatAnotherProgramHasOpenIsTriedAgainForAMoment(t *testing.T) {
	broken := errors.New("broken")
	for name, test := range map[string]struct {
		// errs are the errors of the attempts; the last one repeats.
		errs  []error
		want  error
		takes time.Duration
	}{
		"it is closed":        {errs: []error{lvm.ErrBusy, lvm.ErrBusy, nil}, takes: 3 * time.Millisecond},
		"it is not closed":    {errs: []error{lvm.ErrBusy}, want: lvm.ErrBusy, takes: openTimeout},
		"it is mounted":       {errs: []error{fmt.Errorf("%w: %w", lvm.ErrBusy, lvm.ErrClaimed)}, want: lvm.ErrClaimed},
		"it cannot be opened": {errs: []error{broken}, want: broken},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin, attempts := time.Now(), 0
				_, err := retryBusy(t.Context(), func() (blockdev.Handle, error) {
					err := test.errs[min(attempts, len(test.errs)-1)]
					attempts++
					return nil, err
				})
				if took := time.Since(begin); !errors.Is(err, test.want) || took != test.takes {
					t.Errorf("got %v after %v, want %v after %v", err, took, test.want, test.takes)
				}
			})
		})
	}
}

// Only the probe finds out whether LVM answers for the group.
func TestAProbeThatIsRejectedProbesAgain(t *testing.T) {
	f := newFixture(t, nil)
	f.start()
	f.g.slot = fairqueue.New(0, time.Hour)
	done := must.Get(f.g.slot.Acquire(t.Context()))(t)
	f.SetUnresponsive(f.g, lvm.ErrTimedOut)
	waittest.Until(t, "the probe is rejected", func() bool { return f.g.Queue().Rejected > 0 })
	done()
	waittest.Until(t, "the group is served", func() bool { return f.Inventory.Responding(f.g.Group) == nil })
}
