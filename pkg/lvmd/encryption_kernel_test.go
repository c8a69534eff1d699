//go:build kernel

package lvmd_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// plainText must not appear on any disk.
var plainText = bytes.Repeat([]byte("plain text that no one may find "), 32<<10)

func sealed(r *lvmdv1.CreateVolumeRequest) *lvmdv1.CreateVolumeRequest {
	r.Encryption = "ephemeral"
	return r
}

// shows reports whether a device, of at least size bytes, holds plainText anywhere.
func shows(t *testing.T, device string, size int64) bool {
	t.Helper()
	f := must.Get(os.Open(device))(t)
	defer f.Close()
	chunk := make([]byte, 4<<20)
	for read := int64(0); ; {
		n, err := io.ReadFull(f, chunk)
		read += int64(n)
		// File blocks begin at multiples of 4096, so some lie within the text.
		if bytes.Contains(chunk[:n], plainText[:4096]) {
			return true
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			if read < size {
				t.Errorf("%s has %d bytes, want %d", device, read, size)
			}
			return false
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// A killed lvmd may have left a device without a node.
func (n *node) reboot() {
	n.t.Helper()
	for _, name := range n.cryptDevices() {
		byHand(n.t, "dmsetup", "remove", "--retry", name)
	}
	lvmByHand(n.t, "vgchange", "--activate", "n", n.group)
}

func (n *node) sealedDevices() []string {
	n.t.Helper()
	names := n.cryptDevices()
	nodes, err := filepath.Glob("/dev/mapper/*carve.crypt.*")
	if err != nil || len(nodes) != len(names) {
		n.t.Errorf("devices %q have the nodes %q, error %v", names, nodes, err)
	}
	return names
}

func (n *node) cryptDevices() (names []string) {
	n.t.Helper()
	for _, name := range strings.Fields(byHand(n.t, "dmsetup", "info", "--columns", "--noheadings", "-o", "name")) {
		if strings.HasPrefix(name, "carve.crypt.") {
			names = append(names, name)
		}
	}
	return names
}

func key(t *testing.T, v *lvmdv1.Volume) string {
	t.Helper()
	table := byHand(t, "dmsetup", "table", "--showkeys", filepath.Base(v.GetDevicePath()))
	found := regexp.MustCompile(` crypt aes-xts-plain64 ([0-9a-f]{128}) 0 `).FindStringSubmatch(table)
	if found == nil {
		t.Fatalf("table %q", table)
	}
	return found[1]
}

func TestNoPlainTextOfAnEncryptedVolumeIsOnTheDisk(t *testing.T) {
	n := newNode(t)
	p := n.start()
	all := p.available()
	for _, c := range []struct {
		fs   string
		size int64
	}{{"ext4", 24 << 20}, {"", 8 << 20}} {
		t.Run("file system "+c.fs, func(t *testing.T) {
			r := sealed(create("pvc-"+c.fs, c.size, c.fs))
			r.EncryptionDiscards = c.fs == ""
			v := p.create(r)
			own := "/dev/" + n.group + "/" + v.GetId()
			if v.GetDevicePath() != "/dev/mapper/carve.crypt."+v.GetId() {
				t.Errorf("volume %v", v)
			}
			limit, err := os.ReadFile(fmt.Sprintf("/sys/dev/block/%d:%d/queue/discard_max_bytes", v.GetDeviceMajor(), v.GetDeviceMinor()))
			if err != nil || (strings.TrimSpace(string(limit)) != "0") != r.GetEncryptionDiscards() {
				t.Errorf("discards: %t; at most %s bytes, error %v", r.GetEncryptionDiscards(), limit, err)
			}
			write := func(file string) {
				t.Helper()
				f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE, 0o600)
				if err != nil {
					t.Fatal(err)
				}
				_, err = f.Write(plainText)
				must.Succeed(t, errors.Join(err, f.Sync(), f.Close()))
			}
			if c.fs == "" {
				write(v.GetDevicePath())
			} else {
				dir, unmount := mount(t, v)
				write(dir + "/data")
				n.growMounted(t, p, v, dir)
				if b, err := os.ReadFile(dir + "/data"); err != nil || !bytes.Equal(b, plainText) {
					t.Errorf("%d bytes are read of what was written, error %v", len(b), err)
				}
				unmount()
			}
			if !shows(t, v.GetDevicePath(), v.GetSizeBytes()) {
				t.Error("what was written is not seen where it should be")
			}
			if shows(t, own, v.GetSizeBytes()) {
				t.Error("plain text is on the disk")
			}
			if c.fs != "" {
				n.checkNoKeyLeft(t, p, v)
			}
			p.delete(v.GetId())
			if left := n.sealedDevices(); len(left) > 0 {
				t.Errorf("the key is there when the deletion is answered: %q", left)
			}
		})
	}
	waittest.Until(t, "all space is back", func() bool { return p.available() == all })
	if left := n.leftovers(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func (n *node) growMounted(t *testing.T, p *process, v *lvmdv1.Volume, dir string) {
	t.Helper()
	statfs := func() (s syscall.Statfs_t) {
		must.Succeed(t, syscall.Statfs(dir, &s))
		return s
	}
	before := statfs()
	resp := must.Get(p.client.ExpandVolume(t.Context(), &lvmdv1.ExpandVolumeRequest{Id: v.GetId(), RequiredBytes: v.GetSizeBytes() + 16<<20}))(t)
	grown := resp.GetVolume()
	if grown.GetDeviceMinor() != v.GetDeviceMinor() || grown.GetDevicePath() != v.GetDevicePath() {
		t.Errorf("grown %v, was %v", grown, v)
	}
	must.Succeed(t, filesystem.Grow(t.Context(), grown.GetDevicePath(), dir, filesystem.Type(v.GetFsType())))
	if after := statfs(); after.Blocks <= before.Blocks {
		t.Errorf("the file system has %d blocks, had %d", after.Blocks, before.Blocks)
	}
}

// checkNoKeyLeft searches lvmd's memory, arguments, environment, files and log.
func (n *node) checkNoKeyLeft(t *testing.T, p *process, v *lvmdv1.Volume) {
	t.Helper()
	text := []byte(key(t, v))
	var raw []byte
	if _, err := fmt.Sscanf(string(text), "%x", &raw); err != nil || len(raw) != 64 {
		t.Fatalf("key %q, error %v", text, err)
	}
	look := func(where string, b []byte) {
		t.Helper()
		for _, part := range [][]byte{text[:32], text[96:], raw[:16], raw[48:]} {
			if bytes.Contains(b, part) {
				t.Errorf("the key is in %s", where)
				return
			}
		}
	}
	look("the log", []byte(p.log.String()))
	proc := fmt.Sprintf("/proc/%d/", p.cmd.Process.Pid)
	files := []string{proc + "cmdline", proc + "environ"}
	err := filepath.Walk(n.dir, func(path string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().IsRegular() {
			files = append(files, path)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Error(err)
		}
		look(file, b)
	}
	maps, err := os.ReadFile(proc + "maps")
	if err != nil {
		t.Fatal(err)
	}
	memory, err := os.Open(proc + "mem")
	if err != nil {
		t.Fatal(err)
	}
	defer memory.Close()
	seen := 0
	for line := range strings.Lines(string(maps)) {
		var from, to int64
		var rights string
		if _, err := fmt.Sscanf(line, "%x-%x %s", &from, &to, &rights); err != nil || !strings.HasPrefix(rights, "rw") {
			continue
		}
		for at := from; at < to; at += 1 << 20 {
			b := make([]byte, min(1<<20+4096, to-at))
			n, _ := memory.ReadAt(b, at)
			seen += n
			look("lvmd's memory", b[:n])
		}
	}
	if seen < 1<<20 {
		t.Errorf("only %d bytes of lvmd's memory were looked at", seen)
	}
}

func TestAfterARebootEncryptedVolumesAreEmptyAndFormatted(t *testing.T) {
	n := newNode(t)
	p := n.start()
	fs, raw := p.create(sealed(create("pvc-fs", 24<<20, "ext4"))), p.create(sealed(create("pvc-raw", 8<<20, "")))
	plain := p.create(create("pvc-plain", 8<<20, ""))
	fill(t, raw, 0x5a)
	fill(t, plain, 0x5a)
	dir, unmount := mount(t, fs)
	must.Succeed(t, os.WriteFile(dir+"/data", plainText, 0o600))
	p.kill()
	p = n.start()
	if again := p.volume(fs.GetId()); again.GetEmptiedAt() != nil || again.GetDeviceMinor() != fs.GetDeviceMinor() || again.GetState() != lvmdv1.VolumeState_VOLUME_STATE_READY {
		t.Errorf("volume %v, was %v", again, fs)
	}
	if b, err := os.ReadFile(dir + "/data"); err != nil || !bytes.Equal(b, plainText) {
		t.Errorf("%d bytes are read of what was written, error %v", len(b), err)
	}
	unmount()
	before := key(t, fs)
	if err := p.stop(); err != nil {
		t.Error(err)
	}
	n.reboot()
	p = n.start()
	for _, was := range []*lvmdv1.Volume{fs, raw} {
		waittest.Until(t, was.GetName()+" is ready again", func() bool {
			return p.volume(was.GetId()).GetState() == lvmdv1.VolumeState_VOLUME_STATE_READY && p.volume(was.GetId()).GetDevicePath() != ""
		})
		v := p.volume(was.GetId())
		if v.GetEmptiedAt() == nil || v.GetDevicePath() != was.GetDevicePath() || len(v.GetConditions()) > 0 {
			t.Errorf("volume %v, was %v", v, was)
		}
	}
	if key(t, fs) == before {
		t.Error("the key is the same")
	}
	dir, unmount = mount(t, p.volume(fs.GetId()))
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 || entries[0].Name() != "lost+found" {
		t.Errorf("it holds %v, error %v", entries, err)
	}
	unmount()
	b, err := os.ReadFile(raw.GetDevicePath())
	if err != nil || int64(len(b)) < raw.GetSizeBytes() || bytes.Contains(b, bytes.Repeat([]byte{0x5a}, 512)) || len(bytes.Trim(b[:1<<20], "\x00")) > 0 {
		t.Errorf("a raw volume shows what it held, or is not empty at its beginning; %d bytes are read, error %v", len(b), err)
	}
	checkFilled(t, p.volume(plain.GetId()), 0x5a, 8<<20)
	if log := p.log.String(); strings.Count(log, "the key of an encrypted volume is gone") != 2 {
		t.Errorf("the log does not name two volumes:\n%s", log)
	}
	for _, v := range []*lvmdv1.Volume{fs, raw, plain} {
		p.deleteAgain(&lvmdv1.DeleteVolumeRequest{Id: v.GetId()})
	}
	waittest.Until(t, "nothing is left", func() bool { return len(n.leftovers()) == 0 && len(n.sealedDevices()) == 0 })
}

func (p *process) volume(id string) *lvmdv1.Volume {
	p.t.Helper()
	resp := must.Get(p.client.GetVolume(p.t.Context(), &lvmdv1.GetVolumeRequest{Id: id}))(p.t)
	return resp.GetVolume()
}

func TestKilledBetweenTwoEffectsOnRealEncryptedVolumes(t *testing.T) {
	n := newNode(t)
	p := n.start()
	all := p.available()
	p.kill()
	places := slices.Concat(slices.Repeat(creationPlaces, 2), slices.Repeat(journalPlaces, 2), slices.Repeat([]string{"encrypt: key made"}, 2),
		[]string{"expand: admitted"}, deletionPlaces, []string{"delete: chunk wiped", "delete: key forgotten"})
	n.eachPlace(t, 1, places, func(number int, p *process) string {
		s := newScenario(n)
		s.create(p, sealed(create("pvc-kept", 16<<20, "ext4")))
		s.expand(p, "pvc-kept", 24<<20)
		s.create(p, sealed(create("pvc-gone", 8<<20, "ext4")))
		s.delete(p, "pvc-gone")
		place := s.end(p)
		// Every other time the machine crashes, too, and the next lvmd once.
		rebooted := number%2 == 0
		if rebooted {
			n.reboot()
			// A volume's recovery passes eight crash points.
			p = n.startCrashing(1 + number%8/2)
			if len(s.kept) > 0 {
				waittest.Until(t, "the successor has ended", func() bool { return p.hasEnded(time.Millisecond) && n.read("crashed") != "" })
			}
			p.kill()
			n.reboot()
		}
		p = n.start()
		if rebooted {
			for name := range s.kept {
				waittest.Until(t, name+" is reformatted", func() bool {
					resp, err := p.client.GetVolume(t.Context(), &lvmdv1.GetVolumeRequest{Name: name})
					return err == nil && resp.GetVolume().GetState() == lvmdv1.VolumeState_VOLUME_STATE_READY && resp.GetVolume().GetEmptiedAt() != nil
				})
			}
		}
		s.check(p, all)
		if left := n.sealedDevices(); len(left) > 0 {
			t.Errorf("left: %q", left)
		}
		p.kill()
		return place
	})
}

func TestAnEncryptedVolumeThatWasRenamedComesBackWithWhatItHolds(t *testing.T) {
	n := newNode(t)
	p := n.start()
	v := p.create(sealed(create("pvc-fs", 16<<20, "ext4")))
	before := key(t, v)
	lvmByHand(t, "lvrename", n.group, v.GetId(), "another")
	waittest.Until(t, "it is gone", func() bool { return !p.has(v.GetId()) })
	lvmByHand(t, "lvrename", n.group, "another", v.GetId())
	waittest.Until(t, "it is back", func() bool {
		return p.has(v.GetId()) && p.volume(v.GetId()).GetState() == lvmdv1.VolumeState_VOLUME_STATE_READY
	})
	if again := p.volume(v.GetId()); again.GetEmptiedAt() != nil || again.GetDeviceMinor() != v.GetDeviceMinor() || key(t, again) != before {
		t.Errorf("volume %v, was %v", again, v)
	}
	if !strings.Contains(p.log.String(), "give the volume its name back") {
		t.Errorf("the log does not say what is left:\n%s", p.log)
	}
	p.delete(v.GetId())
	waittest.Until(t, "nothing is left", func() bool { return len(n.leftovers()) == 0 && len(n.sealedDevices()) == 0 })
}

func TestLVMDoesNotLookIntoEncryptedVolumes(t *testing.T) {
	n := newNode(t)
	p := n.start()
	all := p.available()
	v := p.create(sealed(create("pvc-raw", 16<<20, "")))
	lvmByHand(t, "vgcreate", "--yes", "users-own", v.GetDevicePath())
	lvmByHand(t, "vgs", "users-own")
	h := must.Get(lvm.NewHost(&lvm.Runner{Binary: "lvm", Timeout: waitTimeout, SystemDir: filepath.Join(n.dir, "state", "lvm")}))(t)
	if found, err := h.Scan(t.Context(), []string{"users-own", n.group}); err != nil || len(found) != 1 || found[0].Name != n.group {
		t.Errorf("found %+v, error %v", found, err)
	}
	p.delete(v.GetId())
	waittest.Until(t, "all space is back", func() bool { return p.available() == all })
}
