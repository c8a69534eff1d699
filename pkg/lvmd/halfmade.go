package lvmd

import (
	"slices"
	"strings"

	"github.com/carve-csi/carve/pkg/lvm"
)

// halfMade names the volumes of ours that need no wipe, because they were never handed out:
// extensions, and the RAID volumes that an lvcreate left when it was killed
// before it had cleared what becomes RAID's own bookkeeping. Until then that lies
// bare, in volumes that everybody sees, and the volume itself is never activated,
// whoever asks: nobody ever wrote to it or read from it, and it has no device to
// wipe. LVM removes it, with its parts, like any other.
//
// Either sign alone is not enough: an administrator can forbid the activation of
// any volume, and the bookkeeping of a new image of one in use lies bare, too.
func halfMade(g *lvm.Group) map[string]bool {
	names := map[string]bool{}
	for i := range g.Volumes {
		lv := &g.Volumes[i]
		if isExtension(lv.Tags) {
			names[lv.Name] = true
		}
		if isOurs(lv.Tags) && lv.Layout.IsRAID() && lv.Attr.SkipActivation &&
			slices.ContainsFunc(g.Volumes, func(part lvm.Volume) bool { return strings.HasPrefix(part.Name, lv.Name+"_rmeta_") }) {
			names[lv.Name] = true
		}
	}
	return names
}
