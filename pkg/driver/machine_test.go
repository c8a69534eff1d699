package driver_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/must"
)

// volumeMachine is a state machine of volumes under a kubelet that makes calls
// in any order, with failures in between. Its state is whatever was
// acknowledged.
type volumeMachine struct {
	*kubelet
	faults    faults
	volumes   []*lvmdv1.Volume
	access    []*csi.VolumeCapability
	staged    map[int]bool
	published map[string]bool // by key()
	// unhealthy volumes have a failed file system, so calls may be refused.
	unhealthy         map[int]bool
	failing, lvmdDown bool
}

// faults are the failures to inject; nil where impossible.
type faults struct {
	failMounts, lvmdDown func(bool)
	crash                func(v *lvmdv1.Volume, path string)
}

var pods = []string{"pod-1", "pod-2", "pod-3"}

func key(v int, pod string) string { return fmt.Sprint(v, "/", pod) }

func TestNothingStacksOrLeaksWhateverHappens(t *testing.T) {
	f := newFixture(t)
	checkRandomly(t, &f.kubelet, faults{
		failMounts: func(on bool) {
			f.mounts.FailMounts(nil)
			if on {
				f.mounts.FailMounts(syscall.ENOMEM)
			}
		},
		lvmdDown: f.lvmd.SetDown,
		crash:    f.crash,
	})
}

func (f *fixture) crash(v *lvmdv1.Volume, _ string) {
	f.mounts.Kill(deviceOf(v))
	f.mounts.Revive(deviceOf(v))
	f.fileSystems.Set(v.GetDevicePath(), filesystem.Info{Type: filesystem.Type(v.GetFsType()), NeedsCheck: true})
}

func TestAFailedVolumeIsNotStagedBesideAPodThatHasIt(t *testing.T) {
	f := newFixture(t)
	checkStageBesideAFailedMount(t, &f.kubelet, f.crash)
}

// checkStageBesideAFailedMount restages a volume whose file system failed while
// a Pod has it, which no kubelet does: the kernel has one superblock per
// device. Staging fails until the Pod is gone, then repairs it.
func checkStageBesideAFailedMount(t *testing.T, k *kubelet, crash func(*lvmdv1.Volume, string)) {
	t.Helper()
	v, access := k.volume("failed", "xfs"), filesystemAccess(multi)
	must.Succeed(t, k.stage(v, access))
	must.Succeed(t, k.publish(v, "pod-1", access, false))
	crash(v, k.staging(v))
	must.Succeed(t, k.unstage(v))
	for range 2 {
		if err := k.stage(v, access); status.Code(err) != codes.FailedPrecondition {
			t.Fatalf("stage of a volume that failed while a Pod has it: %v, want FailedPrecondition", err)
		}
	}
	if all, _ := k.layers(); len(all) != 1 {
		t.Fatalf("mounted: %q, want the Pod's mount alone", all)
	}
	must.Succeed(t, k.unpublish(v, "pod-1"))
	must.Succeed(t, k.stage(v, access))
	must.Succeed(t, k.publish(v, "pod-1", access, false))
	must.Succeed(t, k.unpublish(v, "pod-1"))
	must.Succeed(t, k.unstage(v))
	must.Get(k.machine.LVMD.DeleteVolume(k.ctx(), &lvmdv1.DeleteVolumeRequest{Id: v.GetId()}))(t)
}

func checkRandomly(t *testing.T, k *kubelet, faults faults) {
	t.Helper()
	rounds := 0
	rapid.Check(t, func(t *rapid.T) {
		rounds++
		l := &volumeMachine{kubelet: k, faults: faults, staged: map[int]bool{}, published: map[string]bool{}, unhealthy: map[int]bool{}}
		for i, fsType := range []string{"ext4", "xfs", ""} {
			l.volumes = append(l.volumes, k.volume(fmt.Sprint("volume-", rounds, "-", i), fsType))
			l.access = append(l.access, filesystemAccess(multi))
			if fsType == "" {
				l.access[i] = blockAccess(multi)
			}
		}
		actions := map[string]func(*rapid.T){
			"stage":        l.doStage,
			"unstage":      l.doUnstage,
			"publish":      l.doPublish,
			"unpublish":    l.doUnpublish,
			"kill plugin":  l.killPlugin,
			"crash":        l.crash,
			"leave a path": l.leavePath,
			"":             l.check,
		}
		if faults.failMounts != nil {
			actions["mounts fail"] = l.mountsFail
		}
		if faults.lvmdDown != nil {
			actions["lvmd goes"] = l.lvmdGoes
		}
		t.Repeat(actions)
		l.end(t)
	})
}

func (l *volumeMachine) which(t *rapid.T) int {
	return rapid.IntRange(0, len(l.volumes)-1).Draw(t, "volume")
}

func (l *volumeMachine) doStage(t *rapid.T) {
	i := l.which(t)
	if l.mayFail(t, i, l.stage(l.volumes[i], l.access[i])) {
		l.staged[i] = true
	}
}

func (l *volumeMachine) doUnstage(t *rapid.T) {
	i := l.which(t)
	l.noError(t, l.unstage(l.volumes[i]))
	delete(l.staged, i)
}

func (l *volumeMachine) doPublish(t *rapid.T) {
	i, pod := l.which(t), rapid.SampledFrom(pods).Draw(t, "pod")
	block := l.access[i].GetBlock() != nil
	err := l.publish(l.volumes[i], pod, l.access[i], false)
	if !block && !l.staged[i] {
		if status.Code(err) != codes.FailedPrecondition {
			t.Fatalf("publish of an unstaged volume: %v", err)
		}
		return
	}
	if l.mayFail(t, i, err) {
		l.published[key(i, pod)] = true
	}
}

func (l *volumeMachine) doUnpublish(t *rapid.T) {
	i, pod := l.which(t), rapid.SampledFrom(pods).Draw(t, "pod")
	l.noError(t, l.unpublish(l.volumes[i], pod))
	delete(l.published, key(i, pod))
}

func (l *volumeMachine) killPlugin(*rapid.T) {
	l.Stop(l.t)
	l.Plugin = l.machine.Start()
}

func (l *volumeMachine) mountsFail(*rapid.T) {
	l.failing = !l.failing
	l.faults.failMounts(l.failing)
}

func (l *volumeMachine) lvmdGoes(*rapid.T) {
	l.lvmdDown = !l.lvmdDown
	l.faults.lvmdDown(l.lvmdDown)
}

func (l *volumeMachine) crash(t *rapid.T) {
	i := l.which(t)
	if l.staged[i] && l.access[i].GetBlock() == nil && !l.unhealthy[i] {
		l.faults.crash(l.volumes[i], l.staging(l.volumes[i]))
		l.unhealthy[i] = true
	}
}

// leavePath leaves a target path, as a plugin killed between creating and
// binding it.
func (l *volumeMachine) leavePath(t *rapid.T) {
	i, pod := l.which(t), rapid.SampledFrom(pods).Draw(t, "pod")
	path := l.target(l.volumes[i], pod)
	var err error
	if l.access[i].GetBlock() != nil {
		var f *os.File
		if f, err = os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600); err == nil {
			err = f.Close()
		}
	} else if err = os.Mkdir(path, 0o750); errors.Is(err, os.ErrExist) {
		err = nil
	}
	l.noError(t, err)
}

func (l *volumeMachine) check(t *rapid.T) {
	all, stacked := l.layers()
	if len(stacked) > 0 {
		t.Fatalf("stacked: %q", stacked)
	}
	want := len(l.published)
	for i := range l.staged {
		if l.access[i].GetBlock() == nil {
			want++
		}
	}
	if len(all) != want {
		t.Fatalf("%d layers, %d were acknowledged: %q", len(all), want, all)
	}
}

func (l *volumeMachine) end(t *rapid.T) {
	for i, v := range l.volumes {
		for _, pod := range pods {
			l.noError(t, l.unpublish(v, pod))
			if _, err := os.Lstat(l.target(v, pod)); !errors.Is(err, os.ErrNotExist) {
				t.Fatalf("the target path is left: %v", err)
			}
		}
		l.noError(t, l.unstage(v))
		delete(l.staged, i)
	}
	clear(l.published)
	l.check(t)
	if l.failing {
		l.mountsFail(t)
	}
	if l.lvmdDown {
		l.lvmdGoes(t)
	}
	for _, v := range l.volumes {
		_, err := l.machine.LVMD.DeleteVolume(l.ctx(), &lvmdv1.DeleteVolumeRequest{Id: v.GetId()})
		l.noError(t, err)
	}
}

func (l *volumeMachine) noError(t *rapid.T, err error) {
	if err != nil {
		t.Fatal(err)
	}
}

func (l *volumeMachine) mayFail(t *rapid.T, i int, err error) bool {
	switch code := status.Code(err); {
	case err == nil:
		return true
	case l.failing && code == codes.Internal, l.lvmdDown && code == codes.Unavailable, l.unhealthy[i] && code == codes.FailedPrecondition:
	default:
		t.Fatal(err)
	}
	if all, _ := l.layers(); l.unhealthy[i] && !slices.Contains(all, l.staging(l.volumes[i])) {
		// It was unmounted for repair before another failure.
		delete(l.staged, i)
	}
	return false
}
