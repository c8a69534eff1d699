//go:build !kernel

package lvmd

import (
	"testing"

	"google.golang.org/protobuf/proto"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
)

func TestClassesAreListedAsWatchersAreToldThem(t *testing.T) {
	m := newMachine(t)
	m.config += "- {name: second, volumeGroup: carve, reserve: 8Mi}\n- {name: absent, volumeGroup: none, optional: true}\n"
	d := m.start(t)
	check := func(room int64) {
		t.Helper()
		r, err := d.client.ListClasses(t.Context(), &lvmdv1.ListClassesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		told := d.state().GetClasses()
		if len(r.GetClasses()) != 2 || len(told) != 2 {
			t.Fatalf("%d classes are listed and %d told", len(r.GetClasses()), len(told))
		}
		for i, c := range r.GetClasses() {
			if !proto.Equal(c, told[i]) {
				t.Errorf("listed as %v, told as %v", c, told[i])
			}
		}
		if got := r.GetClasses()[0].GetAvailableBytes() / testExtent; got != room {
			t.Errorf("%d extents are available, want %d", got, room)
		}
	}
	check(testTotal)
	v := d.create(request("one", 3))
	check(testTotal - 3)
	d.delete(v.GetId())
	eventually(t, "it is free", func() bool { return d.available() == testTotal })
	check(testTotal)
}
