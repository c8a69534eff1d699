//go:build kernel

package lvm_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/layout"
	"github.com/carve-csi/carve/pkg/lvm/lvmtest"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// loops makes loop devices over files in memory, with sizes in MiB.
func loops(t *testing.T, sizes ...int) []string {
	t.Helper()
	var devices []string
	for i, size := range sizes {
		file := filepath.Join(t.TempDir(), fmt.Sprintf("disk%d", i))
		must.Succeed(t, os.WriteFile(file, nil, 0o600))
		must.Succeed(t, os.Truncate(file, int64(size)<<20))
		out, err := exec.Command("losetup", "--find", "--show", file).CombinedOutput()
		if err != nil {
			t.Fatalf("losetup: %v\n%s", err, out)
		}
		device := strings.TrimSpace(string(out))
		t.Cleanup(func() {
			if out, err := exec.Command("losetup", "--detach", device).CombinedOutput(); err != nil {
				t.Errorf("losetup --detach %s: %v\n%s", device, err, out)
			}
		})
		devices = append(devices, device)
	}
	return devices
}

func groupOf(t *testing.T, name string, devices []string) {
	t.Helper()
	lvmByHand(t, append([]string{"vgcreate", "--yes", "--physicalextentsize", "1m", name}, devices...)...)
	t.Cleanup(func() { lvmByHand(t, "vgremove", "--yes", "--force", name) })
}

// It runs a few random histories, or many with CARVE_SOAK. CARVE_SEED, which it prints, repeats
// a run.
func TestRealFreeSpaceIsWhatTheArithmeticSays(t *testing.T) {
	rounds := 4
	if os.Getenv("CARVE_SOAK") != "" {
		rounds = 100
	}
	seed := rand.Uint64()
	if given := os.Getenv("CARVE_SEED"); given != "" {
		var err error
		if seed, err = strconv.ParseUint(given, 10, 64); err != nil {
			t.Fatalf("CARVE_SEED: %v", err)
		}
	}
	t.Logf("CARVE_SEED=%d", seed)
	for _, sizes := range [][]int{{30, 50, 20, 41, 25, 33}, {12, 40, 40}} {
		t.Run(fmt.Sprintf("devices of %v MiB", sizes), func(t *testing.T) {
			groupOf(t, "carve-capacity", loops(t, sizes...))
			r := rand.New(rand.NewPCG(seed, 0))
			e := lvmtest.Env{Groups: host(t), Group: "carve-capacity"}
			for range rounds {
				lvmtest.Capacity(t, e, 4, r.IntN)
				removeAll(t, e)
				if t.Failed() {
					return
				}
			}
		})
	}
}

func removeAll(t *testing.T, e lvmtest.Env) {
	t.Helper()
	p := must.Get(e.Groups.Placement(e.Group))(t)
	var names []string
	for name := range p.Volumes {
		if !strings.Contains(name, "_r") { // a component of a RAID volume
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return
	}
	must.Succeed(t, e.Groups.Remove(t.Context(), e.Group, names))
}

func TestRealRAIDReportsHowItsImagesDo(t *testing.T) {
	devices := loops(t, 40, 40, 40)
	groupOf(t, "carve-raid", devices)
	h := host(t)
	g := must.Get(h.Scan(t.Context(), []string{"carve-raid"}))(t)
	for _, l := range []layout.Layout{{Type: layout.RAID1, Mirrors: 1}, {Type: layout.RAID5, Stripes: 2}} {
		name := "cv-" + string(l.Type)
		o := lvm.CreateOptions{Group: "carve-raid", Volume: name, Layout: l, Extents: 8, On: l.Place(g[0].Free(), 8)}
		o.Options = []string{"--regionsize=1m", "--readahead=none"}
		o.Tags = []string{"carve.v1", "carve.name=" + strings.Repeat("x", 200)}
		before, err := h.Metadata("carve-raid")
		if err != nil {
			t.Fatal(err)
		}
		must.Succeed(t, h.Create(t.Context(), o))
		after, err := h.Metadata("carve-raid")
		// The text also holds the last command's line.
		const line = 2048
		if took, most := after.Size-before.Size, l.Text(o.Tags, 1)+line; err != nil || took <= 0 || took > most {
			t.Errorf("%v: the metadata grew by %d bytes, at most %d are foreseen, error %v", l, took, most, err)
		}
		t.Logf("%v: %d bytes of metadata, at most %d foreseen", l, after.Size-before.Size, l.Text(o.Tags, 1))
		// Until its thread has run once, the kernel reports every volume as out of sync.
		waittest.Succeeds(t, "the kernel reports a volume that is whole", func() error {
			s, err := h.RAIDStatus("carve-raid", name)
			if err == nil && (s.Images != l.Devices() || s.Failed != 0 || s.Total == 0 || l.Type == layout.RAID1 && s.Synced != s.Total) {
				err = fmt.Errorf("%v: status %+v", l, s)
			}
			return err
		})
	}
	if _, err := h.RAIDStatus("carve-raid", "cv-none"); err == nil {
		t.Error("a volume that is not there has a status")
	}
}
