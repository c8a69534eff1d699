package spec

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/iolimit"
)

type ioLimit struct {
	key        string
	least, max uint64
	unit       string
	of         func(*iolimit.Limits) *uint64
}

var ioLimits = []ioLimit{
	{names.ParamIOReadBPS, iolimit.MinBPS, iolimit.MaxBPS, "bytes per second", func(l *iolimit.Limits) *uint64 { return &l.ReadBPS }},
	{names.ParamIOWriteBPS, iolimit.MinBPS, iolimit.MaxBPS, "bytes per second", func(l *iolimit.Limits) *uint64 { return &l.WriteBPS }},
	{names.ParamIOReadIOPS, iolimit.MinIOPS, iolimit.MaxIOPS, "requests per second", func(l *iolimit.Limits) *uint64 { return &l.ReadIOPS }},
	{names.ParamIOWriteIOPS, iolimit.MinIOPS, iolimit.MaxIOPS, "requests per second", func(l *iolimit.Limits) *uint64 { return &l.WriteIOPS }},
}

func isIOLimit(key string) bool {
	return slices.ContainsFunc(ioLimits, func(l ioLimit) bool { return l.key == key })
}

// parseIOLimits ignores other parameters. field returns the field of a key in errors.
func parseIOLimits(params map[string]string, field func(key string) string) (iolimit.Limits, error) {
	var out iolimit.Limits
	for _, l := range ioLimits {
		given, ok := params[l.key]
		if !ok || given == names.IOUnlimited {
			continue
		}
		refused := &InvalidError{Field: field(l.key), Given: fmt.Sprintf("%q", given),
			Allowed: fmt.Sprintf("%d to %d %s, or %s", l.least, l.max, l.unit, names.IOUnlimited)}
		q, err := resource.ParseQuantity(given)
		if err != nil {
			return out, refused
		}
		n, whole := q.AsInt64()
		if !whole || n < 0 || uint64(n) < l.least || uint64(n) > l.max {
			return out, refused
		}
		*l.of(&out) = uint64(n)
	}
	return out, nil
}

// ParseAttributes parses the parameters of a VolumeAttributesClass, the only changeable ones of a
// volume. field names the class in errors, which are *InvalidError.
func ParseAttributes(field string, params map[string]string) (iolimit.Limits, error) {
	for _, key := range slices.Sorted(maps.Keys(params)) {
		if !isIOLimit(key) {
			var keys []string
			for _, l := range ioLimits {
				keys = append(keys, l.key)
			}
			return iolimit.Limits{}, &InvalidError{Field: field + ": parameters", Given: fmt.Sprintf("key %q", key), Allowed: strings.Join(keys, ", ")}
		}
	}
	return parseIOLimits(params, func(key string) string { return fmt.Sprintf("%s: parameters[%s]", field, key) })
}

// AttributesOf returns the limits of a VolumeAttributesClass of ours; errors are *InvalidError.
func AttributesOf(class *storagev1.VolumeAttributesClass) (iolimit.Limits, error) {
	field := "VolumeAttributesClass " + class.Name
	if class.DriverName != names.Driver {
		return iolimit.Limits{}, &InvalidError{Field: field + ": driverName", Given: fmt.Sprintf("%q", class.DriverName), Allowed: names.Driver}
	}
	return ParseAttributes(field, class.Parameters)
}

func ioLimitParameters() []Parameter {
	describe := map[string]string{
		names.ParamIOReadBPS: "Bytes that each Pod may read per second.", names.ParamIOWriteBPS: "Bytes that each Pod may write per second.",
		names.ParamIOReadIOPS: "Reads per second of each Pod.", names.ParamIOWriteIOPS: "Writes per second of each Pod.",
	}
	var out []Parameter
	for _, l := range ioLimits {
		allowed := "64Ki or more"
		if l.least == iolimit.MinIOPS {
			allowed = fmt.Sprintf("%d to %d", l.least, l.max)
		}
		out = append(out, Parameter{l.key, allowed + ", `" + names.IOUnlimited + "`", names.IOUnlimited,
			describe[l.key] + " [I/O limits](../how-to/io-limits.md) need a component, and can be changed."})
	}
	return out
}
