package driver_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/driver"
	"github.com/carve-csi/carve/pkg/driver/mount"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/luks"
	"github.com/carve-csi/carve/pkg/must"
)

// errKilled is the result of every step of a dead plugin.
var errKilled = errors.New("killed")

// reaper kills a plugin before or after one of its steps: mount system calls
// and tools. A target path is created right before a bind and removed right
// after an unmount; a kill in between leaves a bare path, which has its own
// cases.
type reaper struct {
	mu    sync.Mutex
	armed bool
	// at is the step at which to kill, from 1; 0 means never.
	at    int
	after bool
	steps int
	dead  bool
}

func (r *reaper) arm(at int, after bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.armed, r.at, r.after, r.steps, r.dead = true, at, after, 0, false
}

func (r *reaper) stop() (steps int, died bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.armed = false
	return r.steps, r.dead
}

func (r *reaper) step(_ string, do func() error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.armed {
		return do()
	}
	if r.dead {
		return errKilled
	}
	r.steps++
	if r.steps != r.at {
		return do()
	}
	r.dead = true
	if r.after {
		return do()
	}
	return errKilled
}

// stepper runs a step, unless the plugin is dead or killed there.
type stepper interface {
	step(name string, do func() error) error
}

type crashingMounts struct {
	mount.Interface
	stepper
}

func (m crashingMounts) Mount(source mount.Source, path, fsType string, options []string) error {
	return m.step("mount", func() error { return m.Interface.Mount(source, path, fsType, options) })
}

func (m crashingMounts) Bind(source, path string, readOnly bool) error {
	return m.step("bind", func() error { return m.Interface.Bind(source, path, readOnly) })
}

func (m crashingMounts) Unmount(path string) error {
	return m.step("unmount", func() error { return m.Interface.Unmount(path) })
}

type crashingFileSystems struct {
	driver.FileSystems
	stepper
}

func (m crashingFileSystems) Check(ctx context.Context, device string, t filesystem.Type, o filesystem.CheckOptions) error {
	return m.step("check", func() error { return m.FileSystems.Check(ctx, device, t, o) })
}

func (m crashingFileSystems) Grow(ctx context.Context, device, path string, t filesystem.Type) error {
	return m.step("grow", func() error { return m.FileSystems.Grow(ctx, device, path, t) })
}

func (m crashingFileSystems) Format(ctx context.Context, device string, o filesystem.FormatOptions) error {
	return m.step("mkfs", func() error { return m.FileSystems.Format(ctx, device, o) })
}

func (m crashingFileSystems) SetRoot(path, owner, mode string) error {
	return m.step("root", func() error { return m.FileSystems.SetRoot(path, owner, mode) })
}

type crashingLUKS struct {
	luks.Interface
	stepper
}

func (m crashingLUKS) Format(ctx context.Context, device, volume string, key []byte) error {
	return m.step("luksFormat", func() error { return m.Interface.Format(ctx, device, volume, key) })
}

func (m crashingLUKS) Open(ctx context.Context, device, volume string, key []byte, discards bool) error {
	return m.step("open", func() error { return m.Interface.Open(ctx, device, volume, key, discards) })
}

func (m crashingLUKS) Finish(ctx context.Context, device, volume string) error {
	return m.step("finish", func() error { return m.Interface.Finish(ctx, device, volume) })
}

func (m crashingLUKS) Resize(ctx context.Context, volume string) error {
	return m.step("resize", func() error { return m.Interface.Resize(ctx, volume) })
}

func (m crashingLUKS) Close(ctx context.Context, volume string) error {
	return m.step("close", func() error { return m.Interface.Close(ctx, volume) })
}

func (m crashingLUKS) Clear(device string) error {
	return m.step("clear", func() error { return m.Interface.Clear(device) })
}

func TestKilledAtAnyStepTheRetrySucceeds(t *testing.T) {
	dirty := func(f *fixture, v *lvmdv1.Volume) {
		f.fileSystems.Set(v.GetDevicePath(), filesystem.Info{Type: filesystem.Ext4, NeedsCheck: true})
	}
	staged := func(f *fixture, v *lvmdv1.Volume) { must.Succeed(f.t, f.stage(v, access(v))) }
	published := func(f *fixture, v *lvmdv1.Volume) {
		staged(f, v)
		must.Succeed(f.t, f.publish(v, "pod", access(v), false))
	}
	keptKey := func(f *fixture, v *lvmdv1.Volume) {
		f.secrets = map[string]string{"key": "hunter2"}
		f.alter(v, func(v *lvmdv1.Volume) { v.Encryption = "luks" })
	}
	unstaged := func(f *fixture, v *lvmdv1.Volume) {
		keptKey(f, v)
		staged(f, v)
		must.Succeed(f.t, f.unstage(v))
	}
	stage := func(f *fixture, v *lvmdv1.Volume) error { return f.stage(v, access(v)) }
	expand := func(f *fixture, v *lvmdv1.Volume) error {
		return second(f.NodeExpandVolume(f.ctx(), &csi.NodeExpandVolumeRequest{
			VolumeId: v.GetId(), VolumePath: f.target(v, "pod"), StagingTargetPath: f.staging(v),
		}))
	}
	onMemory := func(f *fixture, v *lvmdv1.Volume) { f.alter(v, func(v *lvmdv1.Volume) { v.Dax = true }) }
	clone := func(f *fixture, v *lvmdv1.Volume) {
		f.alter(v, func(v *lvmdv1.Volume) { v.Source = &lvmdv1.VolumeSource{VolumeId: "cv1"} })
		f.fileSystems.Set(v.GetDevicePath(), filesystem.Info{Type: filesystem.Ext4, SizeBytes: v.GetSizeBytes() / 2})
	}
	scratch := func(f *fixture, v *lvmdv1.Volume) {
		f.alter(v, func(v *lvmdv1.Volume) { v.Profile = string(filesystem.Scratch) })
		dirty(f, v)
	}
	stageDAX := func(f *fixture, v *lvmdv1.Volume) error {
		if err := f.stage(v, access(v)); err != nil {
			return err
		}
		points, err := f.mounts.Below(f.machine.KubeletDir)
		if err == nil && !slices.Contains(points[0].FSOptions, "dax=always") {
			err = fmt.Errorf("it was staged with options %q", points[0].FSOptions)
		}
		return err
	}
	stageGrown := func(f *fixture, v *lvmdv1.Volume) error {
		err := f.stage(v, access(v))
		if err == nil && len(f.fileSystems.Grown(v.GetDevicePath())) == 0 {
			err = errors.New("it was staged and not grown")
		}
		return err
	}
	owned := func(f *fixture, v *lvmdv1.Volume) {
		f.alter(v, func(v *lvmdv1.Volume) { v.FsSettings = map[string]string{"root-owner": "1:2"} })
	}
	stageOwned := func(f *fixture, v *lvmdv1.Volume) error {
		err := f.stage(v, access(v))
		if err == nil && len(f.fileSystems.Roots()) == 0 {
			err = errors.New("it was staged and its root not set")
		}
		return err
	}
	leaked := func(f *fixture, v *lvmdv1.Volume) {
		p := f.places(v)
		must.Succeed(f.t, f.mounts.Mount(mount.Source{Node: v.GetDevicePath()}, p.staged, "ext4", nil))
		must.Succeed(f.t, f.mounts.Bind(p.staged, p.published, false))
	}
	// A sweep returns no error: its leftovers show that it was killed.
	sweep := func(f *fixture, _ *lvmdv1.Volume) error {
		f.Sweep(f.ctx())
		left, _ := f.layers()
		open, err := f.luks.Mappings()
		if len(left) > 0 || len(open) > 0 {
			err = fmt.Errorf("left are %q, open are %q", left, open)
		}
		return err
	}
	calls := []struct {
		name, fsType string
		before       func(*fixture, *lvmdv1.Volume)
		call         func(*fixture, *lvmdv1.Volume) error
		// layers is the expected number at the end, steps the number of kill
		// points.
		layers, steps int
	}{
		{"stage", "ext4", func(*fixture, *lvmdv1.Volume) {}, func(f *fixture, v *lvmdv1.Volume) error { return f.stage(v, access(v)) }, 1, 1},
		{"stage after a crash", "ext4", dirty, func(f *fixture, v *lvmdv1.Volume) error { return f.stage(v, access(v)) }, 1, 2},
		{"stage of what failed", "ext4", func(f *fixture, v *lvmdv1.Volume) {
			staged(f, v)
			dirty(f, v)
			f.mounts.Kill(deviceOf(v))
			f.mounts.Revive(deviceOf(v))
		}, func(f *fixture, v *lvmdv1.Volume) error { return f.stage(v, access(v)) }, 1, 3},
		{"publish", "xfs", staged, func(f *fixture, v *lvmdv1.Volume) error { return f.publish(v, "pod", access(v), false) }, 2, 1},
		{"publish read-only", "xfs", staged, func(f *fixture, v *lvmdv1.Volume) error { return f.publish(v, "pod", access(v), true) }, 2, 1},
		{"publish of raw block", "", staged, func(f *fixture, v *lvmdv1.Volume) error { return f.publish(v, "pod", access(v), false) }, 1, 1},
		{"publish where the path is made already", "ext4", func(f *fixture, v *lvmdv1.Volume) {
			staged(f, v)
			must.Succeed(f.t, os.Mkdir(f.target(v, "pod"), 0o750))
		}, func(f *fixture, v *lvmdv1.Volume) error { return f.publish(v, "pod", access(v), false) }, 2, 1},
		{"publish of raw block where the path is made already", "", func(f *fixture, v *lvmdv1.Volume) {
			must.Succeed(f.t, os.WriteFile(f.target(v, "pod"), nil, 0o600))
		}, func(f *fixture, v *lvmdv1.Volume) error { return f.publish(v, "pod", access(v), false) }, 1, 1},
		{"unpublish where only the path is left", "ext4", func(f *fixture, v *lvmdv1.Volume) {
			must.Succeed(f.t, os.Mkdir(f.target(v, "pod"), 0o750))
		}, func(f *fixture, v *lvmdv1.Volume) error { return f.unpublish(v, "pod") }, 0, 1},
		{"unpublish", "ext4", published, func(f *fixture, v *lvmdv1.Volume) error { return f.unpublish(v, "pod") }, 1, 1},
		{"unpublish of raw block", "", published, func(f *fixture, v *lvmdv1.Volume) error { return f.unpublish(v, "pod") }, 0, 1},
		{"unstage", "ext4", staged, func(f *fixture, v *lvmdv1.Volume) error { return f.unstage(v) }, 0, 1},
		{"expand", "ext4", published, expand, 2, 1},
		{"first stage with a kept key", "ext4", keptKey, stage, 1, 5},
		{"first stage of raw block with a kept key", "", keptKey, stage, 0, 4},
		{"stage with a kept key", "ext4", unstaged, stage, 1, 2},
		{"stage of raw block with a kept key", "", unstaged, stage, 0, 1},
		{"unstage with a kept key", "ext4", func(f *fixture, v *lvmdv1.Volume) {
			keptKey(f, v)
			staged(f, v)
		}, func(f *fixture, v *lvmdv1.Volume) error { return f.unstage(v) }, 0, 2},
		{"expand with a kept key", "ext4", func(f *fixture, v *lvmdv1.Volume) {
			keptKey(f, v)
			published(f, v)
		}, expand, 2, 2},
		{"stage of a clone that is larger than its source", "ext4", clone, stageGrown, 1, 2},
		{"stage of a scratch file system that is reformatted", "ext4", scratch, stage, 1, 2},
		{"stage of a volume whose root has an owner", "btrfs", owned, stageOwned, 1, 2},
		{"stage on persistent memory", "xfs", onMemory, stageDAX, 1, 1},
		{"sweep", "ext4", leaked, sweep, 0, 2},
		{"sweep of a raw block volume", "", func(f *fixture, v *lvmdv1.Volume) {
			must.Succeed(f.t, f.mounts.Bind(v.GetDevicePath(), f.places(v).device, false))
		}, sweep, 0, 1},
		{"sweep of a volume with a kept key", "ext4", func(f *fixture, v *lvmdv1.Volume) {
			keptKey(f, v)
			staged(f, v)
			must.Succeed(f.t, f.mounts.Unmount(f.staging(v)))
			must.Succeed(f.t, f.mounts.Mount(mount.Source{Node: luks.Path(v.GetId())}, f.places(v).staged, "ext4", nil))
		}, sweep, 0, 2},
	}
	for _, c := range calls {
		t.Run(c.name, func(t *testing.T) {
			for at := 1; at <= c.steps+1; at++ {
				for _, after := range []bool{false, true} {
					t.Run(fmt.Sprintf("step %d, after it %t", at, after), func(t *testing.T) {
						f, r := newKillable(t)
						v := f.volume("a", c.fsType)
						c.before(f, v)
						r.arm(at, after)
						err := c.call(f, v)
						steps, died := r.stop()
						if steps != min(at, c.steps) || died != (at <= c.steps) {
							t.Fatalf("%d steps, died %t: the enumeration is of %d", steps, died, c.steps)
						}
						if died && err == nil && (!after || at < c.steps) {
							t.Fatal("a killed plugin answered")
						}
						f.Stop(t)
						f.Plugin = f.machine.Start()
						must.Succeed(f.t, c.call(f, v))
						must.Succeed(f.t, c.call(f, v))
						f.wantLayers(c.layers)
						must.Succeed(f.t, f.unpublish(v, "pod"))
						must.Succeed(f.t, f.unstage(v))
						f.wantLayers(0)
						f.wantGone(f.target(v, "pod"))
						f.wantLocked(v)
					})
				}
			}
		})
	}
}

// TestKilledBeforeItWasVerifiedThatThereIsDAX kills a plugin that mounted
// without DAX, before and after the unmount.
func TestKilledBeforeItWasVerifiedThatThereIsDAX(t *testing.T) {
	for at, after := range map[int]bool{1: true, 2: false} {
		f, r := newKillable(t)
		v := f.alter(f.volume("a", "xfs"), func(v *lvmdv1.Volume) { v.Dax = true })
		f.mounts.DropOptionOnce("dax=always")
		r.arm(at, after)
		err := f.stage(v, access(v))
		if _, died := r.stop(); !died || err == nil {
			t.Fatalf("died %t, error %v", died, err)
		}
		f.wantLayers(1)
		f.Stop(t)
		f.Plugin = f.machine.Start()
		must.Succeed(f.t, f.stage(v, access(v)))
		f.wantLayers(1)
		if points, err := f.mounts.Below(f.machine.KubeletDir); err != nil || !slices.Contains(points[0].FSOptions, "dax=always") {
			t.Errorf("it was staged with options %q, error %v, want dax=always", points[0].FSOptions, err)
		}
	}
}

func access(v *lvmdv1.Volume) *csi.VolumeCapability {
	if v.GetMode() == lvmdv1.VolumeMode_VOLUME_MODE_BLOCK {
		return blockAccess(multi)
	}
	return filesystemAccess(multi)
}

func newKillable(t *testing.T) (*fixture, *reaper) {
	t.Helper()
	f, r := newFixture(t), &reaper{}
	f.Stop(t)
	f.machine.Mounts = crashingMounts{f.machine.Mounts, r}
	f.machine.FileSystems = crashingFileSystems{f.machine.FileSystems, r}
	f.machine.LUKS = crashingLUKS{f.machine.LUKS, r}
	f.Plugin = f.machine.Start()
	return f, r
}

// TestTheSameCallTwiceAtOnce sends each call several times at once: it is done
// once, and the others get Aborted or find it done.
func TestTheSameCallTwiceAtOnce(t *testing.T) {
	for _, fsType := range []string{"ext4", ""} {
		t.Run("type "+fsType, func(t *testing.T) {
			f := newFixture(t)
			v := f.volume("a", fsType)
			f.staging(v)
			f.target(v, "pod")
			mounted := 0
			if fsType != "" {
				mounted = 1
			}
			for range 20 {
				f.atOnce(func() error { return f.stage(v, access(v)) })
				f.wantLayers(mounted)
				f.atOnce(func() error { return f.publish(v, "pod", access(v), false) })
				f.wantLayers(mounted + 1)
				f.atOnce(func() error {
					return second(f.NodeExpandVolume(f.ctx(), &csi.NodeExpandVolumeRequest{
						VolumeId: v.GetId(), VolumePath: f.target(v, "pod"), StagingTargetPath: f.staging(v)}))
				})
				f.atOnce(func() error { return f.unpublish(v, "pod") })
				f.wantLayers(mounted)
				f.atOnce(func() error { return f.unstage(v) })
				f.wantLayers(0)
				f.wantGone(f.target(v, "pod"))
			}
		})
	}
}

// atOnce makes a call several times at once; at least one must succeed.
func (f *kubelet) atOnce(call func() error) {
	f.t.Helper()
	results := make(chan error, 8)
	for range cap(results) {
		go func() { results <- call() }()
	}
	succeeded := false
	for range cap(results) {
		err := <-results
		succeeded = succeeded || err == nil
		if err != nil && status.Code(err) != codes.Aborted {
			f.t.Error(err)
		}
	}
	if !succeeded {
		f.t.Error("no call succeeded")
	}
}
