package thinpool

import (
	"testing"

	"github.com/carve-csi/carve/api/config"
	"github.com/carve-csi/carve/pkg/lvm"
)

func TestAPoolHasTheChunksThatAreConfiguredOrThatSuitItsSize(t *testing.T) {
	g := &lvm.Group{Name: "g", ExtentSize: 4 << 20, Extents: 1 << 20} // 4 TiB
	for _, c := range []struct {
		name         string
		size, chunk  int64
		want, memory int64
	}{
		{"a small pool", 1 << 30, 0, 64 << 10, 4 << 20},
		{"a large pool", 2 << 40, 0, 1 << 20, 128 << 20},
		{"a small pool of large chunks", 1 << 30, 4 << 20, 4 << 20, 4 << 20},
		{"a large pool of small chunks", 2 << 40, 64 << 10, 64 << 10, 2 << 30},
	} {
		o := options(&config.ThinPool{Pool: "p", Size: config.Amount{Bytes: c.size}, ChunkSize: c.chunk, Overprovisioning: 100}, g)
		if o.ChunkSize != c.want || o.MetadataBytes != c.memory {
			t.Errorf("%s has chunks of %d bytes and %d bytes of metadata, want %d and %d", c.name, o.ChunkSize, o.MetadataBytes, c.want, c.memory)
		}
	}
}
