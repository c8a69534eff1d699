//go:build kernel

package lvmd_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func TestNothingShowsWhateverHappensToAWipe(t *testing.T) {
	n := newNode(t)
	n.config = "- {name: local, default: true, volumeGroup: carve, wipe: zero}\n"
	p := n.start()
	all := p.available()
	const size = 80 << 20 // a chunk and a quarter
	killed := func(v *lvmdv1.Volume) {
		t.Helper()
		p.kill()
		p = n.startCrashingAt(chunkWiped, 1)
		n.crashesDeleting(p, v)
	}
	for i, happens := range []struct {
		what string
		do   func(v *lvmdv1.Volume)
	}{
		{"the first run of a used disk", func(v *lvmdv1.Volume) {
			p.delete(v.GetId())
		}},
		{"killed in the middle", func(v *lvmdv1.Volume) {
			killed(v)
			p = n.start()
		}},
		{"killed in the middle and the journal lost", func(v *lvmdv1.Volume) {
			killed(v)
			must.Succeed(t, os.Remove(filepath.Join(n.dir, "state", "journal.db")))
			p = n.start()
			p.delete(v.GetId())
		}},
		{"removed by hand", func(v *lvmdv1.Volume) {
			lvmByHand(t, "lvremove", "--yes", "carve/"+v.GetId())
		}},
		{"removed by hand while lvmd is away", func(v *lvmdv1.Volume) {
			p.kill()
			lvmByHand(t, "lvremove", "--yes", "carve/"+v.GetId())
			p = n.start()
		}},
	} {
		v := p.create(create("pvc", size, ""))
		Map(t, v)
		if t.Failed() {
			t.Fatalf("before: %s", happens.what)
		}
		fill(t, v, byte(0xa1+i))
		happens.do(v)
		waittest.Until(t, "the space is back: "+happens.what, func() bool { return p.available() == all })
	}
	v := p.create(create("last", size/2, ""))
	Map(t, v)
	must.Get(p.client.ExpandVolume(t.Context(), &lvmdv1.ExpandVolumeRequest{Id: v.GetId(), RequiredBytes: size}))(t)
	Map(t, v)
}

// lvmd is killed when two chunks are wiped but only one is journaled. The test's write into the
// journaled one must survive the wipe.
func TestAWipeThatWasKilledGoesOnWhereTheJournalSays(t *testing.T) {
	n := newNode(t)
	p := n.startCrashingAt(chunkWiped, 2)
	all := p.available()
	const size = 160 << 20 // two and a half chunks
	v := p.create(create("pvc", size, ""))
	fill(t, v, 0xa1)
	n.crashesDeleting(p, v)
	mark := bytes.Repeat([]byte{0x77}, 4096)
	writeHead(t, v, mark)
	p = n.start()
	waittest.Until(t, "the space is back", func() bool { return p.available() == all })
	v = p.create(create("next", size, ""))
	if got := readHead(t, v, len(mark)); !bytes.Equal(got, mark) {
		t.Errorf("%d of %d bytes are as they were written into what was wiped: it was wiped again", bytes.Count(got, mark[:1]), len(mark))
	}
	writeHead(t, v, make([]byte, len(mark)))
	Map(t, v)
}

const chunkWiped = "delete: chunk wiped"

func (n *node) crashesDeleting(p *process, v *lvmdv1.Volume) {
	n.t.Helper()
	// lvmd may end before it answers.
	_, _ = p.client.DeleteVolume(n.t.Context(), &lvmdv1.DeleteVolumeRequest{Id: v.GetId()})
	waittest.Until(n.t, "lvmd has ended", func() bool { return p.hasEnded(time.Millisecond) })
	if crashed := n.read("crashed"); crashed != chunkWiped {
		n.t.Fatalf("lvmd crashed at %q, want %q", crashed, chunkWiped)
	}
}

func writeHead(t *testing.T, v *lvmdv1.Volume, b []byte) {
	t.Helper()
	f, err := os.OpenFile(v.GetDevicePath(), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.Write(b)
	must.Succeed(t, errors.Join(err, f.Sync(), f.Close()))
}

func readHead(t *testing.T, v *lvmdv1.Volume, length int) []byte {
	t.Helper()
	f := must.Get(os.Open(v.GetDevicePath()))(t)
	defer f.Close()
	b := make([]byte, length)
	must.Get(io.ReadFull(f, b))(t)
	return b
}

func TestAChangedFileIsTakenOver(t *testing.T) {
	n := newNode(t, "/dev/vdb")
	p := n.start()
	v := p.create(create("pvc", 8<<20, ""))
	change := func(classes string) {
		t.Helper()
		file := filepath.Join(n.dir, "lvmd.yaml")
		// As a ConfigMap changes: by replacing the file.
		must.Succeed(t, os.WriteFile(file+".new", []byte("apiVersion: carve.csi.local/v1\nkind: LvmdConfig\ndeviceClasses:\n"+classes), 0o600))
		must.Succeed(t, os.Rename(file+".new", file))
		must.Succeed(t, p.cmd.Process.Signal(syscall.SIGHUP))
	}
	const local = "- {name: local, default: true, volumeGroup: carve}\n"
	change("- {name: other, volumeGroup: carve}\n")
	waittest.Until(t, "it is refused", func() bool {
		c := p.state().GetClasses()
		return len(c) == 1 && len(c[0].GetConditions()) == 1 && c[0].GetConditions()[0].GetType() == "ConfigurationRefused"
	})
	change(local + "- {name: other, volumeGroup: carve}\n")
	waittest.Until(t, "there is another class", func() bool { return len(p.state().GetClasses()) == 2 })

	lvmByHand(t, "vgcreate", "--yes", "carve2", "/dev/vdc")
	t.Cleanup(func() {
		lvmByHand(t, "vgremove", "--yes", "--force", "carve2")
		lvmByHand(t, "pvremove", "--yes", "/dev/vdc")
	})
	change(local + "- {name: second, volumeGroup: carve2}\n")
	waittest.Until(t, "there is a class in another group", func() bool {
		c := p.classes()
		return len(c) == 2 && c[1].GetName() == "second"
	})
	r, err := p.client.GetVolume(t.Context(), &lvmdv1.GetVolumeRequest{Id: v.GetId()})
	if err != nil || r.GetVolume().GetState() != lvmdv1.VolumeState_VOLUME_STATE_READY {
		t.Errorf("%v, error %v", r, err)
	}
	change(local + "- {name: third, volumeGroup: carve-no-such-group}\n")
	waittest.Until(t, "a class waits for its group", func() bool {
		c := p.classes()
		return len(c) == 2 && len(c[1].GetConditions()) == 1 && c[1].GetConditions()[0].GetType() == "VolumeGroupMissing"
	})
	// lvmd rejects this: the disk is not persistent memory.
	change(local + "- {name: fourth, volumeGroup: carve2, medium: pmem}\n")
	waittest.Until(t, "the configuration before is back", func() bool {
		c := p.classes()
		return len(c) == 2 && c[1].GetName() == "third" && len(c[0].GetConditions()) == 1 && c[0].GetConditions()[0].GetType() == "ConfigurationRefused"
	})
	waittest.Until(t, "lvmd serves", p.serving)
	p.delete(v.GetId())
	waittest.Until(t, "it is gone", func() bool { return len(n.leftovers()) == 0 })
}

// classes returns a watcher's first classes, or nothing while lvmd does not know them.
func (p *process) classes() []*lvmdv1.DeviceClass {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	w, err := p.client.Watch(ctx, &lvmdv1.WatchRequest{})
	if err != nil {
		return nil
	}
	r, err := w.Recv()
	if err != nil {
		return nil
	}
	return r.GetClasses()
}

func TestAVolumesCourseByHand(t *testing.T) {
	n := newNode(t)
	p := n.start()
	hand := func(args ...string) string {
		t.Helper()
		return byHand(t, "carve-lvmd", append(args, "--socket", filepath.Join(n.dir, "lvmd.sock"))...)
	}
	if out := hand("classes"); !contains(out, "local (default)", "carve", "linear") {
		t.Errorf("classes:\n%s", out)
	}
	if out := hand("create", "pvc-1", "32Mi"); !contains(out, "pvc-1", "32Mi", "ext4", "ready") {
		t.Errorf("create:\n%s", out)
	}
	id := p.state().GetVolumes()[0].GetId()
	if out := hand("expand", id, "48Mi"); !contains(out, "48Mi") {
		t.Errorf("expand:\n%s", out)
	}
	if out := hand("volumes", "--json"); !contains(out, id, `"50331648"`) {
		t.Errorf("volumes:\n%s", out)
	}
	hand("delete", id)
	if out := hand("volumes"); contains(out, id) {
		t.Errorf("volumes:\n%s", out)
	}
	waittest.Until(t, "it is gone", func() bool { return len(n.leftovers()) == 0 })
}

func contains(text string, words ...string) bool {
	return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(text, w) })
}
