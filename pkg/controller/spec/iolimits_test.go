package spec

import (
	"testing"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/iolimit"
)

func TestWhatClassesMaySayOfLimits(t *testing.T) {
	for _, c := range []struct {
		name    string
		params  map[string]string
		want    iolimit.Limits
		message string // after the name of the class
	}{
		{name: "nothing"},
		{name: "all", params: map[string]string{names.ParamIOReadBPS: "100Mi", names.ParamIOWriteBPS: "50M", names.ParamIOReadIOPS: "2k", names.ParamIOWriteIOPS: "500"},
			want: iolimit.Limits{ReadBPS: 100 << 20, WriteBPS: 50e6, ReadIOPS: 2000, WriteIOPS: 500}},
		{name: "no limit, said so", params: map[string]string{names.ParamIOReadBPS: "max", names.ParamIOWriteIOPS: "max"}},
		{name: "the least", params: map[string]string{names.ParamIOReadBPS: "64Ki", names.ParamIOReadIOPS: "10"}, want: iolimit.Limits{ReadBPS: 64 << 10, ReadIOPS: 10}},
		{name: "megabytes without their unit", params: map[string]string{names.ParamIOReadBPS: "100"},
			message: `parameters[carve.csi.local/io-read-bps]: "100" is not allowed, allowed: 65536 to 9223372036854775807 bytes per second, or max`},
		{name: "too few requests", params: map[string]string{names.ParamIOWriteIOPS: "9"},
			message: `parameters[carve.csi.local/io-write-iops]: "9" is not allowed, allowed: 10 to 4294967294 requests per second, or max`},
		{name: "too many requests", params: map[string]string{names.ParamIOReadIOPS: "4294967295"},
			message: `parameters[carve.csi.local/io-read-iops]: "4294967295" is not allowed, allowed: 10 to 4294967294 requests per second, or max`},
		{name: "no number", params: map[string]string{names.ParamIOWriteBPS: "100MB/s"},
			message: `parameters[carve.csi.local/io-write-bps]: "100MB/s" is not allowed, allowed: 65536 to 9223372036854775807 bytes per second, or max`},
		{name: "a negative one", params: map[string]string{names.ParamIOWriteBPS: "-1Mi"},
			message: `parameters[carve.csi.local/io-write-bps]: "-1Mi" is not allowed, allowed: 65536 to 9223372036854775807 bytes per second, or max`},
		{name: "a part of a byte", params: map[string]string{names.ParamIOWriteBPS: "65536.5"},
			message: `parameters[carve.csi.local/io-write-bps]: "65536.5" is not allowed, allowed: 65536 to 9223372036854775807 bytes per second, or max`},
		{name: "empty", params: map[string]string{names.ParamIOWriteBPS: ""},
			message: `parameters[carve.csi.local/io-write-bps]: "" is not allowed, allowed: 65536 to 9223372036854775807 bytes per second, or max`},
	} {
		t.Run(c.name, func(t *testing.T) {
			check := func(kind string, got iolimit.Limits, err error) {
				t.Helper()
				switch {
				case c.message == "" && (err != nil || got != c.want):
					t.Errorf("%s: %+v, error %v, want %+v", kind, got, err, c.want)
				case c.message != "" && (err == nil || err.Error() != kind+" carve: "+c.message):
					t.Errorf("%s: %+v, error %v, want %q", kind, got, err, c.message)
				}
			}
			class, err := ParseClass(storageClass(c.params))
			check("StorageClass", class.IOLimits, err)
			limits, err := AttributesOf(&storagev1.VolumeAttributesClass{ObjectMeta: metav1.ObjectMeta{Name: "carve"}, DriverName: names.Driver, Parameters: c.params})
			check("VolumeAttributesClass", limits, err)
		})
	}
}

func TestAVolumeAttributesClassHasLimitsOnly(t *testing.T) {
	for _, c := range []struct {
		class   storagev1.VolumeAttributesClass
		message string
	}{
		{storagev1.VolumeAttributesClass{DriverName: names.Driver, Parameters: map[string]string{names.ParamDeviceClass: "fast"}},
			`VolumeAttributesClass gold: parameters: key "carve.csi.local/device-class" is not allowed, ` +
				`allowed: carve.csi.local/io-read-bps, carve.csi.local/io-write-bps, carve.csi.local/io-read-iops, carve.csi.local/io-write-iops`},
		{storagev1.VolumeAttributesClass{DriverName: "other.example.com"}, `VolumeAttributesClass gold: driverName: "other.example.com" is not allowed, allowed: carve.csi.local`},
	} {
		c.class.Name = "gold"
		if got, err := AttributesOf(&c.class); err == nil || err.Error() != c.message {
			t.Errorf("%+v, error %v, want %q", got, err, c.message)
		}
	}
}
