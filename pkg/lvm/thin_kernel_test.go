//go:build kernel

package lvm_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/carve-csi/carve/pkg/lvm"
)

// thinPool is a group with a pool of which each test knows all volumes.
type thinPool struct {
	t     *testing.T
	group string
	*lvm.Host
}

func newThinPool(t *testing.T, name string) *thinPool {
	t.Helper()
	group(t, name)
	p := &thinPool{t: t, group: name, Host: host(t)}
	found := p.scan()
	err := p.CreatePool(t.Context(), lvm.PoolOptions{
		Group: name, Pool: "pool", Extents: 8, MetadataBytes: found.ExtentSize, ChunkSize: 64 << 10,
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *thinPool) scan() lvm.Group {
	p.t.Helper()
	found, err := p.Scan(p.t.Context(), []string{p.group})
	if err != nil || len(found) != 1 {
		p.t.Fatalf("groups %v, error %v", found, err)
	}
	return found[0]
}

const thinBytes = 4 << 20

func (p *thinPool) create(volume string) {
	p.t.Helper()
	if err := p.CreateThin(p.t.Context(), lvm.ThinOptions{Group: p.group, Pool: "pool", Volume: volume, Bytes: thinBytes}); err != nil {
		p.t.Fatal(err)
	}
}

func (p *thinPool) remove(volume string) {
	p.t.Helper()
	if err := p.Remove(p.t.Context(), p.group, []string{volume}); err != nil {
		p.t.Fatal(err)
	}
}

func (p *thinPool) device(volume string) string { return filepath.Join("/dev", p.group, volume) }

// fill writes a byte all over a volume.
func (p *thinPool) fill(volume string, b byte) {
	p.t.Helper()
	f, err := os.OpenFile(p.device(volume), os.O_WRONLY, 0)
	if err != nil {
		p.t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(bytes.Repeat([]byte{b}, thinBytes)); err != nil {
		p.t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		p.t.Fatal(err)
	}
}

// wantFilled checks that there is one byte all over a volume.
func (p *thinPool) wantFilled(volume string, want byte) {
	p.t.Helper()
	got, err := os.ReadFile(p.device(volume))
	if err != nil {
		p.t.Fatal(err)
	}
	if at := bytes.IndexFunc(got, func(r rune) bool { return r != rune(want) }); len(got) != thinBytes || at >= 0 {
		p.t.Errorf("%s has %d bytes, of which the one at %d is not %#x", volume, len(got), at, want)
	}
}

// leave has LVM's metadata say that a message for the pool is yet to be sent, as
// they do where a command was killed, or the power went, after the kernel had
// carried the message out and before LVM noted that.
func (p *thinPool) leave(message string) {
	p.t.Helper()
	file := filepath.Join(p.t.TempDir(), "metadata")
	lvmByHand(p.t, "vgcfgbackup", "--file", file, p.group)
	text, err := os.ReadFile(file)
	if err != nil {
		p.t.Fatal(err)
	}
	at := regexp.MustCompile(`(?m)^\s*transaction_id = \d+$`).FindIndex(text)
	if at == nil {
		p.t.Fatalf("no pool in\n%s", text)
	}
	text = []byte(string(text[:at[1]]) + "\nmessage1 {\n" + message + "\n}\n" + string(text[at[1]:]))
	if err := os.WriteFile(file, text, 0o600); err != nil {
		p.t.Fatal(err)
	}
	lvmByHand(p.t, "vgcfgrestore", "--yes", "--force", "--file", file, p.group)
	p.scan()
}

// TestANewThinVolumeIsBlankWhateverIsInThePool has a volume in the pool that LVM does
// not know, as an administrator's lvremove may leave it.
func TestANewThinVolumeIsBlankWhateverIsInThePool(t *testing.T) {
	p := newThinPool(t, "carve-stale")
	p.create("cv1")
	p.create("cv2")
	p.fill("cv2", 2)
	p.leave("delete = 7")
	lvmByHand(t, "lvremove", "--yes", p.group+"/cv2")
	p.scan()
	p.create("cv3")
	p.wantFilled("cv3", 0)
	if status, err := p.PoolStatus(p.group, "pool"); err != nil || status.DataUsed != 0 {
		t.Errorf("pool %+v, error %v, want nothing of it used", status, err)
	}
}

// unacknowledge gives the kernel's pool the number that it had before the last
// message.
func (p *thinPool) unacknowledge() {
	p.t.Helper()
	device := strings.ReplaceAll(p.group, "-", "--") + "-pool-tpool"
	number, err := strconv.Atoi(strings.Fields(dmsetup(p.t, "status", "--noflush", device))[3])
	if err != nil {
		p.t.Fatal(err)
	}
	dmsetup(p.t, "message", device, "0", fmt.Sprintf("set_transaction_id %d %d", number, number-1))
}

func (p *thinPool) snapshot(of, name string) {
	p.t.Helper()
	if err := p.Snapshot(p.t.Context(), lvm.SnapshotOptions{Group: p.group, Origin: of, Volume: name}); err != nil {
		p.t.Fatal(err)
	}
}

// TestPoolsGoOnWhateverAKilledCommandLeft leaves messages that the kernel has carried
// out, and the number of which it was told, or not, where that matters. It does each
// thing next.
func TestPoolsGoOnWhateverAKilledCommandLeft(t *testing.T) {
	for _, c := range []struct {
		message      string
		acknowledged bool
	}{
		{"delete = 7", true}, {`create = "cv1"`, true}, {`create = "snap"`, true}, {`create = "snap"`, false},
	} {
		told := map[bool]string{true: "told", false: "not told"}[c.acknowledged]
		t.Run(c.message+", and the kernel was "+told, func(t *testing.T) {
			p := newThinPool(t, "carve-messages")
			left := func() {
				p.leave(c.message)
				if !c.acknowledged {
					p.unacknowledge()
				}
			}
			p.create("cv1")
			p.fill("cv1", 1)
			p.snapshot("cv1", "snap")
			p.create("cv2")
			p.fill("cv2", 2)

			left()
			p.remove("cv2")
			p.create("cv3") // It gets the number in the pool that cv2 had.
			p.wantFilled("cv3", 0)
			p.remove("cv3")

			left()
			p.create("cv4")
			p.wantFilled("cv4", 0)
			p.remove("cv4")

			left()
			p.snapshot("cv1", "snap2")
			p.wantFilled("snap2", 1)
			p.wantFilled("snap", 1)
			p.wantFilled("cv1", 1)

			left()
			p.remove("snap")
			p.remove("snap2")
			p.remove("cv1")
			p.create("cv5")
			p.wantFilled("cv5", 0)
			if status, err := p.PoolStatus(p.group, "pool"); err != nil || status.DataUsed != 0 {
				t.Errorf("pool %+v, error %v, want nothing of it used", status, err)
			}
		})
	}
}
