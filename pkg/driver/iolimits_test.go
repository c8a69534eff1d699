package driver_test

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/driver"
	"github.com/carve-csi/carve/pkg/driver/drivertest"
	"github.com/carve-csi/carve/pkg/iolimit"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func newLimited(t *testing.T) (*fixture, driver.IOLimitDirs) {
	t.Helper()
	m := drivertest.NewFakeMachine(t)
	m.IOLimits = driver.IOLimitDirs{Requests: t.TempDir(), Reports: t.TempDir()}
	return &fixture{
		kubelet: kubelet{Plugin: m.Start(), t: t, machine: m.Machine, size: gib},
		lvmd:    m.LVMD, mounts: m.Mounts, fileSystems: m.FileSystems, luks: m.LUKS,
	}, m.IOLimits
}

func (f *fixture) publishFor(v *lvmdv1.Volume, pods ...string) {
	f.t.Helper()
	access := filesystemAccess(multi)
	if v.GetMode() == lvmdv1.VolumeMode_VOLUME_MODE_BLOCK {
		access = blockAccess(multi)
	}
	must.Succeed(f.t, f.stage(v, access))
	for _, pod := range pods {
		must.Succeed(f.t, f.publish(v, pod, access, false))
	}
}

// wantRequest waits until exactly these volumes are requested.
func (f *fixture) wantRequest(dirs driver.IOLimitDirs, want ...iolimit.Volume) {
	f.t.Helper()
	slices.SortFunc(want, func(a, b iolimit.Volume) int { return strings.Compare(a.ID, b.ID) }) // the order of requests
	var got iolimit.Request
	waittest.Until(f.t, "the limits are requested", func() bool {
		var err error
		got, err = iolimit.ReadRequest(dirs.Requests)
		return err == nil && slices.EqualFunc(got.Volumes, want, func(a, b iolimit.Volume) bool {
			return a.ID == b.ID && a.Device == b.Device && a.Limits == b.Limits && slices.Equal(a.Pods, b.Pods)
		})
	}, func() any { return got })
}

func numberOf(major, minor uint32) iolimit.Device { return iolimit.Device{Major: major, Minor: minor} }

func TestLimitsAreRequestedForThePodsThatHaveAVolume(t *testing.T) {
	f, dirs := newLimited(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan struct{})
	go func() { f.RequestIOLimits(ctx); close(ended) }()
	plain, free, locked := f.volume("a", "ext4"), f.volume("b", "xfs"), f.locked("c", "ext4")
	f.volume("unused", "ext4")
	slow := iolimit.Limits{WriteBPS: 1 << 20}
	f.alter(plain, func(v *lvmdv1.Volume) { v.IoLimits = slow.Proto() })
	f.alter(locked, func(v *lvmdv1.Volume) { v.IoLimits = slow.Proto() })
	f.publishFor(plain, "pod-2", "pod-1")
	f.publishFor(free, "pod-1")
	f.publishFor(locked, "pod-3")
	mapping := f.mapping(locked)
	one := iolimit.Volume{ID: plain.GetId(), Device: numberOf(plain.GetDeviceMajor(), plain.GetDeviceMinor()), Pods: []string{"pod-1", "pod-2"}, Limits: slow}
	two := iolimit.Volume{ID: free.GetId(), Device: numberOf(free.GetDeviceMajor(), free.GetDeviceMinor()), Pods: []string{"pod-1"}}
	three := iolimit.Volume{ID: locked.GetId(), Device: numberOf(mapping.Major, mapping.Minor), Pods: []string{"pod-3"}, Limits: slow}
	f.wantRequest(dirs, one, two, three)

	t.Log("changed, lifted, and no longer in use")
	one.Limits = iolimit.Limits{WriteBPS: 2 << 20}
	f.alter(plain, func(v *lvmdv1.Volume) { v.IoLimits = one.Limits.Proto() })
	f.wantRequest(dirs, one, two, three)
	one.Limits, one.Pods = iolimit.Limits{}, []string{"pod-2"}
	f.alter(plain, func(v *lvmdv1.Volume) { v.IoLimits = nil })
	must.Succeed(t, f.unpublish(plain, "pod-1"))
	must.Succeed(t, f.unpublish(free, "pod-1"))
	f.wantRequest(dirs, one, three)

	t.Log("another run of the plugin derives the same")
	stop()
	<-ended
	must.Succeed(t, iolimit.Request{}.Write(dirs.Requests))
	ctx, stop = context.WithCancel(t.Context())
	defer stop()
	go f.RequestIOLimits(ctx)
	f.wantRequest(dirs, one, three)
}

func TestLimitsThatAreNotAppliedAreACondition(t *testing.T) {
	limits := (&iolimit.Limits{ReadIOPS: 100}).Proto()
	message := func(f *fixture, v *lvmdv1.Volume) string {
		return f.CheckHealth(context.Background(), driver.Conditions{})[v.GetId()][driver.ReasonIOLimitsNotApplied]
	}
	t.Run("without the component", func(t *testing.T) {
		f := newFixture(t)
		v := f.volume("a", "ext4")
		f.publishFor(v, "pod")
		if m := message(f, v); m != "" {
			t.Errorf("a volume without limits: %q", m)
		}
		f.alter(v, func(v *lvmdv1.Volume) { v.IoLimits = limits })
		if m := message(f, v); !strings.Contains(m, "not installed on the node") {
			t.Errorf("got %q", m)
		}
		if noted := f.listed()[0].GetFound(); len(noted) != 1 || noted[0].GetType() != driver.ReasonIOLimitsNotApplied {
			t.Errorf("lvmd was given %v", noted)
		}
		must.Succeed(t, f.unpublish(v, "pod"))
		if m := message(f, v); m != "" {
			t.Errorf("a volume that no Pod uses: %q", m)
		}
	})
	t.Run("with it", func(t *testing.T) {
		f, dirs := newLimited(t)
		v := f.alter(f.volume("a", "ext4"), func(v *lvmdv1.Volume) { v.IoLimits = limits })
		f.publishFor(v, "pod")
		if m := message(f, v); m != "" {
			t.Errorf("before it could report: %q", m)
		}
		for _, c := range []struct {
			report iolimit.Report
			want   string
		}{
			{iolimit.Report{At: time.Now()}, ""},
			{iolimit.Report{At: time.Now(), Failures: map[string]string{v.GetId(): "no cgroup"}}, "no cgroup"},
			{iolimit.Report{At: time.Now(), Failures: map[string]string{"another": "no cgroup"}}, ""},
			{iolimit.Report{At: time.Now(), Problem: "cgroup v1"}, "cgroup v1"},
			{iolimit.Report{At: time.Now(), Problem: strings.Repeat("x", 5000)}, strings.Repeat("x", 900) + "…"},
			{iolimit.Report{At: time.Now().Add(-iolimit.StaleAfter - time.Second)}, "the container io-limits of the node's Pod carve-node does not run"},
		} {
			must.Succeed(t, c.report.Write(dirs.Reports))
			if m := message(f, v); m != c.want {
				t.Errorf("report %+v: %q, want %q", c.report, m, c.want)
			}
		}
	})
}

func TestOneDirectoryForLimitsIsNotEnough(t *testing.T) {
	_, err := driver.New(t.Context(), driver.Options{NodeName: "n", KubeletDir: "/k", IOLimits: driver.IOLimitDirs{Requests: filepath.Join("/", "r")}})
	if err == nil || !strings.Contains(err.Error(), "both or none") {
		t.Errorf("error %v", err)
	}
}
