//go:build !kernel

package lvmd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"

	"github.com/carve-csi/carve/api/conditions"
	"github.com/carve-csi/carve/api/config"
	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/layout"
	"github.com/carve-csi/carve/pkg/lvm/lvmfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

const layoutClasses = `
- {name: linear, default: true, volumeGroup: carve}
- {name: striped, volumeGroup: carve, type: striped, stripes: 2}
- {name: all, volumeGroup: carve, type: striped, stripes: all}
- {name: raid1, volumeGroup: carve, type: raid1}
- {name: raid10, volumeGroup: carve, type: raid10, stripes: 2}
- {name: raid5, volumeGroup: carve, type: raid5, stripes: 2}
- {name: raid6, volumeGroup: carve, type: raid6, stripes: 3, reserve: 8Mi}
`

func newDisks(t *testing.T, extents ...int64) *machine {
	t.Helper()
	m := newMachine(t)
	m.fake.RemoveGroup(testGroup)
	m.fake.AddGroupOf(testGroup, testExtent, extents...)
	m.config = layoutClasses
	return m
}

func (d *daemon) classNamed(name string) *lvmdv1.DeviceClass {
	d.t.Helper()
	for _, c := range d.state().GetClasses() {
		if c.GetName() == name {
			return c
		}
	}
	d.t.Fatalf("class %s is not offered", name)
	return nil
}

func inClass(r *lvmdv1.CreateVolumeRequest, class string) *lvmdv1.CreateVolumeRequest {
	r.DeviceClass = class
	return r
}

func TestEachLayoutReportsItsFreeSpaceAndUnit(t *testing.T) {
	d := newDisks(t, 10, 12, 14, 16, 18).start(t)
	for _, c := range []struct {
		class                           string
		total, available, largest, unit int64
		// The group's extents that a unit takes, and a volume in addition.
		unitCost, volumeCost int64
	}{
		{"linear", 70, 70, 70, 1, 1, 0},
		{"striped", 70, 70, 32, 2, 2, 0},
		{"all", 50, 50, 50, 5, 5, 0},
		{"raid1", 34, 34, 15, 1, 2, 2},
		{"raid10", 32, 32, 22, 2, 4, 4},
		{"raid5", 44, 44, 26, 2, 3, 3},
		// The reserve and the bookkeeping take at most 2 of the smallest device's 10 extents: 70-2
		// over 5 devices are 13, but one device has 10.
		{"raid6", 27, 27, 27, 3, 5, 5},
	} {
		r := d.classNamed(c.class)
		got := []int64{r.GetTotalBytes(), r.GetAvailableBytes(), r.GetMaximumVolumeSizeBytes(), r.GetAllocationUnitBytes(), r.GetMinimumVolumeSizeBytes(),
			r.GetUnitCostBytes(), r.GetVolumeCostBytes()}
		for i := range got {
			got[i] /= testExtent
		}
		if want := []int64{c.total, c.available, c.largest, c.unit, c.unit, c.unitCost, c.volumeCost}; !slices.Equal(got, want) {
			t.Errorf("%s: total, available, maximum, unit, minimum, costs %v, want %v", c.class, got, want)
		}
		if len(r.GetConditions()) != 0 {
			t.Errorf("%s: %v", c.class, r.GetConditions())
		}
	}
}

func TestSizesAreRoundedUpToTheUnitOfTheLayout(t *testing.T) {
	d := newDisks(t, 10, 10, 10, 10, 10).start(t)
	v := d.create(inClass(request("pvc-1", 4), "raid6"))
	if got := v.GetSizeBytes() / testExtent; got != 6 {
		t.Errorf("%d extents, want 6", got)
	}
	r := inClass(request("pvc-2", 4), "raid6")
	r.LimitBytes = 5 * testExtent
	_, err := d.client.CreateVolume(t.Context(), r)
	wantCode(t, err, codes.OutOfRange, names.ReasonSizeOutOfRange)
	resp, err := d.client.ExpandVolume(t.Context(), expandRequest(v.GetId(), 7))
	if err != nil || resp.GetVolume().GetSizeBytes() != 9*testExtent {
		t.Errorf("%v, error %v", resp, err)
	}
}

func TestMakingAndGrowingOneOfAnyLayoutTakesOneCommandAndNoScan(t *testing.T) {
	m := newDisks(t, 20, 20, 20, 20, 20)
	d := m.start(t)
	for i, class := range []string{"striped", "raid1", "raid10", "raid5", "raid6", "linear"} {
		scans := m.fake.Commands(lvmfake.OpScan)
		v := d.create(inClass(fsRequest("pvc-"+class, 3, "ext4"), class))
		if _, err := d.client.ExpandVolume(t.Context(), expandRequest(v.GetId(), 7)); err != nil {
			t.Fatalf("%s: %v", class, err)
		}
		if n := m.fake.Commands(lvmfake.OpCreate); n != i+1 {
			t.Errorf("%s: %d creates", class, n)
		}
		d.delete(v.GetId())
		waittest.Until(t, "it is gone", func() bool { return d.isIdle() && len(d.list()) == 0 })
		if n := m.fake.Commands(lvmfake.OpScan); n != scans {
			t.Errorf("%s: %d scans", class, n-scans)
		}
		d.checkModel()
	}
}

func TestVolumesAdmittedTogetherDoNotCollide(t *testing.T) {
	d := newDisks(t, 16, 16, 16, 16).start(t)
	errs := make(chan error)
	for i := range 8 {
		go func() {
			_, err := d.client.CreateVolume(t.Context(), inClass(request(fmt.Sprintf("pvc-%d", i), 7), "raid1"))
			errs <- err
		}()
	}
	made := 0
	for range 8 {
		if err := <-errs; err == nil {
			made++
		} else if status.Code(err) != codes.ResourceExhausted {
			t.Error(err)
		}
	}
	// Each takes 8 extents of two devices: 64 extents hold 4.
	if made != 4 {
		t.Errorf("%d were made, want 4", made)
	}
	d.checkModel()
	if r := d.classNamed("linear"); r.GetAvailableBytes() != 0 {
		t.Errorf("%d are left", r.GetAvailableBytes())
	}
}

// lvmd must not let LVM choose instead: LVM may put two images on one device.
func TestNoCommandIsRunWhenThePlaceOfAVolumeWasTaken(t *testing.T) {
	m := newDisks(t, 10, 10)
	held, release := make(chan struct{}), make(chan struct{})
	var holds atomic.Bool
	m.fake.Before = func(_ context.Context, op lvmfake.Op, _ string) error {
		if op == lvmfake.OpCreate && holds.CompareAndSwap(true, false) {
			close(held)
			<-release
		}
		return nil
	}
	d := m.start(t)
	grows := d.create(inClass(request("pvc-1", 1), "raid1"))
	holds.Store(true)
	errs := make(chan error, 3)
	go func() {
		_, err := d.client.CreateVolume(t.Context(), inClass(request("pvc-2", 1), "linear"))
		errs <- err
	}()
	<-held
	go func() {
		_, err := d.client.CreateVolume(t.Context(), inClass(request("pvc-3", 3), "raid1"))
		errs <- err
	}()
	waiting := func(n int) func() bool { return func() bool { return d.groups.Named(testGroup).Queue().Waiting == n } }
	waittest.Until(t, "a creation waits", waiting(1))
	go func() {
		_, err := d.client.ExpandVolume(t.Context(), expandRequest(grows.GetId(), 3))
		errs <- err
	}()
	waittest.Until(t, "a growth waits", waiting(2))
	disk := must.Get(m.fake.Scan(t.Context(), []string{testGroup}))(t)[0].Devices[1].Path
	must.Succeed(t, m.fake.Create(t.Context(), lvm.CreateOptions{
		Group: testGroup, Volume: "theirs", Extents: 7, On: []layout.Share{{Device: disk, Extents: 7}},
	}))
	close(release)
	refused := 0
	for range 3 {
		if err := <-errs; err != nil {
			wantCode(t, err, codes.ResourceExhausted, names.ReasonNoSpace)
			refused++
		}
	}
	if creates, extends := m.fake.Commands(lvmfake.OpCreate), m.fake.Commands(lvmfake.OpExtend); refused != 2 || creates != 3 || extends != 0 {
		t.Errorf("%d were refused, want 2; %d lvcreate and %d lvextend were run, want 3 and none", refused, creates, extends)
	}
	d.checkModel()
}

func TestRAIDReportsWhatBecomesOfItsImages(t *testing.T) {
	m := newDisks(t, 16, 16, 16)
	d := m.start(t)
	v := d.create(inClass(request("pvc-1", 4), "raid5"))
	conditions := func() string {
		var all []string
		for _, c := range d.list()[0].GetConditions() {
			all = append(all, c.GetType())
		}
		return strings.Join(all, " ")
	}
	for _, c := range []struct {
		status lvm.RAIDStatus
		want   string
	}{
		{lvm.RAIDStatus{Images: 3, Behind: 1, Action: "recover"}, "OutOfSync"},
		{lvm.RAIDStatus{Images: 3, Failed: 1, Action: "idle"}, "Degraded"},
		{lvm.RAIDStatus{Images: 3, Mismatches: 8, Action: "idle"}, "LVMBusy"},
		{lvm.RAIDStatus{Images: 3, Action: "check"}, ""},
	} {
		m.fake.SetRAIDStatus(testGroup, v.GetId(), c.status)
		waittest.Until(t, "conditions "+c.want, func() bool { return conditions() == c.want })
		metric, reported := "unhealthy_volumes{class=raid5,condition="+c.want+"}", samples(t, d.Service)
		if c.want != "" && reported[metric] != 1 {
			t.Errorf("%s is %v", metric, reported[metric])
		}
	}
}

func TestAGroupOfTooFewDevicesIsNamed(t *testing.T) {
	m := newDisks(t, 16, 16)
	d := m.start(t)
	if c := d.classNamed("raid5"); len(c.GetConditions()) != 1 || c.GetConditions()[0].GetType() != "VolumeGroupUnfit" ||
		!strings.Contains(c.GetConditions()[0].GetMessage(), "has 2 devices") || c.GetAvailableBytes() != 0 || c.GetMaximumVolumeSizeBytes() != 0 {
		t.Errorf("class %v", c)
	}
}

func TestAGroupThatIsUnfitForALayoutStopsItsClassOnly(t *testing.T) {
	for class, want := range map[string]string{
		"type: raid1": `lvmd.yaml:4:39: deviceClasses[0].type: "raid1": volume group small has extents of less than 512 KiB`,
		"type: striped, stripes: 2, stripeSize: 512Ki": `deviceClasses[0].stripeSize: "524288": more than an extent of volume group small, which has 256Ki`,
	} {
		m := newMachine(t)
		m.fake.AddGroupOf("small", 256<<10, 128, 128)
		fit := "- {name: local, default: true, volumeGroup: carve}\n"
		unfit := "- {name: a, volumeGroup: small, " + class + "}\n"
		m.config = unfit + fit
		if _, err := m.tryStart(t, func(_ *daemon, o *Options) { o.Changed = true }); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a change to it: error %v, want %s", err, want)
		}
		d := m.start(t)
		if why := d.message(conditions.VolumeGroupUnfit); !strings.Contains(why, want) {
			t.Errorf("the class says %q, want %s", why, want)
		}
		if c := d.class(); c.GetAvailableBytes() != 0 || c.GetMaximumVolumeSizeBytes() != 0 {
			t.Errorf("class %v", c)
		}
		_, err := d.client.CreateVolume(t.Context(), inClass(request("pvc-1", 1), "a"))
		if wantCode(t, err, codes.ResourceExhausted, names.ReasonNoSpace); !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %s", err, want)
		}
		d.delete(d.create(inClass(request("pvc-2", 1), "local")).GetId())
		var problems config.Problems
		if err := d.Reload(parse(t, unfit+"- {name: local, default: true, volumeGroup: carve, reserve: 5%}\n")); !errors.As(err, &problems) {
			t.Errorf("a reload: error %v, want %s", err, want)
		}
		m.fake.SetExtentSize("small", 1<<20)
		waittest.Until(t, "the class can be used", func() bool { return len(d.class().GetConditions()) == 0 })
		d.create(inClass(request("pvc-1", 1), "a"))
	}
}

func TestVolumesOfAClassThatDoesNotFitAreServed(t *testing.T) {
	m := newDisks(t, 16, 16)
	m.config = "- {name: striped, default: true, volumeGroup: carve, type: striped, stripes: 2}\n"
	d := m.start(t)
	v := d.create(request("pvc-1", 4))
	d.stop()
	m.config = "- {name: striped, default: true, volumeGroup: carve, type: striped, stripes: 2, stripeSize: 8Mi}\n"
	d = m.start(t)
	if got := d.named(v.GetId()); got.GetDevicePath() == "" || len(got.GetConditions()) > 0 || d.message(conditions.VolumeGroupUnfit) == "" {
		t.Errorf("volume %v of class %v", got, d.class())
	}
	resp, err := d.client.ExpandVolume(t.Context(), expandRequest(v.GetId(), 6))
	if err != nil || resp.GetVolume().GetSizeBytes() != 6*testExtent {
		t.Errorf("%v, error %v", resp, err)
	}
	d.delete(v.GetId())
	waittest.Until(t, "it is gone", func() bool { return len(m.volumeNames(t)) == 0 })
	d.checkModel()
}

func TestAVolumeKeepsItsLayoutWhenItsClassChanges(t *testing.T) {
	m := newDisks(t, 16, 16, 16)
	d := m.start(t)
	v := d.create(inClass(request("pvc-1", 4), "striped"))
	d.stop()
	m.config = "- {name: striped, default: true, volumeGroup: carve, type: striped, stripes: 3, stripeSize: 128Ki}\n"
	d = m.start(t)
	resp, err := d.client.ExpandVolume(t.Context(), expandRequest(v.GetId(), 5))
	if err != nil || resp.GetVolume().GetSizeBytes() != 6*testExtent {
		t.Errorf("%v, error %v", resp, err)
	}
	d.delete(v.GetId())
	waittest.Until(t, "all space is back", func() bool { return d.available() == 48 })
	d.checkModel()
}

const allClasses = `
- {name: all, default: true, volumeGroup: carve, type: striped, stripes: all}
- {name: linear, volumeGroup: carve}
`

func TestStripesOnAllDevicesFollowTheDevicesOfTheGroup(t *testing.T) {
	m := newDisks(t, 10, 12)
	m.config = allClasses
	d := m.start(t)
	// check also wants a volume of the largest size to fit and no larger one.
	check := func(total, largest, unit int64) {
		t.Helper()
		want := []int64{total, largest, largest, unit, unit, unit}
		var got []int64
		waittest.Until(t, fmt.Sprintf("total, available, maximum, unit, minimum and cost are %v", want), func() bool {
			r := d.classNamed("all")
			got = []int64{r.GetTotalBytes(), r.GetAvailableBytes(), r.GetMaximumVolumeSizeBytes(), r.GetAllocationUnitBytes(), r.GetMinimumVolumeSizeBytes(), r.GetUnitCostBytes()}
			for i := range got {
				got[i] /= testExtent
			}
			return slices.Equal(got, want)
		}, func() any { return got })
		_, err := d.client.CreateVolume(t.Context(), request("pvc-more", largest+1))
		wantCode(t, err, codes.ResourceExhausted, names.ReasonNoSpace)
		d.delete(d.create(request("pvc-most", largest)).GetId())
		waittest.Until(t, "its space is back", func() bool { return d.available() == largest })
	}
	lies := func(v *lvmdv1.Volume, extents int64, want layout.Layout) {
		t.Helper()
		got := must.Get(m.fake.Placement(testGroup))(t).Volumes[v.GetId()]
		if got.Layout != want || got.Size != extents*testExtent {
			t.Errorf("%s has %d bytes and is %+v, want %d extents, %+v", v.GetName(), got.Size, got.Layout, extents, want)
		}
	}
	linear, two := layout.Layout{Type: layout.Linear}, layout.Layout{Type: layout.Striped, Stripes: 2, StripeSize: 64 << 10}
	four := two
	four.Stripes = 4
	grow := func(v *lvmdv1.Volume, extents int64) {
		t.Helper()
		if _, err := d.client.ExpandVolume(t.Context(), expandRequest(v.GetId(), extents)); err != nil {
			t.Error(err)
		}
	}

	check(20, 20, 2)
	m.fake.TakeDevice(testGroup)
	check(10, 10, 1)
	first := d.create(request("pvc-1", 3))
	lies(first, 3, linear)

	m.fake.AddDevice(testGroup, 12)
	check(20, 14, 2)
	second := d.create(request("pvc-2", 3))
	lies(second, 4, two)
	grow(first, 8) // of the free 5 and 10
	lies(first, 8, linear)
	grow(second, 5)
	lies(second, 6, two)

	m.fake.AddDevice(testGroup, 20)
	m.fake.AddDevice(testGroup, 20)
	check(40, 16, 4) // of the free 4, 4, 20 and 20
	grow(second, 20)
	lies(second, 20, two)
	third := d.create(request("pvc-3", 16))
	lies(third, 16, four)
	lies(first, 8, linear)

	m.fake.AddDevice(testGroup, 40)
	waittest.Until(t, "the class counts the device", func() bool { return d.classNamed("all").GetAllocationUnitBytes() == 5*testExtent })
	if n := d.available(); n != 0 {
		t.Errorf("%d extents are available, want none", n)
	}
	d.checkModel()
}

func TestAClassThatComesLaterKnowsWhatIsFreeWhere(t *testing.T) {
	m := newDisks(t, 16, 16, 16)
	m.config = "- {name: linear, default: true, volumeGroup: carve}\n"
	d := m.start(t)
	d.create(request("pvc-1", 10)) // LVM chooses the device
	scans := m.fake.Commands(lvmfake.OpScan)
	c := must.Get(config.Parse("lvmd.yaml", []byte("apiVersion: carve.csi.local/v1\nkind: LvmdConfig\ndeviceClasses:\n"+m.config+
		"- {name: raid5, volumeGroup: carve, type: raid5, stripes: 2}\n")))(t)
	must.Succeed(t, d.Reload(c))
	if got := d.classNamed("raid5").GetMaximumVolumeSizeBytes() / testExtent; got != 10 {
		t.Errorf("the largest volume has %d extents, want 10: two stripes of what 16 less 10 and bookkeeping leave", got)
	}
	if n := m.fake.Commands(lvmfake.OpScan); n != scans {
		t.Errorf("%d scans", n-scans)
	}
	d.create(inClass(request("pvc-2", 10), "raid5"))
	d.checkModel()
}

func TestNoLayoutReportsMoreThanItHolds(t *testing.T) {
	fewHistories(t)
	rapid.Check(t, func(r *rapid.T) {
		sizes := rapid.SliceOfN(rapid.Int64Range(2, 16), 1, 6).Draw(r, "devices")
		m := newDisks(t, sizes...)
		classes := []string{"linear", "striped", "all", "raid1", "raid10", "raid5", "raid6"}
		if rapid.Bool().Draw(r, "all devices only") {
			// lvmd then chooses devices only while several exist.
			m.config, classes = allClasses, []string{"linear", "all"}
		}
		d := m.start(t)
		defer d.stop()
		volumes, admins, next := map[string]*lvmdv1.Volume{}, 0, 0
		for range rapid.IntRange(3, 12).Draw(r, "steps") {
			waittest.Until(t, "nothing is under way", d.isIdle)
			d.checkModel()
			class := d.classNamed(rapid.SampledFrom(classes).Draw(r, "class"))
			unit, most := class.GetAllocationUnitBytes(), class.GetMaximumVolumeSizeBytes()
			next++
			name := fmt.Sprintf("pvc-%d", next)
			switch rapid.SampledFrom([]string{"create", "create", "maximum", "expand", "delete", "administer", "add a device"}).Draw(r, "what") {
			case "maximum":
				_, err := d.client.CreateVolume(t.Context(), inClass(request(name, most/testExtent+1), class.GetName()))
				if status.Code(err) != codes.ResourceExhausted {
					r.Fatalf("%s: more than %d: %v", class.GetName(), most, err)
				}
				if most > 0 {
					volumes[name] = d.create(inClass(request(name, most/testExtent), class.GetName()))
				}
			case "create":
				if most == 0 {
					continue
				}
				size := unit * rapid.Int64Range(1, most/unit).Draw(r, "units")
				volumes[name] = d.create(inClass(request(name, size/testExtent), class.GetName()))
				waittest.Until(t, "nothing is under way", d.isIdle)
				if now := d.classNamed(class.GetName()).GetAvailableBytes(); now > class.GetAvailableBytes()-size {
					r.Fatalf("%s: %d available, then %d after %d", class.GetName(), class.GetAvailableBytes(), now, size)
				}
			case "expand", "delete":
				if len(volumes) == 0 {
					continue
				}
				v := volumes[rapid.SampledFrom(slices.Sorted(maps.Keys(volumes))).Draw(r, "volume")]
				if rapid.Bool().Draw(r, "expand") {
					_, err := d.client.ExpandVolume(t.Context(), expandRequest(v.GetId(), v.GetSizeBytes()/testExtent+rapid.Int64Range(1, 9).Draw(r, "more")))
					if err != nil && !refusesSize(err) {
						r.Fatal(err)
					}
				} else {
					d.delete(v.GetId())
					delete(volumes, v.GetName())
				}
			case "add a device":
				m.fake.AddDevice(testGroup, rapid.Int64Range(1, 16).Draw(r, "extents"))
			case "administer":
				admins++
				_ = m.fake.Create(t.Context(), lvm.CreateOptions{
					Group: testGroup, Volume: fmt.Sprintf("admins-%d", admins), Extents: 2,
					Layout: rapid.SampledFrom([]layout.Layout{{}, {Type: layout.Striped, Stripes: 2}}).Draw(r, "layout"),
				})
			}
			if t.Failed() {
				r.FailNow()
			}
		}
	})
}
