package systemd

import (
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carve-csi/carve/pkg/lvmd"
	"github.com/carve-csi/carve/pkg/must"
)

// capabilities are those that the unit may name.
var capabilities = map[string]int{
	"CAP_CHOWN": unix.CAP_CHOWN, "CAP_DAC_OVERRIDE": unix.CAP_DAC_OVERRIDE, "CAP_FOWNER": unix.CAP_FOWNER, "CAP_IPC_LOCK": unix.CAP_IPC_LOCK,
	"CAP_MKNOD": unix.CAP_MKNOD, "CAP_SYS_ADMIN": unix.CAP_SYS_ADMIN, "CAP_SYS_MODULE": unix.CAP_SYS_MODULE, "CAP_SYS_NICE": unix.CAP_SYS_NICE,
	"CAP_SYS_RAWIO": unix.CAP_SYS_RAWIO,
}

func TestTheUnitHasTheCapabilitiesThatLvmdKeeps(t *testing.T) {
	unit := must.Get(os.ReadFile("carve-lvmd.service"))(t)
	var given []int
	for line := range strings.Lines(string(unit)) {
		list, ok := strings.CutPrefix(line, "CapabilityBoundingSet=")
		if !ok {
			continue
		}
		for _, name := range strings.Fields(list) {
			c, known := capabilities[name]
			if !known {
				t.Errorf("the unit names %s, which this test does not know", name)
			}
			given = append(given, c)
		}
	}
	want := slices.Clone(lvmd.Capabilities)
	slices.Sort(given)
	slices.Sort(want)
	if !slices.Equal(given, want) {
		t.Errorf("the unit's CapabilityBoundingSet is %v, want lvmd's %v", given, want)
	}
}
