//go:build !kernel

package inventory

import (
	"testing"

	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/ondisk"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
)

func TestSetRecordKeepsWhatAScanFound(t *testing.T) {
	m, g := scanned(t, Options{})
	const id = "cvaaaaaaaaaaaaaaaaaaaaaaaaaa"
	scan := func(seqno uint64, tags ...string) {
		found := &lvm.Group{Name: "carve", UUID: "uuid", Seqno: seqno, ExtentSize: extent, Extents: 10, Volumes: []lvm.Volume{{
			Name: id, Size: extent, Segments: 1, Tags: append(spec.Identity{Name: "v", Class: "local", Block: true}.Tags(), tags...),
		}}}
		g.ApplyScan(Scan{Group: found, Metadata: ondisk.Metadata{Seqno: seqno}}, nil)
	}
	scan(2, spec.TagProvisional)
	v := m.Volume(id)
	v.rec.Provisional = true
	if _, done, err := m.ClaimToNote(id, Kept); done || err != nil {
		t.Fatalf("the claim of a provisional volume: done %v, %v", done, err)
	}
	kept := v.Record()
	kept.Provisional = false
	scan(3, spec.TagProvisional, spec.TagEncrypted)
	v.SetRecord(kept)
	if now := v.Record(); now.Provisional || !now.Encrypted || v.making.offAt.IsZero() || m.Inspect()[id].State != Ready {
		t.Errorf("provisional %v, encrypted %v, tags are due at %v, state %s", now.Provisional, now.Encrypted, v.making.offAt, m.Inspect()[id].State)
	}
	if _, done, err := m.ClaimToNote(id, Kept); !done || err != nil {
		t.Errorf("the claim of a volume that is kept: done %v, %v", done, err)
	}
}
