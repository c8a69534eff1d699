package lvmd

import "github.com/carve-csi/carve/pkg/lvm"

// occupy notes in how many pieces a volume lies, which Mapping tells. Where it
// does not, what was promised stays, which is at least as many. The caller holds
// the model's lock.
func (v *volume) occupy(pieces []lvm.Piece, unmapped error) {
	if unmapped == nil && v.layout.IsLinear() {
		v.segments = max(1, int64(len(pieces)))
	}
}

// hiddenPieces is more than the data and metadata of thin pools lie in.
const hiddenPieces = 64

// boundFragments keeps what is said of the group's free space near the truth
// without a scan: each removal may leave as many free pieces more as the volume
// had, but there are never more of them than there are volumes' pieces and ends of
// disks that separate them, and what LVM hides in pools. The caller holds the
// model's lock.
func (m *model) boundFragments(g *group) {
	n := g.foreign + int64(len(g.info.Devices)) + hiddenPieces
	for _, v := range m.volumes {
		if v.group == g && v.pool == nil {
			n += v.segments
		}
	}
	g.fragments = min(g.fragments, n)
}
