//go:build !kernel

package spec

import (
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/iolimit"
	"github.com/carve-csi/carve/pkg/lvm/ondisk"
)

func TestLimitsSurviveTheirTag(t *testing.T) {
	want := iolimit.Limits{ReadBPS: 1 << 20, WriteIOPS: 100}
	tags := append([]string{TagMarker, "carve.name=a"}, LimitTags(want)...)
	for _, tag := range tags {
		if !ondisk.ValidTag(tag) {
			t.Errorf("%q is no tag", tag)
		}
	}
	if got, about := LimitsFromTags(tags); got != want || !slices.Equal(about, tags[2:]) {
		t.Errorf("%q are %+v and %q", tags, got, about)
	}
	if tags := LimitTags(iolimit.Limits{}); tags != nil {
		t.Errorf("no limits are tagged %q", tags)
	}
	// An administrator may set such tags.
	odd := []string{"carve.io=65536:0:0:0", "carve.io=1", "carve.io=0:0:10:0", "carve.io=x:0:0:0"}
	if got, about := LimitsFromTags(odd); got != (iolimit.Limits{ReadIOPS: 10}) || !slices.Equal(about, odd) {
		t.Errorf("%q are %+v and %q", odd, got, about)
	}
}

func TestALimitOutOfItsRangeIsRefusedByItsName(t *testing.T) {
	_, err := Limits(&lvmdv1.IOLimits{ReadBps: 65536, WriteIops: 3})
	if want := "io_limits.write_iops: 3 is neither 0, for no limit, nor 10 to 4294967294"; status.Code(err) != codes.InvalidArgument || status.Convert(err).Message() != want {
		t.Errorf("error %v, want %q", err, want)
	}
}
