package provision

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/controller/spec"
	"github.com/carve-csi/carve/pkg/fleet"
	"github.com/carve-csi/carve/pkg/scheduler"
)

func connectedView(change func(*lvmdv1.DeviceClass)) *fleet.View {
	class := &lvmdv1.DeviceClass{Name: "local", Default: true}
	if change != nil {
		change(class)
	}
	return &fleet.View{Node: "n1", Connected: true, Classes: map[string]*lvmdv1.DeviceClass{"local": class},
		Volumes: map[string]*lvmdv1.Volume{"vol": {Id: "vol", DeviceClass: "local", FsType: "ext4"}}}
}

func selectedState(t *testing.T) claimState {
	t.Helper()
	mode, carve := storagev1.VolumeBindingWaitForFirstConsumer, "carve"
	s := claimState{
		volume: "pvc-uid-c", waited: time.Second,
		class: &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "carve"}, Provisioner: names.Driver, VolumeBindingMode: &mode},
		claim: &v1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "default", UID: "uid-c", Annotations: map[string]string{volume.AnnSelectedNode: "n1"}},
			Spec: v1.PersistentVolumeClaimSpec{
				StorageClassName: &carve, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
				Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}},
			},
		},
		target: target{name: "n1", view: connectedView(nil), object: &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}},
	}
	var err error
	if s.request, err = spec.ParseClaim(s.claim, s.class); err != nil {
		t.Fatal(err)
	}
	return s
}

func unselected(s *claimState) {
	s.claim.Annotations, s.target = nil, target{}
}

func away(s *claimState) { s.target.view = nil }

func immediately(s *claimState) {
	mode := storagev1.VolumeBindingImmediate
	s.class.VolumeBindingMode = &mode
	s.claim.Annotations = map[string]string{volume.AnnStorageProvisioner: names.Driver}
}

func cloned(s *claimState) {
	s.request.Source = &spec.DataSource{Kind: spec.KindClaim, Name: "golden"}
	s.request.From = &spec.Origin{What: "claim golden", Node: "n1", Source: &lvmdv1.VolumeSource{VolumeId: "vol"}}
}

// Each case is an edge of the diagram in docs/explanation/claims.md.
func TestWhatIsDoneForAClaimDependsOnNothingButItsState(t *testing.T) {
	why := errors.New("because")
	held := []scheduler.Reservation{{Claim: "pod", Node: "n1", Bytes: 1}}
	invalid := &spec.InvalidError{Field: "f", Given: "g", Allowed: "a"}
	for name, test := range map[string]struct {
		state []func(*claimState)
		want  action
		says  string // part of the reason
	}{
		// No node.
		"a claim that just came waits for the scheduler": {[]func(*claimState){unselected},
			action{again: WarnAfter - time.Second, reservation: dropReservation}, ""},
		"one that waits for long is looked at now and then": {[]func(*claimState){unselected, func(s *claimState) { s.waited = WarnAfter }},
			action{again: warnEvery, reservation: dropReservation, rejected: true}, ""},
		"one that no node can ever take is reported": {[]func(*claimState){unselected, func(s *claimState) { s.waited, s.unsatisfiable = WarnAfter, why }},
			action{again: warnEvery, reservation: dropReservation, rejected: true}, "because"},
		"the node of a Pod that is there already is selected": {[]func(*claimState){unselected, func(s *claimState) { s.placedOn = "n2" }},
			action{do: selectPlaced, node: "n2"}, ""},
		"but what was left elsewhere is removed first": {[]func(*claimState){unselected, func(s *claimState) { s.placedOn, s.suspects = "n2", []string{"n1"} }},
			action{do: clearSuspects}, ""},
		"what was left on a node is removed before a node is selected": {[]func(*claimState){unselected, func(s *claimState) { s.suspects = []string{"n2"} }},
			action{do: clearSuspects}, ""},
		"immediate binding waits for the PV controller": {[]func(*claimState){immediately, unselected}, action{}, ""},
		"immediate binding selects a node": {[]func(*claimState){unselected, immediately, func(s *claimState) { s.suspects = []string{"n2"} }},
			action{do: place}, ""},
		// Reserved.
		"the selected node is asked": {nil, action{do: create, node: "n1", reservation: renewReservation}, ""},
		"the node that immediate binding selected is asked": {[]func(*claimState){immediately},
			action{do: create, node: "n1", reservation: renewReservation}, ""},
		"another node is asked first for what may be on it": {[]func(*claimState){func(s *claimState) { s.suspects = []string{"n2"} }},
			action{do: clearSuspects, node: "n1"}, ""},
		"another node is asked first with immediate binding, too": {[]func(*claimState){immediately, func(s *claimState) { s.suspects = []string{"n2"} }},
			action{do: clearSuspects, node: "n1"}, ""},
		"a node that is not connected is waited for": {[]func(*claimState){away, func(s *claimState) { s.target.unreachable = time.Second }},
			action{node: "n1", again: RescheduleUnreachable - time.Second, reservation: renewReservation}, ""},
		"whose Pod is not seen is looked at again, whatever is known of its Pods": {[]func(*claimState){func(s *claimState) { s.target.awaitsPod, s.target.shortage = true, &shortage{why, held} }},
			action{node: "n1", again: podPoll, reservation: renewReservation}, ""},
		// Rescheduled.
		"not connected for long": {[]func(*claimState){away, func(s *claimState) { s.target.unreachable = RescheduleUnreachable }},
			action{do: reschedule, node: "n1", reservation: renewReservation}, "not connected"},
		"not connected for long, with a create in flight": {[]func(*claimState){away, func(s *claimState) { s.target.unreachable, s.target.mayHold = RescheduleUnreachable, true }},
			action{node: "n1", again: warnEvery, reservation: renewReservation}, "may have made the volume already"},
		"gone, with a create in flight": {[]func(*claimState){away, func(s *claimState) { s.target.gone, s.target.mayHold = true, true }},
			action{do: reschedule, node: "n1", reservation: renewReservation, gone: true}, "not in the cluster any more"},
		"the node failed": {[]func(*claimState){func(s *claimState) { s.target.leaving = why }},
			action{do: rescheduleLowered, node: "n1", reservation: renewReservation}, "because"},
		"without the device class": {[]func(*claimState){func(s *claimState) { s.request.DeviceClass = "fast" }},
			action{do: reschedule, node: "n1", reservation: renewReservation}, "does not have"},
		"a node that the class excludes": {[]func(*claimState){func(s *claimState) {
			s.class.AllowedTopologies = []v1.TopologySelectorTerm{{MatchLabelExpressions: []v1.TopologySelectorLabelRequirement{{Key: names.TopologyNode, Values: []string{"n2"}}}}}
		}}, action{do: reschedule, node: "n1", reservation: renewReservation}, "allowedTopologies"},
		"the claims of the Pod do not fit together": {[]func(*claimState){func(s *claimState) { s.target.shortage = &shortage{why, held} }},
			action{do: rescheduleLowered, node: "n1", reservation: renewReservation, reserve: held}, "because"},
		// Rejected.
		"a claim that asks for what is not allowed": {[]func(*claimState){func(s *claimState) { s.invalid = invalid }}, action{do: reject}, "f: g"},
		"a file system that the node's medium cannot have": {[]func(*claimState){func(s *claimState) {
			s.request.FileSystem.Type = "btrfs"
			s.target.view = connectedView(func(c *lvmdv1.DeviceClass) { c.Medium = "pmem" })
		}}, action{do: reject}, "persistent memory"},
		// VolumeAttributesClasses.
		"a VolumeAttributesClass that is missing is looked for soon": {[]func(*claimState){func(s *claimState) { s.attributes = notReady("it") }},
			action{again: lookForSoon, reservation: dropReservation, releaseSource: true}, ""},
		"and then its lack is reported": {[]func(*claimState){func(s *claimState) { s.attributes, s.waited = notReady("it"), WarnAfter }},
			action{again: lookForSource, reservation: dropReservation, releaseSource: true}, "waiting for it"},
		"a VolumeAttributesClass with a mistake": {[]func(*claimState){func(s *claimState) { s.attributes = invalid }}, action{do: reject}, "f: g"},
		// Clones.
		"a source that is missing is looked for soon": {[]func(*claimState){cloned, func(s *claimState) { s.request.From, s.source = nil, notReady("it") }},
			action{again: lookForSoon, reservation: dropReservation, releaseSource: true}, ""},
		"and then reported": {[]func(*claimState){cloned, func(s *claimState) { s.request.From, s.source, s.waited = nil, notReady("it"), WarnAfter }},
			action{again: lookForSource, reservation: dropReservation, releaseSource: true}, "waiting for it"},
		"a source that cannot be used": {[]func(*claimState){cloned, func(s *claimState) { s.request.From, s.source = nil, invalid }}, action{do: reject}, "f: g"},
		"a source that could not be read": {[]func(*claimState){cloned, func(s *claimState) { s.request.From, s.source = nil, why }},
			action{do: retry, reservation: dropReservation, releaseSource: true}, "because"},
		"the source's node is selected": {[]func(*claimState){cloned, func(s *claimState) { s.claim.Annotations[volume.AnnSelectedNode] = "n2" }},
			action{do: selectSourceNode, node: "n1"}, ""},
		"a clone is made":                        {[]func(*claimState){cloned}, action{do: create, node: "n1", reservation: renewReservation}, ""},
		"a clone is made with immediate binding": {[]func(*claimState){immediately, cloned}, action{do: create, node: "n1", reservation: renewReservation}, ""},
		"what may be elsewhere of a clone is removed": {[]func(*claimState){cloned, func(s *claimState) { s.suspects = []string{"n2"} }},
			action{do: clearSuspects, node: "n1"}, ""},
		"a clone whose file system differs": {[]func(*claimState){cloned, func(s *claimState) { s.request.FSType = "xfs" }}, action{do: reject}, "another file system"},
		"a source's node is waited for": {[]func(*claimState){cloned, away},
			action{node: "n1", again: RescheduleUnreachable, reservation: renewReservation}, ""},
		"and reported, but never left": {[]func(*claimState){cloned, away, func(s *claimState) { s.target.unreachable = RescheduleUnreachable }},
			action{node: "n1", again: warnEvery, reservation: renewReservation}, "waiting for it"},
		"a source's node that is gone": {[]func(*claimState){cloned, away, func(s *claimState) { s.target.gone = true }},
			action{node: "n1", gone: true, again: warnEvery, reservation: dropReservation, releaseSource: true}, "delete this claim"},
		// Its PersistentVolume exists.
		"it is bound": {[]func(*claimState){func(s *claimState) { s.pv, s.suspects = &v1.PersistentVolume{}, []string{"n2"} }}, action{do: finish}, ""},
		"it is bound, and is being deleted": {[]func(*claimState){func(s *claimState) {
			s.pv, s.claim.Spec.VolumeName, s.claim.DeletionTimestamp = &v1.PersistentVolume{}, s.volume, &metav1.Time{}
		}}, action{do: finish}, ""},
		"the volume that it names does not exist": {[]func(*claimState){func(s *claimState) { s.claim.Spec.VolumeName = s.volume }}, action{}, ""},
		// Gone, or another component's.
		"it is gone": {[]func(*claimState){func(s *claimState) { s.claim, s.pv = nil, &v1.PersistentVolume{} }},
			action{do: abandon, reservation: dropReservation}, ""},
		"it is being deleted": {[]func(*claimState){func(s *claimState) { s.claim.DeletionTimestamp = &metav1.Time{} }},
			action{do: abandon, reservation: dropReservation}, ""},
		"it is bound to another volume": {[]func(*claimState){func(s *claimState) { s.claim.Spec.VolumeName = "other" }},
			action{do: abandon, reservation: dropReservation}, ""},
		"the cache shows it as it was":    {[]func(*claimState){func(s *claimState) { s.stale, s.claim.DeletionTimestamp = true, &metav1.Time{} }}, action{}, ""},
		"its class is not of this driver": {[]func(*claimState){func(s *claimState) { s.class = nil }}, action{}, ""},
		"another provisioner was asked":   {[]func(*claimState){func(s *claimState) { s.claim.Annotations[volume.AnnStorageProvisioner] = "other" }}, action{}, ""},
		"a volume populator makes its volume": {[]func(*claimState){func(s *claimState) {
			group := "example.org"
			s.claim.Spec.DataSourceRef = &v1.TypedObjectReference{APIGroup: &group, Kind: "Dump", Name: "d"}
			s.invalid = invalid
		}}, action{}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := selectedState(t)
			for _, change := range test.state {
				change(&s)
			}
			got := decide(s)
			reason := ""
			if got.why != nil {
				reason = got.why.Error()
			}
			if (test.says == "") != (reason == "") || !strings.Contains(reason, test.says) {
				t.Errorf("the reason is %q, want one with %q", reason, test.says)
			}
			if len(got.reserve) != len(test.want.reserve) {
				t.Errorf("holds %v, want %v", got.reserve, test.want.reserve)
			}
			got.why, got.reserve, test.want.reserve = nil, nil, nil
			if !equalActions(got, test.want) {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}

// equalActions compares actions without their reasons and what they hold.
func equalActions(a, b action) bool {
	return a.do == b.do && a.node == b.node && a.again == b.again && a.reservation == b.reservation &&
		a.releaseSource == b.releaseSource && a.gone == b.gone && a.rejected == b.rejected
}

func refused(code codes.Code, reason string) error {
	s, _ := status.New(code, "why").WithDetails(&errdetails.ErrorInfo{Domain: names.ErrorDomain, Reason: reason})
	return s.Err()
}

func TestDecideAnswer(t *testing.T) {
	full, failed := refused(codes.ResourceExhausted, names.ReasonNoSpace), refused(codes.Internal, names.ReasonCommandFailed)
	killed, unformatted := refused(codes.DeadlineExceeded, names.ReasonCommandTimedOut), refused(codes.FailedPrecondition, names.ReasonFormatRefused)
	lost := status.Error(codes.Unavailable, "broken")
	away, unsent := error(&fleet.NotConnectedError{Node: "n1"}), error(&fleet.NoPlaceError{Cause: context.DeadlineExceeded})
	wrong := &cluster.WrongVolumeError{Node: "n1", Got: "that", Asked: "this"}
	const last = cluster.FailuresToHold - 1
	type want struct {
		do                     verb
		gone, release, refused bool
		unanswered, internal   int
		says                   string // part of the warning; empty for none
	}
	for name, test := range map[string]struct {
		given answer
		want  want
	}{
		// The outcome is unknown.
		"no answer":                            {answer{cause: lost, internal: 1}, want{do: retry, unanswered: 1, internal: 1}},
		"no answer twice":                      {answer{cause: lost, unanswered: 1}, want{do: retry, unanswered: 2, says: "the connection to node n1 broke"}},
		"no answer about a clone":              {answer{cause: lost, cloned: true}, want{do: retry, unanswered: 1}},
		"busy":                                 {answer{cause: refused(codes.Aborted, names.ReasonVolumeInUse), unanswered: 1}, want{do: retry, unanswered: 2, says: "node n1: why; asking it again"}},
		"killed commands":                      {answer{cause: killed, unanswered: 1}, want{do: retry, unanswered: 2, says: "node n1"}},
		"killed commands, which remain":        {answer{cause: killed, unanswered: last}, want{do: retry, unanswered: last + 1, says: "asking it again"}},
		"killed commands, undone":              {answer{cause: killed, unanswered: last, undone: true}, want{do: reschedule, gone: true}},
		"killed commands, undone and selected": {answer{cause: killed, unanswered: last, undone: true, selected: true}, want{do: rescheduleLowered, gone: true}},
		// The create was not sent.
		"not connected":                {answer{cause: away, unanswered: 1, mayHold: true}, want{do: wait}},
		"not sent":                     {answer{cause: unsent, selected: true}, want{do: rescheduleLowered, gone: true}},
		"not sent, but an earlier one": {answer{cause: unsent, mayHold: true}, want{do: retry, says: "asking it again"}},
		"not sent for a clone":         {answer{cause: unsent, cloned: true}, want{do: retry, gone: true, release: true, says: "asking it again"}},
		// The node said no.
		"no space":                       {answer{cause: full, internal: 2, unanswered: 1, selected: true}, want{do: reschedule, gone: true}},
		"no space for a clone":           {answer{cause: full, cloned: true}, want{do: retry, gone: true, release: true, says: "free space there"}},
		"no such class":                  {answer{cause: refused(codes.NotFound, names.ReasonClassNotFound)}, want{do: reschedule, gone: true}},
		"a lost disk":                    {answer{cause: refused(codes.Unavailable, names.ReasonDeviceMissing), selected: true}, want{do: rescheduleLowered, gone: true}},
		"a lost disk, immediate binding": {answer{cause: refused(codes.Unavailable, names.ReasonDeviceMissing)}, want{do: reschedule, gone: true}},
		"LVM hangs":                      {answer{cause: refused(codes.Unavailable, names.ReasonNotResponding), selected: true}, want{do: rescheduleLowered, gone: true}},
		"another refusal":                {answer{cause: refused(codes.FailedPrecondition, names.ReasonVolumeInUse), unanswered: 1, internal: 1}, want{do: retry, gone: true, internal: 1, says: "asking it again"}},
		"made under other parameters":    {answer{cause: refused(codes.AlreadyExists, names.ReasonRequestDiffers), cloned: true, internal: 1}, want{do: clearSuspects, internal: 1}},
		"a failed command":               {answer{cause: failed, selected: true}, want{do: retry, gone: true, internal: 1, says: "asking it again"}},
		"the last failed command":        {answer{cause: failed, selected: true, internal: last}, want{do: rescheduleLowered, gone: true}},
		"a failed command for a clone":   {answer{cause: failed, cloned: true, internal: last}, want{do: retry, gone: true, release: true, internal: last, says: "asking it again"}},
		"no file system":                 {answer{cause: unformatted, noneLeft: true}, want{do: retry, gone: true, internal: 1, says: "asking it again"}},
		"no file system, the last time":  {answer{cause: unformatted, internal: last, selected: true}, want{do: rescheduleLowered, gone: true, refused: true}},
		"no file system anywhere": {answer{cause: unformatted, internal: last, selected: true, noneLeft: true},
			want{do: retry, gone: true, refused: true, internal: last + 1, says: "make StorageClass carve again"}},
		// The node answered with another volume.
		"another volume":                    {answer{cause: wrong, wrong: true, selected: true}, want{do: rescheduleLowered, gone: true}},
		"another volume, immediate binding": {answer{cause: wrong, wrong: true}, want{do: reschedule, gone: true}},
		"another volume for a clone":        {answer{cause: wrong, wrong: true, cloned: true, internal: 1}, want{do: retry, internal: 1, says: wrong.Error()}},
	} {
		t.Run(name, func(t *testing.T) {
			test.given.node, test.given.class = "n1", "carve"
			act := decideAnswer(test.given)
			got := want{act.do, act.gone, act.releaseSource, act.refused, act.unanswered, act.internal, test.want.says}
			if got != test.want || (act.says == "") != (test.want.says == "") || !strings.Contains(act.says, test.want.says) {
				t.Errorf("got %+v, saying %q, want %+v", got, act.says, test.want)
			}
			if fails := act.do == retry || act.do == reschedule || act.do == rescheduleLowered; fails != (act.why != nil) {
				t.Errorf("the reason of %v is %v", act.do, act.why)
			}
		})
	}
}

func TestOnlyKilledCommandsAreUndone(t *testing.T) {
	const last = cluster.FailuresToHold - 1
	killed := refused(codes.DeadlineExceeded, names.ReasonCommandTimedOut)
	for name, test := range map[string]struct {
		given answer
		want  bool
	}{
		"the last of many": {answer{cause: killed, unanswered: last}, true},
		"an earlier one":   {answer{cause: killed, unanswered: last - 1}, false},
		"of a clone":       {answer{cause: killed, unanswered: last, cloned: true}, false},
		"no answer":        {answer{cause: status.Error(codes.Unavailable, "broken"), unanswered: last}, false},
	} {
		if got := test.given.mustUndo(); got != test.want {
			t.Errorf("%s: got %t, want %t", name, got, test.want)
		}
	}
}
