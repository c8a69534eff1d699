//go:build kernel

package lvmd_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/luks"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// A start finds a header that neither the journal nor LVM records, so that a node that later
// loses its journal knows it.
func TestRealHeadersAreNotedAtTheStart(t *testing.T) {
	n := newNode(t)
	p := n.start()
	crypt := luks.New("cryptsetup", luks.Cost{MemoryKiB: 32, Rounds: 4})
	encrypted := func(name string) *lvmdv1.Volume {
		r := create(name, 32<<20, "")
		r.Encryption = names.EncryptionLUKS
		return p.create(r)
	}
	made, making := encrypted("pvc-made"), encrypted("pvc-making")
	for _, v := range []*lvmdv1.Volume{made, making} {
		must.Succeed(t, crypt.Format(t.Context(), v.GetDevicePath(), v.GetId(), []byte("key")))
	}
	must.Succeed(t, crypt.Finish(t.Context(), made.GetDevicePath(), made.GetId()))
	tagged := func(v *lvmdv1.Volume) bool {
		return strings.Contains(lvmByHand(t, "lvs", "--noheadings", "-o", "tags", n.group+"/"+v.GetId()), spec.TagEncrypted)
	}
	noted := func(v *lvmdv1.Volume) bool {
		got := must.Get(p.client.GetVolume(t.Context(), &lvmdv1.GetVolumeRequest{Id: v.GetId()}))(t)
		return got.GetVolume().GetEncrypted()
	}
	for _, lost := range []bool{false, true} {
		must.Succeed(t, p.stop())
		if lost {
			lvmByHand(t, "lvchange", "--deltag", spec.TagEncrypted, n.group+"/"+made.GetId())
			must.Succeed(t, os.Remove(filepath.Join(n.dir, "state", "journal.db")))
		}
		p = n.start()
		waittest.Until(t, "the header is noted", func() bool { return noted(made) && tagged(made) })
		if noted(making) || tagged(making) {
			t.Error("a header that was not complete is noted")
		}
	}
	p.delete(made.GetId())
	p.delete(making.GetId())
	waittest.Until(t, "nothing is left", func() bool { return len(n.leftovers()) == 0 })
}
