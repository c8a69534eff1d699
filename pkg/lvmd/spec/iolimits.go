package spec

import (
	"errors"
	"strings"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/iolimit"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
)

// tagIOLimits is on volumes with limits. Only LVM's metadata keeps these: unlike the identity, they
// change, with one commit of LVM.
const tagIOLimits = "carve.io=" // BYTES READ:BYTES WRITTEN:READS:WRITES, per second

// Limits reads and checks the limits of a request.
func Limits(r *lvmdv1.IOLimits) (iolimit.Limits, error) {
	l := iolimit.FromProto(r)
	err := l.Check()
	var refused *iolimit.RangeError
	if errors.As(err, &refused) {
		return l, apierror.InvalidField("io_limits."+refused.Name, "%d is neither 0, for no limit, nor %d to %d", refused.Given, refused.Least, refused.Max)
	}
	return l, err
}

// LimitTags encodes limits, as no tag if there are none.
func LimitTags(l iolimit.Limits) []string {
	if l.IsZero() {
		return nil
	}
	return []string{tagIOLimits + l.String()}
}

// LimitsFromTags decodes limits, and returns the tags about them. An administrator made all of
// these but one, and all that cannot be decoded: the last valid one counts.
func LimitsFromTags(tags []string) (l iolimit.Limits, about []string) {
	for _, t := range tags {
		text, ok := strings.CutPrefix(t, tagIOLimits)
		if !ok {
			continue
		}
		about = append(about, t)
		if parsed, err := iolimit.Parse(text); err == nil {
			l = parsed
		}
	}
	return l, about
}
