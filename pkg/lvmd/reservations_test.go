//go:build !kernel

package lvmd

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/carve-csi/carve/api/leadership"
	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/lvm/lvmfake"
	"github.com/carve-csi/carve/pkg/must"
)

// ofPod makes a request one for a volume that a Pod defines itself.
func ofPod(r *lvmdv1.CreateVolumeRequest) *lvmdv1.CreateVolumeRequest {
	r.Owner = &lvmdv1.Owner{PodNamespace: "default", PodName: "builder", PodUid: "uid-builder"}
	return r
}

// reserve replaces what the claims of the cluster "c1" have reserved.
func (d *daemon) reserve(reserved ...*lvmdv1.Reservation) {
	d.t.Helper()
	must.Get(d.controller.SetReservations(d.t.Context(), &lvmdv1.SetReservationsRequest{ClusterId: "c1", Reservations: reserved}))(d.t)
}

func reservation(name, class string, extents int64) *lvmdv1.Reservation {
	return &lvmdv1.Reservation{Name: name, DeviceClass: class, RequiredBytes: extents * testExtent}
}

// refused asks for a volume that there is no space for, and returns why.
func (d *daemon) refused(r *lvmdv1.CreateVolumeRequest) string {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), time.Minute) // one that is admitted may wait
	defer cancel()
	_, err := d.client.CreateVolume(ctx, r)
	if err == nil {
		d.t.Fatalf("%s is created, want no space for it", r.GetName())
	}
	wantCode(d.t, err, codes.ResourceExhausted, names.ReasonNoSpace)
	return err.Error()
}

func TestAVolumeOfAPodLeavesWhatClaimsHaveReserved(t *testing.T) {
	d := newMachine(t).start(t)
	d.reserve(reservation("pvc-1", "", 30), reservation("pvc-2", "local", 10), reservation("pvc-3", "no such class", 10))
	if why := d.refused(ofPod(request("csi-1", 25))); !strings.Contains(why, "beside 2 volumes that claims have reserved space for") ||
		!strings.Contains(why, "96Mi available") {
		t.Errorf("refused with %q", why)
	}
	d.create(ofPod(request("csi-1", 24)))
	if n := d.available(); n != 40 {
		t.Errorf("%d extents are reported, want all that is free", n)
	}
	d.create(request("pvc-1", 30))
	// Its reservation counts no more, whether it was taken back or not.
	d.refused(ofPod(request("csi-2", 1)))
	d.reserve(reservation("pvc-1", "", 30), reservation("pvc-2", "", 9))
	d.create(ofPod(request("csi-2", 1)))
	d.refused(ofPod(request("csi-3", 1)))
	d.create(request("pvc-2", 9))
	d.checkModel()
}

func TestWhichCallersReservationsBind(t *testing.T) {
	d := newMachine(t).start(t)
	d.reserve(reservation("pvc-1", "", testTotal))
	d.refused(ofPod(request("csi-1", 1)))
	// The controller knows what it does with what was reserved.
	v := d.create(request("pvc-2", 4))
	if _, err := d.client.ExpandVolume(t.Context(), &lvmdv1.ExpandVolumeRequest{Id: v.GetId(), RequiredBytes: 8 * testExtent}); err != nil {
		t.Errorf("a volume of a claim cannot grow: %v", err)
	}
	// What cannot be had any more keeps nothing from others.
	d.create(ofPod(request("csi-1", 1)))
	d.checkModel()
}

func TestAVolumeOfAPodIsThereWhateverIsReservedLater(t *testing.T) {
	d := newMachine(t).start(t)
	v := d.create(ofPod(request("csi-1", 60)))
	d.reserve(reservation("pvc-1", "", 4))
	if again := d.create(ofPod(request("csi-1", 60))); again.GetId() != v.GetId() {
		t.Errorf("it is %s now, and was %s", again.GetId(), v.GetId())
	}
}

func TestWhenReservationsEnd(t *testing.T) {
	for what, end := range map[string]func(*machine, *daemon) *daemon{
		"when all are replaced": func(_ *machine, d *daemon) *daemon { d.reserve(); return d },
		"after their time": func(_ *machine, d *daemon) *daemon {
			d.reservationsLast = -time.Second
			d.reserve(reservation("pvc-1", "", testTotal))
			return d
		},
		"with lvmd": func(m *machine, d *daemon) *daemon { d.stop(); return m.start(t) },
	} {
		t.Run(what, func(t *testing.T) {
			m := newMachine(t)
			d := m.start(t)
			d.reserve(reservation("pvc-1", "", testTotal))
			d.refused(ofPod(request("csi-1", testTotal)))
			d = end(m, d)
			d.create(ofPod(request("csi-1", testTotal)))
		})
	}
}

func TestReservationsOfSeveralClustersCountTogether(t *testing.T) {
	d := newMachine(t).start(t)
	d.reserve(reservation("pvc-1", "", 30))
	other := &lvmdv1.SetReservationsRequest{ClusterId: "c2", Reservations: []*lvmdv1.Reservation{reservation("pvc-2", "", 30)}}
	must.Get(d.controller.SetReservations(t.Context(), other))(t)
	d.refused(ofPod(request("csi-1", 5)))
	d.create(ofPod(request("csi-1", 4)))
	d.reserve()
	d.refused(ofPod(request("csi-2", 31)))
	d.create(ofPod(request("csi-2", 30)))
}

func TestReservationsThatAreRefused(t *testing.T) {
	d := newMachine(t).start(t)
	many := make([]*lvmdv1.Reservation, maxReservations+1)
	for i := range many {
		many[i] = reservation("pvc-1", "", 1)
	}
	for field, list := range map[string][]*lvmdv1.Reservation{
		"reservations[1].name":           {reservation("pvc-1", "", 1), reservation("", "", 1)},
		"reservations[0].required_bytes": {reservation("pvc-1", "", 0)},
		"reservations:":                  many,
	} {
		_, err := d.controller.SetReservations(t.Context(), &lvmdv1.SetReservationsRequest{ClusterId: "c1", Reservations: list})
		wantCode(t, err, codes.InvalidArgument, names.ReasonInvalidField)
		if !strings.Contains(err.Error(), field) {
			t.Errorf("refused with %v, want %s named", err, field)
		}
	}
	d.create(ofPod(request("csi-1", testTotal)))
}

func TestAnEarlierLeaderSetsNoReservations(t *testing.T) {
	d := newMachine(t).start(t)
	by := func(transitions int64, reserved ...*lvmdv1.Reservation) error {
		ctx := leadership.With(t.Context(), leadership.Leadership{Cluster: "c1", Lease: 1, Transitions: transitions})
		_, err := d.controller.SetReservations(ctx, &lvmdv1.SetReservationsRequest{ClusterId: "c1", Reservations: reserved})
		return err
	}
	must.Succeed(t, by(2))
	wantCode(t, by(1, reservation("pvc-1", "", testTotal)), codes.FailedPrecondition, names.ReasonLeaderSuperseded)
	d.create(ofPod(request("csi-1", testTotal)))
}

// The largest volume that a Pod can have beside a reservation is made, and the claim gets its
// volume all the same.
func TestReservationsCountAsTheirLayoutTakesSpace(t *testing.T) {
	for class, volumes := range map[string]struct {
		reserved []int64
		largest  int64
	}{
		"linear": {[]int64{40}, 30}, "striped": {[]int64{20, 20}, 8}, "raid1": {[]int64{10, 10}, 2}, "raid10": {[]int64{8}, 16},
		"raid5": {[]int64{12}, 12}, "raid6": {[]int64{9}, 24}, "thin": {[]int64{40}, 20},
	} {
		t.Run(class, func(t *testing.T) {
			m, name := newDisks(t, 14, 14, 14, 14, 14), class
			if class == "thin" {
				m, name = thinMachine(t, "size: 240Mi, overprovisioning: 1"), ""
			}
			d := m.start(t)
			var reserved []*lvmdv1.Reservation
			for i, extents := range volumes.reserved {
				reserved = append(reserved, reservation(fmt.Sprintf("pvc-%d", i), name, extents))
			}
			d.reserve(reserved...)
			most := volumes.largest + 1 // rounded up to whole stripes
			d.refused(ofPod(inClass(request("csi-1", most), name)))
			d.create(ofPod(inClass(request("csi-1", volumes.largest), name)))
			for i, extents := range volumes.reserved {
				d.create(inClass(request(fmt.Sprintf("pvc-%d", i), extents), name))
			}
			d.checkModel()
		})
	}
}

// What is being created is reserved by lvmd itself, for Pods' volumes as for all others.
func TestAVolumeOfAPodLeavesWhatIsBeingCreated(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	begun, held := make(chan struct{}), make(chan struct{})
	goOn := sync.OnceFunc(func() { close(held) })
	t.Cleanup(goOn)
	m.fake.Before = func(_ context.Context, op lvmfake.Op, _ string) error {
		if op == lvmfake.OpCreate {
			close(begun)
			<-held
		}
		return nil
	}
	d.reserve(reservation("pvc-1", "", 40), reservation("pvc-2", "", 10))
	done := make(chan error, 1)
	go func() {
		_, err := d.client.CreateVolume(context.Background(), request("pvc-1", 40))
		done <- err
	}()
	<-begun
	d.refused(ofPod(request("csi-1", 15)))
	goOn()
	must.Succeed(t, <-done)
	m.fake.Before = nil
	d.create(ofPod(request("csi-1", 14)))
	d.create(request("pvc-2", 10))
	d.checkModel()
}
