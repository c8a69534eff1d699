//go:build kernel

package lvmd_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func thinNode(t *testing.T, settings string) *node {
	n := newNode(t)
	n.config = "- {name: thin, default: true, volumeGroup: carve, type: thin, thin: {pool: carve-pool, size: 64Mi, " + settings + "}}\n"
	return n
}

func (p *process) hasCondition(kind string) bool {
	return slices.ContainsFunc(p.state().GetClasses()[0].GetConditions(), func(c *lvmdv1.Condition) bool { return c.GetType() == kind })
}

func TestThinVolumesOfARealPoolAreExactAndClean(t *testing.T) {
	n := thinNode(t, "overprovisioning: 2, dataThreshold: 100%")
	p := n.start()
	most := p.state().GetClasses()[0].GetMaximumVolumeSizeBytes()
	if most != 128<<20 {
		t.Errorf("the largest volume has %d bytes", most)
	}
	_, err := p.client.CreateVolume(t.Context(), create("pvc-1", most+1, ""))
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("error %v", err)
	}
	for generation := range 3 {
		v := p.create(create("pvc-1", 48<<20, ""))
		Map(t, v)
		fill(t, v, byte(0xa1+generation))
		p.delete(v.GetId())
		waittest.Until(t, "the space is back", func() bool { return p.available() == most })
	}
	fs := p.create(create("pvc-fs", 64<<20, "ext4"))
	dir, unmount := mount(t, fs)
	must.Succeed(t, os.WriteFile(dir+"/data", []byte("kept"), 0o600))
	unmount()
	if err := p.stop(); err != nil {
		t.Error(err)
	}
	lvmByHand(t, "vgchange", "--activate", "n", n.group)
	p = n.start()
	again := p.create(create("pvc-fs", 64<<20, "ext4"))
	dir, unmount = mount(t, again)
	if b, err := os.ReadFile(dir + "/data"); err != nil || string(b) != "kept" {
		t.Errorf("%q, error %v", b, err)
	}
	unmount()
	p.delete(again.GetId())
	waittest.Until(t, "the space is back", func() bool { return p.available() == most })
	if left := strings.Fields(lvmByHand(t, "lvs", "--noheadings", "-o", "lv_name", n.group)); len(left) != 1 {
		t.Errorf("left: %v", left)
	}
}

// The command that removes the volume is held back, so the pool regains the space before it.
func TestAThinVolumeIsGivenBackOutsideTheExclusiveSlot(t *testing.T) {
	n := thinNode(t, "overprovisioning: 2")
	n.keeps = []string{"carve-pool"}
	hold := filepath.Join(n.dir, "hold")
	n.lvm = filepath.Join(n.dir, "holding-lvm")
	must.Succeed(t, os.WriteFile(n.lvm, fmt.Appendf(nil, "#!/bin/sh\n"+
		"[ \"$1\" != lvremove ] || while [ -e %s ]; do sleep 0.05; done\nexec lvm \"$@\"\n", hold), 0o700))
	p := n.start()
	v := p.create(create("pvc-1", 32<<20, ""))
	fill(t, v, 0x5a)
	used := func() string {
		fields := strings.Fields(byHand(t, "dmsetup", "status", "carve-carve--pool-tpool"))
		chunks, _, _ := strings.Cut(fields[5], "/")
		return chunks
	}
	if got := used(); got == "0" {
		t.Fatalf("the pool has %s chunks in use after %d bytes were written", got, v.GetSizeBytes())
	}
	must.Succeed(t, os.WriteFile(hold, nil, 0o600))
	p.delete(v.GetId())
	waittest.Until(t, "no chunk of the pool is in use", func() bool { return used() == "0" }, func() any { return used() })
	if _, err := os.Stat(v.GetDevicePath()); err != nil {
		t.Errorf("the volume was removed by another command than lvremove: %v", err)
	}
	must.Succeed(t, os.Remove(hold))
	waittest.Until(t, "nothing is left", func() bool { return len(n.leftovers()) == 0 })
}

func TestAFullPoolFailsWritesAndIsReported(t *testing.T) {
	n := thinNode(t, "overprovisioning: 3")
	p := n.start()
	v := p.create(create("pvc-1", 96<<20, ""))
	f, err := os.OpenFile(v.GetDevicePath(), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	// Otherwise the kernel would hold writes for a minute before they fail.
	if status := byHand(t, "dmsetup", "status", "carve-carve--pool-tpool"); !strings.Contains(status, "error_if_no_space") {
		t.Errorf("the pool's status is %q, want that it fails writes when it is full", status)
	}
	chunk := make([]byte, 4<<20)
	for err == nil {
		if _, err = f.Write(chunk); err == nil {
			err = f.Sync()
		}
	}
	f.Close()
	if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EIO) {
		t.Errorf("writing more than the pool holds: %v", err)
	}
	waittest.Until(t, "the condition is reported", func() bool { return p.hasCondition("PoolFull") && p.available() == 0 })
	_, err = p.client.CreateVolume(t.Context(), create("pvc-2", 4<<20, ""))
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "full") {
		t.Errorf("error %v", err)
	}
	p.delete(v.GetId())
	waittest.Until(t, "all is well", func() bool { return len(p.state().GetClasses()[0].GetConditions()) == 0 && p.available() > 0 })
	Map(t, p.create(create("pvc-3", 64<<20, "")))
}

func TestARealPoolGrowsBeforeItIsFull(t *testing.T) {
	n := thinNode(t, "overprovisioning: 2, dataThreshold: 50%, autoExtend: {step: 32Mi, limit: 128Mi}")
	p := n.start()
	v := p.create(create("pvc-1", 48<<20, ""))
	total := func() int64 { return p.state().GetClasses()[0].GetTotalBytes() / 2 }
	if total() != 64<<20 {
		t.Errorf("%d bytes at first", total())
	}
	fill(t, v, 0x5a)
	waittest.Until(t, "the pool has grown", func() bool { return total() == 128<<20 && len(p.state().GetClasses()[0].GetConditions()) == 0 })
}
