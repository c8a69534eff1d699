//go:build kernel

package driver_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/driver/drivertest"
	"github.com/carve-csi/carve/pkg/driver/mount"
	"github.com/carve-csi/carve/pkg/luks"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// soaking runs every crash point, each with its own volume.
var soaking = os.Getenv("CARVE_SOAK") != ""

// killedVolume is a kind of volume with all points at which a plugin can be
// killed: the effects of its calls, in order, and the answers.
type killedVolume struct {
	name, fsType string
	luks         bool
	size         int64
	effects      []callEffects
	tools        []crashPoint
	// sample lists the points of a normal run, besides all answers, in order of
	// the effects. A kind without any runs only when soaking.
	sample []crashPoint
}

type callEffects struct {
	call    string
	effects []string
}

// usual lists the effects of calls for volumes that the plugin does not
// encrypt.
var usual = []callEffects{
	{"stage", []string{"mount"}}, {"publish", []string{"bind"}}, {"expand", []string{"grow"}},
	{"unpublish", []string{"unmount", "unmounted"}}, {"unstage", []string{"unmount", "unmounted"}},
}

var killedVolumes = []killedVolume{
	{name: "ext4", fsType: "ext4", size: 32 * mib, effects: usual,
		sample: []crashPoint{
			{call: "publish", effect: "bind"}, {call: "expand", effect: "grow"}, {call: "unpublish", effect: "unmounted"},
		}},
	{name: "xfs", fsType: "xfs", size: 304 * mib, effects: usual,
		tools: []crashPoint{{call: "expand", tool: "xfs_growfs"}}},
	{name: "raw block", size: 8 * mib,
		effects: []callEffects{
			{"stage", nil}, {"publish", []string{"bind"}}, {"expand", nil},
			{"unpublish", []string{"unmount", "unmounted"}}, {"unstage", []string{"unmount", "unmounted"}},
		},
		sample: []crashPoint{{call: "publish", effect: "bind"}}},
	{name: "LUKS with ext4", fsType: "ext4", luks: true, size: 32 * mib,
		effects: []callEffects{
			{"stage", []string{"luksFormat", "open", "mkfs", "finish", "mount"}}, {"publish", []string{"bind"}},
			{"expand", []string{"resize", "grow"}},
			{"unpublish", []string{"unmount", "unmounted"}}, {"unstage", []string{"unmount", "unmounted", "close"}},
		},
		tools: []crashPoint{
			{call: "stage", tool: "cryptsetup-luksFormat"}, {call: "stage", tool: "cryptsetup-open"}, {call: "stage", tool: "mkfs.ext4"},
			{call: "stage", tool: "cryptsetup-config"}, {call: "expand", tool: "cryptsetup-resize"},
		},
		sample: []crashPoint{
			{call: "stage", tool: "cryptsetup-luksFormat", number: 3}, {call: "stage", tool: "cryptsetup-open", number: 2},
			{call: "stage", tool: "mkfs.ext4", number: 5}, {call: "stage", effect: "finish"}, {call: "stage", tool: "cryptsetup-config", number: 2},
			{call: "expand", tool: "cryptsetup-resize", number: 2}, {call: "expand", effect: "grow"},
			{call: "unstage", effect: "close"},
		}},
	{name: "LUKS with raw block", luks: true, size: 8 * mib,
		effects: []callEffects{
			{"stage", []string{"luksFormat", "open", "clear", "finish"}}, {"publish", []string{"bind"}}, {"expand", []string{"resize"}},
			{"unpublish", []string{"unmount", "unmounted"}}, {"unstage", []string{"unmount", "unmounted", "close"}},
		}},
}

func (k killedVolume) points() (all []crashPoint) {
	for _, c := range k.effects {
		for _, effect := range append(c.effects[:len(c.effects):len(c.effects)], answered) {
			all = append(all, crashPoint{call: c.call, effect: effect})
		}
	}
	return all
}

// sampled returns the points of a normal run. In each call the answer is last.
func (k killedVolume) sampled() []crashPoint {
	points := slices.Clone(k.sample)
	for _, c := range k.effects {
		points = append(points, crashPoint{call: c.call, effect: answered})
	}
	return points
}

// TestRealPluginIsKilledAtEveryPoint kills the plugin with SIGKILL before its
// effects on real mounts and before its answers, starts another one and repeats
// the call. A normal run takes all answers and a sample of the effects, with
// one volume of each kind. With CARVE_SOAK each effect, of tools too, has a
// volume of its own.
func TestRealPluginIsKilledAtEveryPoint(t *testing.T) {
	m := drivertest.NewRealMachine(t, "/dev/vdb", "disk")
	for _, kind := range killedVolumes {
		if !soaking && len(kind.sample) == 0 {
			continue
		}
		t.Run(kind.name, func(t *testing.T) {
			if !soaking {
				newKilled(t, m, kind).run(kind.sampled()...)
				return
			}
			for _, point := range kind.points() {
				if !newKilled(t, m, kind).run(point) {
					t.Fatalf("a plugin that was to be killed at %q answered", point)
				}
			}
			for _, point := range kind.tools {
				for point.number = 1; newKilled(t, m, kind).run(point); point.number++ {
				}
				t.Logf("%s has %d effects", point.tool, point.number-1)
				if point.number == 1 {
					t.Errorf("%s has no effects", point.tool)
				}
			}
		})
	}
	(&real{kubelet{t: t, machine: m}}).waitForSpace()
}

type killed struct {
	real
	kind   killedVolume
	v      *lvmdv1.Volume
	plugin *pluginProcess
	isReal bool
	// The paths, and the kubelet's records.
	staged, published string
	records           []string
	// content is the data written at the offset; written means that it is
	// durable.
	content []byte
	offset  int64
	written bool
	// The acknowledged state.
	isStaged, isPublished bool
	grown                 int64
}

func newKilled(t *testing.T, m *drivertest.Machine, kind killedVolume) *killed {
	t.Helper()
	k := &killed{real: real{kubelet{t: t, machine: m, size: kind.size}}, kind: kind}
	name := fmt.Sprint("killed", time.Now().UnixNano())
	if kind.luks {
		k.v = k.locked(name, kind.fsType)
	} else {
		k.v = k.volume(name, kind.fsType)
	}
	id, csiDir := k.v.GetId(), []string{"plugins", "kubernetes.io", "csi"}
	in := func(elements ...string) []string { return append(csiDir[:3:3], elements...) }
	if kind.fsType == "" {
		k.staged = m.MakeDir(in("volumeDevices", "staging", "pvc-"+id)...)
		k.published = m.Path(in("volumeDevices", "publish", "pvc-"+id, "pod-uid")...)
		k.records = []string{filepath.Join(m.MakeDir(in("volumeDevices", "pvc-"+id, "data")...), "vol_data.json")}
	} else {
		k.staged = m.MakeDir(in("carve.csi.local", "hash-"+id, "globalmount")...)
		k.published = m.Path("pods", "pod-uid", "volumes", "kubernetes.io~csi", "pvc-"+id, "mount")
		k.records = []string{k.beside(k.staged), k.beside(k.published)}
	}
	for _, record := range k.records {
		must.Succeed(k.t, os.WriteFile(record, fmt.Appendf(nil, `{"driverName":"carve.csi.local","volumeHandle":%q}`, id), 0o600))
	}
	k.content = bytes.Repeat([]byte("content of "+id+" "), 200)
	return k
}

// run makes all calls of a kubelet for the volume. It kills the plugin at all
// points of a call before the call succeeds: each next plugin repeats the call.
// It returns false if the point is in a tool with fewer effects.
func (k *killed) run(points ...crashPoint) (crashed bool) {
	k.t.Helper()
	pending := "" // the call that must succeed next
	succeed := func() {
		if pending != "" {
			k.repeat(pending)
		}
	}
	for _, c := range k.kind.effects {
		if c.call == "expand" {
			k.expandBelow()
		}
		here := 0
		for _, point := range points {
			if point.call != c.call {
				continue
			}
			k.restart(func() *pluginProcess { return launchCrashing(k.t, k.machine, point) }, false)
			if here++; here == 1 {
				succeed()
			}
			var effects []string
			effects, crashed = k.crashAt(point)
			// After another crash the call has less to do, or more.
			if here == 1 && point.effect == answered && !slices.Equal(effects, c.effects) {
				k.t.Errorf("%s has the effects %q: the plugin is killed at %q", c.call, effects, c.effects)
			}
		}
		if here == 0 {
			k.ensureReal()
			succeed()
		}
		pending = c.call
	}
	k.ensureReal()
	succeed()
	k.finish()
	return crashed
}

// crashAt makes the point's call with a plugin that is killed there, and
// returns the call's effects before that.
func (k *killed) crashAt(point crashPoint) (effects []string, crashed bool) {
	k.t.Helper()
	if err := k.call(point.call); err != nil {
		effects = k.plugin.wantCrashed(k.t, k.machine, point, err)
		k.wantContent()
		if _, stacked := k.layers(); len(stacked) > 0 {
			k.t.Errorf("killed at %q: mounted twice is %q", point, stacked)
		}
		return effects, true
	}
	if !soaking || point.tool == "" {
		k.t.Fatalf("a plugin that was to be killed at %q answered", point)
	}
	count, err := os.ReadFile(filepath.Join(k.machine.Dir, effectsFile))
	if err != nil || string(count) != strconv.Itoa(point.number-1) {
		k.t.Fatalf("it has %q effects, error %v: it was to be killed at %q", count, err, point)
	}
	return nil, false
}

func (k *killed) restart(start func() *pluginProcess, isReal bool) {
	k.t.Helper()
	if k.plugin != nil {
		k.plugin.end(k.t)
	}
	k.plugin = start()
	k.Plugin, k.isReal = k.plugin.Plugin, isReal
}

func (k *killed) ensureReal() {
	k.t.Helper()
	if !k.isReal {
		k.restart(func() *pluginProcess { return launchReal(k.t, k.machine) }, true)
	}
}

func (k *killed) call(name string) error {
	access := access(k.v)
	switch name {
	case "stage":
		return second(k.NodeStageVolume(k.ctx(), &csi.NodeStageVolumeRequest{
			VolumeId: k.v.GetId(), StagingTargetPath: k.staged, VolumeCapability: access, Secrets: k.secrets}))
	case "publish":
		return second(k.NodePublishVolume(k.ctx(), &csi.NodePublishVolumeRequest{
			VolumeId: k.v.GetId(), StagingTargetPath: k.staged, TargetPath: k.published, VolumeCapability: access}))
	case "expand":
		return second(k.NodeExpandVolume(k.ctx(), &csi.NodeExpandVolumeRequest{
			VolumeId: k.v.GetId(), VolumePath: k.published, StagingTargetPath: k.staged, VolumeCapability: access,
			CapacityRange: &csi.CapacityRange{RequiredBytes: k.grown}}))
	case "unpublish":
		return second(k.NodeUnpublishVolume(k.ctx(), &csi.NodeUnpublishVolumeRequest{VolumeId: k.v.GetId(), TargetPath: k.published}))
	case "unstage":
		return second(k.NodeUnstageVolume(k.ctx(), &csi.NodeUnstageVolumeRequest{VolumeId: k.v.GetId(), StagingTargetPath: k.staged}))
	}
	return fmt.Errorf("no call %q", name)
}

// repeat makes a call until it succeeds, as a kubelet does, and checks the
// result. Only the sweep of a plugin that just started may delay success.
func (k *killed) repeat(name string) {
	k.t.Helper()
	var err error
	waittest.Until(k.t, name+" is not aborted", func() bool { err = k.call(name); return status.Code(err) != codes.Aborted })
	if err != nil {
		k.t.Fatalf("repeat %s: %v", name, err)
	}
	must.Succeed(k.t, k.call(name)) // already done
	mounted := 0
	switch name {
	case "stage", "unpublish":
		k.isStaged, k.isPublished = true, false
	case "publish":
		k.isPublished = true
	case "unstage":
		k.isStaged = false
	}
	if k.isStaged && k.kind.fsType != "" {
		mounted++
	}
	if k.isPublished {
		mounted++
	}
	k.wantLayers(mounted)
	k.wantContent()
	switch name {
	case "publish":
		k.writeContent(0)
	case "expand":
		k.wantSize(k.published, k.grown)
		if k.kind.fsType == "" {
			k.writeContent(k.grown - int64(len(k.content)))
		}
	case "unpublish":
		k.wantGone(k.published)
	case "unstage":
		k.wantLocked(k.v)
	}
}

func (k *killed) expandBelow() {
	k.t.Helper()
	got := must.Get(k.machine.LVMD.ExpandVolume(k.ctx(), &lvmdv1.ExpandVolumeRequest{Id: k.v.GetId(), RequiredBytes: 2 * k.kind.size}))(k.t)
	k.grown = got.GetVolume().GetSizeBytes()
}

func (k *killed) file() string {
	if k.kind.fsType == "" {
		return k.published
	}
	return filepath.Join(k.published, "file")
}

// writeContent writes the content, also when its offset has changed.
func (k *killed) writeContent(offset int64) {
	k.t.Helper()
	f, err := os.OpenFile(k.file(), os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		_, err = f.WriteAt(k.content, offset)
		err = errors.Join(err, f.Sync(), f.Close())
	}
	must.Succeed(k.t, err)
	k.offset, k.written = offset, true
}

// wantContent checks the content if the volume is published. A killed unpublish
// may have unmounted it.
func (k *killed) wantContent() {
	k.t.Helper()
	if at, err := k.machine.Mounts.At(k.published); !k.isPublished || !k.written || err == nil && !at.Mounted {
		return
	}
	f := must.Get(os.Open(k.file()))(k.t)
	defer f.Close()
	got := make([]byte, len(k.content))
	if _, err := f.ReadAt(got, k.offset); err != nil || !bytes.Equal(got, k.content) {
		k.t.Errorf("what was written is not read, error %v", err)
	}
}

func (k *killed) wantSize(path string, size int64) {
	k.t.Helper()
	var got int64
	var err error
	if k.kind.fsType == "" {
		got, err = k.machine.Mounts.NodeSize(path)
	} else {
		var usage mount.Usage
		usage, err = k.machine.Mounts.Usage(path)
		got = usage.TotalBytes
		size = size * 3 / 4 // minus the file system's own share
	}
	if err != nil || got < size {
		k.t.Errorf("%s has %d bytes, error %v; want %d", path, got, err, size)
	}
}

// finish stages and publishes the volume again, checks its content, and checks
// that removal leaves nothing.
func (k *killed) finish() {
	k.t.Helper()
	must.Succeed(k.t, errors.Join(k.call("stage"), k.call("publish")))
	k.isStaged, k.isPublished = true, true
	k.wantContent()
	k.wantSize(k.published, k.grown)
	if k.kind.luks && k.holds("/dev/"+k.v.GetVgName()+"/"+k.v.GetId(), k.v.GetSizeBytes(), k.content[:64]) {
		k.t.Error("plain text is on the disk")
	}
	must.Succeed(k.t, errors.Join(k.call("unpublish"), k.call("unstage")))
	k.wantLayers(0)
	k.wantGone(k.published)
	k.wantLocked(k.v)
	if left := drivertest.ByHand(k.t, "dmsetup", "ls"); strings.Contains(left, luks.MappingPrefix) {
		k.t.Errorf("open are\n%s", left)
	}
	for _, record := range k.records {
		must.Succeed(k.t, os.Remove(record))
	}
	k.plugin.end(k.t)
	k.delete(k.v)
}

func wantNoTool(t testing.TB, names ...string) {
	t.Helper()
	files := must.Get(filepath.Glob("/proc/[0-9]*/comm"))(t)
	for _, file := range files {
		content, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // it has ended
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if strings.TrimSpace(string(content)) == name {
				t.Errorf("%s goes on: %s", name, file)
			}
		}
	}
}
