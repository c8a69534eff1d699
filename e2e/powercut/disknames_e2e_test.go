//go:build e2e

package powercut

import (
	"bytes"
	"context"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/carve-csi/carve/e2e/vm"
)

const (
	smallBytes = 128 << 20
	// usedFrom is where the small disks hold what an earlier owner left. Their
	// beginning is zero, or lvmd would not take them.
	usedFrom = 4 << 20

	// withSelectors has lvmd make two groups, one of two disks by their serial numbers
	// and one by the disk's path.
	withSelectors = config +
		"- {name: pair, volumeGroup: pair}\n" +
		"- {name: named, volumeGroup: named}\n" +
		"volumeGroups:\n" +
		"- {name: pair, devices: [{byID: virtio-pair-*}]}\n" +
		"- {name: named, devices: [{path: /dev/vdg}]}\n"
)

// usedDisk makes a disk that has had an owner.
func usedDisk(t *testing.T, dir, name string) vm.Disk {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := vm.MakeSparse(path, smallBytes); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(bytes.Repeat([]byte("of an earlier owner "), (smallBytes-usedFrom)/20), usedFrom); err != nil {
		t.Fatal(err)
	}
	return vm.Disk{Path: path, Serial: name}
}

// physicalVolumes lists, by UUID, each physical volume's group and its device.
func physicalVolumes(ctx context.Context, t *testing.T, r *rig) (groups, devices map[string]string) {
	t.Helper()
	out, err := r.run(ctx, "pvs", "--noheadings", "-o", "pv_uuid,vg_name,pv_name")
	if err != nil {
		t.Fatal(err)
	}
	groups, devices = map[string]string{}, map[string]string{}
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		if len(fields) != 3 {
			t.Fatalf("a physical volume of no group: %s", out)
		}
		groups[fields[0]], devices[fields[0]] = fields[1], fields[2]
	}
	return groups, devices
}

// waitWiped waits until so much is available in a class: what is deleted is wiped
// first. It returns what is available in all classes.
func waitWiped(ctx context.Context, t *testing.T, r *rig, class string, want int64) map[string]int64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, reclaimTimeout)
	defer cancel()
	for {
		now, err := r.freeSpace(ctx)
		if err == nil && now[class] == want {
			return now
		}
		select {
		case <-ctx.Done():
			t.Fatalf("available in the classes is %v, want %d in %s; error %v", now, want, class, err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// TestDisksMayChangeTheirNamesOverAReboot starts a machine again with its disks in
// another order, so that each but one has the name of another disk.
func TestDisksMayChangeTheirNamesOverAReboot(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 4*bootBound)
	defer cancel()
	dir := t.TempDir()
	r, err := newRig(ctx, dir, 1, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.close(); err != nil {
			t.Error(err)
		}
	})
	group, state, mirror := r.config.Disks[0], r.config.Disks[1], r.config.Disks[2]
	first, second, named := usedDisk(t, dir, "pair-1"), usedDisk(t, dir, "pair-2"), usedDisk(t, dir, "named")
	r.config.Guest = guestConfig(withSelectors)
	// From /dev/vdb on; the state disk keeps its place, for nothing but its path
	// says which it is.
	r.config.Disks = []vm.Disk{group, state, mirror, first, second, named}
	if err := r.boot(ctx); err != nil {
		t.Fatal(err)
	}
	empty, err := r.freeSpace(ctx)
	if err != nil {
		t.Fatal(err)
	}
	l := &ledger{}
	create := func(class string) *entry {
		t.Helper()
		e := l.open(&entry{class: class, block: true, seed: uint64(len(l.entries))})
		if err := r.create(ctx, l, e); err != nil {
			t.Fatalf("%v\nlvmd's log:\n%s", err, r.log())
		}
		if err := r.write(ctx, l, e); err != nil {
			t.Fatal(err)
		}
		return e
	}
	for _, class := range []string{"local", "mirrored", "thin", "pair", "named"} {
		create(class)
	}
	// One disk of the pair has a volume, and had nothing else. The other one is filled
	// and wiped: it is zeroes then, and known to be.
	whole, err := r.lvmd(ctx, "create", "whole", strconv.FormatInt(empty["pair"]/2, 10), "--class", "pair", "--block")
	if err != nil {
		t.Fatalf("%v\nlvmd's log:\n%s", err, r.log())
	}
	out, err := r.run(ctx, "pvs", "--noheadings", "--nosuffix", "--units", "b", "-o", "pv_free", "--select", "vg_name=pair", "-O", "pv_free")
	if free := strings.Fields(out); err != nil || len(free) != 2 || free[0] != "0" || free[1] != strconv.FormatInt(empty["pair"]/2-volumeBytes, 10) {
		t.Fatalf("a disk of the pair must be full, the other one free but for a volume; free is %q, error %v", out, err)
	}
	if out, err := r.run(ctx, lvmd, "delete", whole[0].ID); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	before := waitWiped(ctx, t, r, "pair", empty["pair"]-volumeBytes)
	groups, devices := physicalVolumes(ctx, t, r)
	if len(groups) != 5 {
		t.Fatalf("physical volumes, by group: %v", groups)
	}
	if _, err := r.cut(); err != nil {
		t.Fatal(err)
	}

	r.config.Disks = []vm.Disk{named, state, mirror, second, first, group}
	if err := r.boot(ctx); err != nil {
		t.Fatal(err)
	}
	groupsNow, devicesNow := physicalVolumes(ctx, t, r)
	if !maps.Equal(groupsNow, groups) {
		t.Errorf("physical volumes are in the groups %v, were in %v", groupsNow, groups)
	}
	renamed := 0
	for uuid, device := range devices {
		if devicesNow[uuid] != device {
			renamed++
		}
	}
	if renamed != 4 {
		t.Fatalf("%d disks have other names, want 4: %v, were %v", renamed, devicesNow, devices)
	}
	if err := r.check(ctx, l); err != nil {
		t.Errorf("%v\nlvmd's log:\n%s", err, r.log())
	}
	if survivors := l.acks[survival]; survivors != 5 {
		t.Errorf("%d volumes have what was written to them, want 5", survivors)
	}
	if now, err := r.freeSpace(ctx); err != nil || !maps.Equal(now, before) {
		t.Errorf("available in the classes is %v, was %v; error %v", now, before, err)
	}
	for _, class := range []string{"local", "mirrored", "thin", "named"} {
		create(class)
	}
	// All that is left of both disks, of which only one is known to be zeroes.
	rest, err := r.lvmd(ctx, "create", "rest", strconv.FormatInt(before["pair"], 10), "--class", "pair", "--block")
	if err != nil {
		t.Fatalf("%v\nlvmd's log:\n%s", err, r.log())
	}
	if err := r.readsAsZeroes(ctx, rest[0].DevicePath, before["pair"]); err != nil {
		t.Errorf("the rest of the pair: %v", err)
	}
}
