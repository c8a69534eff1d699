//go:build kernel

package lvm_test

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/carve-csi/carve/pkg/must"
)

func dmsetup(t testing.TB, args ...string) string {
	t.Helper()
	cmd := exec.Command("dmsetup", args...)
	cmd.Env = append(os.Environ(), "DM_DISABLE_UDEV=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("dmsetup %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// load loads a device's table again, longer by more sectors.
func load(t testing.TB, device string, more int64) {
	t.Helper()
	words := strings.Fields(dmsetup(t, "table", device))
	length := must.Get(strconv.ParseInt(words[1], 10, 64))(t)
	words[1] = strconv.FormatInt(length+more, 10)
	dmsetup(t, "load", device, "--table", strings.Join(words, " "))
}
