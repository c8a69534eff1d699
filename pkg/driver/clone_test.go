package driver_test

import (
	"testing"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/must"
)

func TestAVolumeThatIsLargerThanItsSourceIsFilledWhenStaged(t *testing.T) {
	for _, c := range []struct {
		name   string
		source *lvmdv1.VolumeSource
		size   int64 // of the file system, less than the volume
		reader bool
		grown  int
	}{
		{name: "a clone that is larger", source: &lvmdv1.VolumeSource{VolumeId: "cv1"}, size: 8 << 20, grown: 1},
		{name: "a restored snapshot that is larger", source: &lvmdv1.VolumeSource{SnapshotId: "cs1"}, size: 8 << 20, grown: 1},
		{name: "a clone that is as large", source: &lvmdv1.VolumeSource{VolumeId: "cv1"}, size: 64 << 10},
		{name: "a clone that is only read", source: &lvmdv1.VolumeSource{VolumeId: "cv1"}, size: 8 << 20, reader: true},
		{name: "a volume that was made empty", size: 8 << 20},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t)
			v := f.alter(f.volume("a", "ext4"), func(v *lvmdv1.Volume) { v.Source = c.source })
			f.fileSystems.Set(v.GetDevicePath(), filesystem.Info{Type: filesystem.Ext4, SizeBytes: v.GetSizeBytes() - c.size})
			access := writer
			if c.reader {
				access = reader
			}
			must.Succeed(f.t, f.stage(v, filesystemAccess(access)))
			if got := f.fileSystems.Grown(v.GetDevicePath()); len(got) != c.grown {
				t.Errorf("grown at %q", got)
			}
		})
	}
}
