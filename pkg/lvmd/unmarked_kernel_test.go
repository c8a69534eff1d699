//go:build kernel

package lvmd_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// LVM fails for more attempts than a wipe gets, and then works.
func TestNothingIsWipedWhileLVMRefusesToMarkIt(t *testing.T) {
	const size, attempts = 8 << 20, 5
	n := newNode(t)
	n.standIn()
	p := n.start()
	all := p.available()
	v := p.create(create("pvc", size, ""))
	fill(t, v, 0x5a)
	refuse := filepath.Join(n.dir, "refuse")
	must.Succeed(t, os.WriteFile(refuse, []byte("--addtag"), 0o600))
	p.delete(v.GetId())
	waittest.Until(t, "LVM refused marks", func() bool { return strings.Count(n.read("refused"), "\n") >= attempts }, func() any { return n.read("refused") })
	checkFilled(t, v, 0x5a, size)
	must.Succeed(t, os.Remove(refuse))
	waittest.Until(t, "it is removed", func() bool { return len(n.leftovers()) == 0 && p.available() == all })
}
