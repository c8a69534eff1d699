package spec

import (
	"errors"
	"strings"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/iolimit"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
)

// tagIOLimits is on volumes that have limits. Unlike the identity they change, and LVM's
// metadata alone keeps them: changing them is one commit of LVM.
const tagIOLimits = "carve.io=" // BYTES READ:BYTES WRITTEN:READS:WRITES, per second

// Limits reads limits of a request.
func Limits(r *lvmdv1.IOLimits) (iolimit.Limits, error) {
	l := iolimit.FromProto(r)
	err := l.Check()
	var refused *iolimit.RangeError
	if errors.As(err, &refused) {
		return l, apierror.InvalidField("io_limits."+refused.Name, "%d is neither 0, for no limit, nor %d to %d", refused.Given, refused.Least, refused.Max)
	}
	return l, err
}

// LimitTags encodes limits; volumes without any have no tag.
func LimitTags(l iolimit.Limits) []string {
	if l.IsZero() {
		return nil
	}
	return []string{tagIOLimits + l.String()}
}

// LimitsFromTags decodes limits, and returns the tags that are about them. Of several, and of
// those that cannot be understood, an administrator made all but one: the last that can be
// counts.
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
