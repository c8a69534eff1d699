//go:build !kernel

package lvmd

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/carve-csi/carve/api/conditions"
	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/must"
)

func (d *daemon) note(id string, types ...string) error {
	r := &lvmdv1.NoteHealthRequest{Id: id}
	for _, t := range types {
		r.Found = append(r.Found, &lvmdv1.Condition{Type: t, Message: "it is so"})
	}
	_, err := d.client.NoteHealth(d.t.Context(), r)
	return err
}

func TestWhatTheNodePluginFindsIsReportedUntilItIsTakenBack(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	v := d.create(request("pvc-1", 1))
	before := d.state().GetGeneration()
	for range 2 {
		must.Succeed(t, d.note(v.GetId(), "FileSystemErrors"))
	}
	if now := d.state().GetGeneration(); now != before+1 {
		t.Errorf("generation %d after noting one thing twice, want %d", now, before+1)
	}
	want := []*lvmdv1.Condition{{Type: "FileSystemErrors", Message: "it is so"}}
	for what, got := range map[string][]*lvmdv1.Condition{"list": d.list()[0].GetFound(), "watch": d.state().GetVolumes()[0].GetFound()} {
		if len(got) != 1 || !proto.Equal(got[0], want[0]) {
			t.Errorf("%s: found %v, want %v", what, got, want)
		}
	}
	d.checkModel()
	must.Succeed(t, d.note(v.GetId()))
	if got := d.list()[0]; len(got.GetFound()) != 0 {
		t.Errorf("found %v after it was taken back", got.GetFound())
	}
	must.Succeed(t, d.note(v.GetId(), "FileSystemErrors"))
	d.stop()
	d = m.start(t)
	if got := d.list()[0]; len(got.GetFound()) != 0 {
		t.Errorf("found %v by an lvmd that got no report", got.GetFound())
	}
}

func TestMalformedFindingsAreRefused(t *testing.T) {
	d := newMachine(t).start(t)
	v := d.create(request("pvc-1", 1))
	var many []string
	for range 9 {
		many = append(many, "X")
	}
	wantCode(t, d.note(v.GetId(), many...), codes.InvalidArgument, names.ReasonInvalidField)
	for _, kind := range []string{"", "two words", strings.Repeat("x", 65)} {
		wantCode(t, d.note(v.GetId(), kind), codes.InvalidArgument, names.ReasonInvalidField)
	}
	_, err := d.client.NoteHealth(t.Context(), &lvmdv1.NoteHealthRequest{Id: v.GetId(), Found: []*lvmdv1.Condition{{Type: "X", Message: fmt.Sprintf("%01025d", 0)}}})
	wantCode(t, err, codes.InvalidArgument, names.ReasonInvalidField)
	wantCode(t, d.note("cv00000000000000000000000000"), codes.NotFound, names.ReasonVolumeNotFound)
	wantCode(t, d.note(""), codes.InvalidArgument, names.ReasonInvalidField)
}

func TestADeletionNamesWhatTheNodePluginFoundToUseTheVolume(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	v := d.create(request("v", 1))
	must.Succeed(t, m.fake.Mount(testGroup, v.GetId()))
	for _, tt := range []struct {
		found *lvmdv1.Condition
		named bool
	}{
		{&lvmdv1.Condition{Type: "FileSystemErrors", Message: "held by process 7"}, false},
		{&lvmdv1.Condition{Type: conditions.MountedElsewhere, Message: "held by process 7"}, true},
	} {
		must.Get(d.client.NoteHealth(t.Context(), &lvmdv1.NoteHealthRequest{Id: v.GetId(), Found: []*lvmdv1.Condition{tt.found}}))(t)
		_, err := d.client.DeleteVolume(t.Context(), &lvmdv1.DeleteVolumeRequest{Id: v.GetId()})
		wantCode(t, err, codes.FailedPrecondition, "VOLUME_IN_USE")
		if named := strings.Contains(err.Error(), tt.found.GetMessage()); named != tt.named {
			t.Errorf("with %s the error names it: %t, want %t: %v", tt.found.GetType(), named, tt.named, err)
		}
	}
	m.fake.Unmount(testGroup, v.GetId())
	d.delete(v.GetId())
}
