//go:build kernel

package lvmd_test

import (
	"encoding/binary"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// rewrite fixes the checksums even where LVM would not write.
func rewrite(t *testing.T, device string, change func(text string) string) {
	t.Helper()
	// See mda_header in LVM's lib/format_text/layout.h: the text's offset, size and checksum are
	// at 40.
	const area, length = 4096, 512
	sum := func(b []byte) uint32 { return ^crc32.Update(^uint32(0xf597a6cf), crc32.IEEETable, b) }
	f := must.Get(os.OpenFile(device, os.O_RDWR|os.O_SYNC, 0))(t)
	defer f.Close()
	header := make([]byte, length)
	must.Get(f.ReadAt(header, area))(t)
	at := area + int64(binary.LittleEndian.Uint64(header[40:]))
	old := make([]byte, binary.LittleEndian.Uint64(header[48:]))
	must.Get(f.ReadAt(old, at))(t)
	text := change(string(old))
	if text == string(old) {
		t.Fatalf("nothing is changed in\n%s", old)
	}
	must.Get(f.WriteAt([]byte(text), at))(t)
	binary.LittleEndian.PutUint64(header[48:], uint64(len(text)))
	binary.LittleEndian.PutUint32(header[56:], sum([]byte(text)))
	binary.LittleEndian.PutUint32(header, sum(header[4:]))
	must.Get(f.WriteAt(header, area))(t)
}

func TestADamagedGroupOfOthersHoldsUpNoGroup(t *testing.T) {
	const other, device = "other", "/dev/vdc"
	for _, damage := range []struct {
		name string
		make func(t *testing.T, second string)
	}{
		{"metadata of a later LVM", func(t *testing.T, _ string) {
			rewrite(t, device, func(text string) string { return strings.Replace(text, `"VISIBLE"`, `"VISUAL"`, 1) })
		}},
		{"a segment that lies nowhere", func(t *testing.T, _ string) {
			rewrite(t, device, func(text string) string { return strings.Replace(text, `"pv0", 0`, `"pv7", 0`, 1) })
		}},
		{"a text that is overwritten", func(t *testing.T, _ string) {
			f := must.Get(os.OpenFile(device, os.O_RDWR|os.O_SYNC, 0))(t)
			defer f.Close()
			must.Get(f.WriteAt(make([]byte, 1<<19), 4096+1024))(t)
		}},
		{"a header that is overwritten", func(t *testing.T, _ string) {
			f := must.Get(os.OpenFile(device, os.O_RDWR|os.O_SYNC, 0))(t)
			defer f.Close()
			must.Get(f.WriteAt(make([]byte, 512), 4096))(t)
		}},
		{"a lock that is not there", func(t *testing.T, _ string) {
			rewrite(t, device, func(text string) string {
				return strings.Replace(text, "flags = []\n", "flags = []\nlock_type = \"sanlock\"\n", 1)
			})
		}},
		{"another system", func(t *testing.T, _ string) {
			rewrite(t, device, func(text string) string {
				return strings.Replace(text, "flags = []\n", "flags = []\nsystem_id = \"another\"\n", 1)
			})
		}},
		{"exported", func(t *testing.T, _ string) { lvmByHand(t, "vgexport", other) }},
		{"a disk that is missing", wipeHead},
	} {
		t.Run(damage.name, func(t *testing.T) {
			n := newNode(t)
			file := filepath.Join(n.dir, "second")
			must.Succeed(t, os.WriteFile(file, nil, 0o600))
			must.Succeed(t, os.Truncate(file, 64<<20))
			second := strings.TrimSpace(byHand(t, "losetup", "--find", "--show", file))
			takeAway(t, func() {
				wipeHead(t, device)
				byHand(t, "losetup", "--detach", second)
			})
			lvmByHand(t, "vgcreate", "--yes", other, device)
			if damage.name == "a disk that is missing" {
				lvmByHand(t, "vgextend", "--yes", other, second)
			}
			lvmByHand(t, "lvcreate", "--yes", "--name", "home", "--size", "16m", "--zero", "n", "--wipesignatures", "n", "--activate", "n", other, device)
			damage.make(t, second)
			report := exec.Command("lvm", "fullreport", "--config", handConfig, "--reportformat", "json")
			out, err := report.CombinedOutput()
			t.Logf("fullreport: %v\n%s", err, out)

			// For a missing group, LVM looks at all devices.
			n.config += "- {name: absent, volumeGroup: absent, optional: true}\n"
			for _, when := range []string{"at the first start", "at another start"} {
				p := n.start()
				all := p.available()
				p.delete(p.create(create("pvc-1", 8<<20, "ext4")).GetId())
				waittest.Until(t, when+": the space is back", func() bool { return p.available() == all })
				must.Succeed(t, p.stop())
			}
		})
	}
}
