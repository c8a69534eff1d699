//go:build !kernel

package lvmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/lvmfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func (d *daemon) serving() bool {
	r, err := healthpb.NewHealthClient(d.conn).Check(d.t.Context(), &healthpb.HealthCheckRequest{Service: lvmdv1.LVMD_ServiceDesc.ServiceName})
	return err == nil && r.GetStatus() == healthpb.HealthCheckResponse_SERVING
}

func TestAnUnresponsiveLVMIsNotServingUntilItAnswers(t *testing.T) {
	m := newMachine(t)
	var unresponsive atomic.Bool
	m.fake.Before = func(context.Context, lvmfake.Op, string) error {
		if unresponsive.Load() {
			return &lvm.CommandError{Command: "x", ExitCode: -1, Message: "killed", Err: lvm.ErrTimedOut}
		}
		return nil
	}
	d := m.start(t, probeNow)
	v := d.create(request("pvc-1", 1))
	if !d.serving() || d.Ready(t.Context()) != nil {
		t.Error("not serving at first")
	}
	unresponsive.Store(true)
	_, err := d.client.CreateVolume(t.Context(), request("pvc-2", 1))
	wantCode(t, err, codes.DeadlineExceeded, names.ReasonCommandTimedOut)
	if d.serving() || d.Ready(t.Context()) == nil {
		t.Error("still serving")
	}
	wantSamples(t, d.Service, map[string]float64{"lvm_responding{group=carve}": 0})
	if c := d.state().GetClasses()[0]; len(c.GetConditions()) != 1 {
		t.Errorf("class %v", c)
	}
	if len(d.list()) != 1 {
		t.Error("the list is wrong")
	}
	d.delete(v.GetId())
	// The second volume's state is unknown: it counts as awaiting removal.
	wantSamples(t, d.Service, map[string]float64{
		"volumes{class=local,state=deleting}": 2, "wipe_backlog_bytes{group=carve}": float64(2 * testExtent),
	})
	commands := m.fake.Commands(lvmfake.OpCreate)
	// Nothing began, so the caller may go elsewhere at once.
	_, err = d.client.CreateVolume(t.Context(), request("pvc-3", 1))
	wantCode(t, err, codes.Unavailable, names.ReasonNotResponding)
	if m.fake.Commands(lvmfake.OpCreate) != commands {
		t.Error("one more command was sent to an LVM that does not answer")
	}
	unresponsive.Store(false)
	waittest.Until(t, "it serves again", d.serving)
	d.checkClean()
	wantSamples(t, d.Service, map[string]float64{
		"lvm_responding{group=carve}": 1, "volumes{class=local,state=deleting}": 0, "wipe_backlog_bytes{group=carve}": 0,
	})
}

// LVM stops answering between the two commands of one expansion: the second is rejected without
// being run.
func TestAnExpansionThatBeganIsInFlightWhenLVMStopsAnswering(t *testing.T) {
	m := newMachine(t)
	var unresponsive atomic.Bool
	m.fake.Before = func(context.Context, lvmfake.Op, string) error {
		if unresponsive.Load() {
			return &lvm.CommandError{Command: "x", ExitCode: -1, Message: "killed", Err: lvm.ErrTimedOut}
		}
		return nil
	}
	var d *daemon
	d = m.start(t, probeNow, func(_ *daemon, o *Options) {
		o.crashPoint = func(point string) {
			if point == "expand: extension zeroed" {
				unresponsive.Store(true)
				_, err := d.client.CreateVolume(t.Context(), request("pvc-2", 1))
				wantCode(t, err, codes.DeadlineExceeded, names.ReasonCommandTimedOut)
			}
		}
	})
	v := d.create(request("pvc-1", 1))
	_, err := d.client.ExpandVolume(t.Context(), expandRequest(v.GetId(), 8))
	wantCode(t, err, codes.DeadlineExceeded, names.ReasonCommandTimedOut)
	unresponsive.Store(false)
	waittest.Until(t, "it serves again", d.serving)
}

func probeNow(_ *daemon, o *Options) { o.probeInterval = time.Millisecond }

func TestACommandThatActedAndFailedIsSeenToHaveActed(t *testing.T) {
	for _, op := range []lvmfake.Op{lvmfake.OpCreate, lvmfake.OpExtend, lvmfake.OpRemove} {
		for _, failure := range []error{lvm.ErrTimedOut, errors.New("something else")} {
			t.Run(fmt.Sprintf("%s that ends with %q", op, failure), func(t *testing.T) {
				m := newMachine(t)
				d := m.start(t, probeNow)
				v := d.create(request("pvc-1", 2))
				var once atomic.Bool
				m.fake.After = func(o lvmfake.Op, _ string) error {
					if o == op && once.CompareAndSwap(false, true) {
						return failure
					}
					return nil
				}
				switch op {
				case lvmfake.OpCreate:
					if _, err := d.client.CreateVolume(t.Context(), request("pvc-2", 3)); err == nil {
						t.Error("no error")
					}
				case lvmfake.OpExtend:
					_, err := d.client.ExpandVolume(t.Context(), &lvmdv1.ExpandVolumeRequest{Id: v.GetId(), RequiredBytes: 5 * testExtent})
					if err == nil {
						t.Error("no error")
					}
					waittest.Until(t, "the new size is seen", func() bool { return d.list()[0].GetSizeBytes() == 5*testExtent })
				default:
					// The deletion below fails instead.
				}
				waittest.Until(t, "it serves", d.serving)
				d.checkModelEventually()
				d.delete(v.GetId())
				d.checkClean()
			})
		}
	}
}

func (d *daemon) checkModelEventually() {
	d.t.Helper()
	waittest.Until(d.t, "nothing is under way", d.isIdle)
	d.checkModel()
}

func TestAnErrorOfTheDeviceDelaysTheWipeAndLosesNothing(t *testing.T) {
	m := newMachine(t)
	var failures atomic.Int32
	d := m.start(t)
	v := d.create(request("pvc-1", 2))
	must.Succeed(t, m.fake.Fill(testGroup, v.GetId(), 7))
	m.fake.BeforeZero = func(string, string, int64, int64) error {
		if failures.Add(1) <= 2 {
			return errors.New("input/output error")
		}
		return nil
	}
	d.delete(v.GetId())
	d.checkClean()
	if failures.Load() < 3 {
		t.Errorf("%d attempts", failures.Load())
	}
}

func TestAJournalThatCannotBeWrittenMeansAnErrorAndNoEffect(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	v := d.create(request("pvc-1", 1))
	d.journal.Close()
	_, err := d.client.CreateVolume(t.Context(), request("pvc-2", 1))
	wantCode(t, err, codes.Unavailable, "")
	_, err = d.client.DeleteVolume(t.Context(), &lvmdv1.DeleteVolumeRequest{Id: v.GetId()})
	wantCode(t, err, codes.Unavailable, "")
	if got := d.list(); len(got) != 1 || d.available() != testTotal-1 || m.fake.Commands(lvmfake.OpCreate) != 1 {
		t.Errorf("list %v, available %d, %d creates", got, d.available(), m.fake.Commands(lvmfake.OpCreate))
	}
	if err := m.fake.Mount(testGroup, v.GetId()); err != nil {
		t.Errorf("the volume is not given back: %v", err)
	}
	d.kill()
}

func TestADamagedJournalIsMovedAsideAndRebuilt(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	fs, raw := d.create(fsRequest("pvc-fs", 8, "ext4")), d.create(request("pvc-raw", 1))
	half := d.create(fsRequest("pvc-half", 8, "ext4"))
	path := filepath.Join(m.state, "journal.db")
	m.untagged(t, half.GetId())
	d.stop()
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	m.mu.Lock()
	delete(m.formatted, half.GetDevicePath())
	m.mu.Unlock()
	for _, c := range []struct {
		name   string
		damage func() error
	}{
		{"lost", func() error { return os.Remove(path) }},
		{"garbage", func() error { return os.WriteFile(path, []byte(strings.Repeat("garbage!", 8192)), 0o600) }},
		{"cut off", func() error { return os.WriteFile(path, whole[:2*4096+100], 0o600) }},
		{"cut off within its head", func() error { return os.WriteFile(path, whole[:5000], 0o600) }},
		{"empty", func() error { return os.WriteFile(path, nil, 0o600) }},
		{"with overwritten pages", func() error {
			b := append([]byte(nil), whole...)
			for i := 2 * 4096; i < len(b); i++ {
				b[i] = 0xff
			}
			return os.WriteFile(path, b, 0o600)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			must.Succeed(t, c.damage())
			d := m.start(t)
			if got := d.create(fsRequest("pvc-fs", 8, "ext4")); got.GetId() != fs.GetId() || got.GetState() != lvmdv1.VolumeState_VOLUME_STATE_READY {
				t.Errorf("file system: %v", got)
			}
			if got := d.create(request("pvc-raw", 1)); got.GetId() != raw.GetId() {
				t.Errorf("raw: %v", got)
			}
			got, err := d.client.GetVolume(t.Context(), &lvmdv1.GetVolumeRequest{Name: "pvc-half"})
			if err != nil || got.GetVolume().GetState() != lvmdv1.VolumeState_VOLUME_STATE_CREATING {
				t.Errorf("unfinished: %v, error %v", got, err)
			}
			d.stop()
		})
	}
	d = m.start(t)
	_, err = d.client.CreateVolume(t.Context(), fsRequest("pvc-half", 8, "ext4"))
	wantCode(t, err, codes.FailedPrecondition, names.ReasonVolumeLeftAlone)
	m.mu.Lock()
	if _, formatted := m.formatted[half.GetDevicePath()]; formatted {
		t.Error("it is formatted again")
	}
	m.mu.Unlock()
	aside, err := filepath.Glob(path + ".damaged-*")
	if err != nil || len(aside) == 0 {
		t.Errorf("moved aside: %v, error %v", aside, err)
	}
}

func TestTheJournalStaysSmallOverManyCycles(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	cycles := 4000
	if os.Getenv("CARVE_SOAK") != "" {
		cycles = 100_000
	}
	for i := range cycles {
		r := request(fmt.Sprintf("pvc-%d", i), 1)
		// The removal may lag behind: deleted volumes take space until then.
		waittest.Until(t, "there is space", func() bool {
			_, err := d.client.CreateVolume(t.Context(), r)
			if err != nil && status.Code(err) != codes.ResourceExhausted {
				t.Fatal(err)
			}
			return err == nil
		})
		must.Get(d.client.DeleteVolume(t.Context(), &lvmdv1.DeleteVolumeRequest{Name: r.GetName()}))(t)
	}
	if n := m.fake.Commands(lvmfake.OpScan); n > 1 {
		t.Errorf("%d scans", n)
	}
	d.checkClean()
	// At most as many volumes as the group has extents existed at once.
	if size := d.journal.Size(); size > 256<<10 {
		t.Errorf("%d bytes", size)
	}
}

func TestAKilledCommandStopsNoOtherOperationWhileLVMAnswers(t *testing.T) {
	m := newMachine(t)
	m.config += "- {name: beside, volumeGroup: carve}\n"
	d := m.start(t, func(_ *daemon, o *Options) { o.probeInterval = time.Hour })
	var killed atomic.Bool
	m.fake.Before = func(_ context.Context, op lvmfake.Op, _ string) error {
		if op == lvmfake.OpCreate && killed.CompareAndSwap(false, true) {
			return &lvm.CommandError{Command: "lvcreate", ExitCode: -1, Message: "killed", Err: lvm.ErrTimedOut}
		}
		return nil
	}
	_, err := d.client.CreateVolume(t.Context(), request("a", 1))
	wantCode(t, err, codes.DeadlineExceeded, names.ReasonCommandTimedOut)
	r := request("b", 1)
	r.DeviceClass = "beside"
	d.delete(d.create(r).GetId())
	d.delete(d.create(request("a", 1)).GetId())
	if got := d.class().GetConditions(); len(got) > 0 {
		t.Errorf("conditions %v", got)
	}
	d.checkClean()
}
