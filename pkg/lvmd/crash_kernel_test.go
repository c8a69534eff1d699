//go:build kernel

package lvmd_test

import (
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/waittest"
)

// soaking runs every crash point instead of a few random ones.
var soaking = os.Getenv("CARVE_SOAK") != ""

// chance repeats another run's choice with the CARVE_SEED that it logged.
func chance(t testing.TB) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if given := os.Getenv("CARVE_SEED"); given != "" {
		var err error
		if seed, err = strconv.ParseUint(given, 10, 64); err != nil {
			t.Fatalf("CARVE_SEED: %v", err)
		}
	}
	t.Logf("CARVE_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// places yields few random crash points, spread evenly up to most, or, when soaking, all until
// one is not reached.
func places(random *rand.Rand, few, most int) iter.Seq[int] {
	return func(yield func(int) bool) {
		if soaking {
			for n := 1; n <= 1000 && yield(n); n++ {
			}
			return
		}
		for i := range few {
			first, last := i*most/few, (i+1)*most/few
			if !yield(1 + first + random.IntN(last-first)) {
				return
			}
		}
	}
}

// scenario spans several runs of lvmd.
type scenario struct {
	n *node
	// kept holds acknowledged volumes by name; raw ones begin with 0x5a.
	kept        map[string]*lvmdv1.Volume
	asked       map[string]*lvmdv1.CreateVolumeRequest
	unsure      map[string]bool
	snapshots   map[string]*lvmdv1.Snapshot
	snapshotted map[string]*lvmdv1.CreateSnapshotRequest
}

func newScenario(n *node) *scenario {
	return &scenario{
		n: n, kept: map[string]*lvmdv1.Volume{}, asked: map[string]*lvmdv1.CreateVolumeRequest{}, unsure: map[string]bool{},
		snapshots: map[string]*lvmdv1.Snapshot{}, snapshotted: map[string]*lvmdv1.CreateSnapshotRequest{},
	}
}

func (s *scenario) create(p *process, r *lvmdv1.CreateVolumeRequest) {
	s.asked[r.GetName()] = r
	ctx, cancel := context.WithTimeout(s.n.t.Context(), waitTimeout)
	defer cancel()
	resp, err := p.client.CreateVolume(ctx, r)
	if err != nil {
		return
	}
	v := resp.GetVolume()
	s.kept[r.GetName()] = v
	switch {
	case v.GetFsType() != "":
	case r.GetSource() != nil:
		checkFilled(s.n.t, v, 0x5a, r.GetRequiredBytes())
	default:
		Map(s.n.t, v)
		fill(s.n.t, v, 0x5a)
	}
}

func (s *scenario) clone(p *process, name, of string) {
	source := &lvmdv1.VolumeSource{VolumeId: s.kept[of].GetId()}
	if snapshot := s.snapshots[of]; snapshot != nil {
		source = &lvmdv1.VolumeSource{SnapshotId: snapshot.GetId()}
	} else if s.kept[of] == nil {
		return
	}
	r := create(name, s.asked["pvc-kept"].GetRequiredBytes(), "")
	r.Source = source
	s.create(p, r)
}

func (s *scenario) snapshot(p *process, name, of string) {
	if s.kept[of] == nil {
		return
	}
	r := &lvmdv1.CreateSnapshotRequest{Name: name, SourceVolumeId: s.kept[of].GetId()}
	s.snapshotted[name] = r
	ctx, cancel := context.WithTimeout(s.n.t.Context(), waitTimeout)
	defer cancel()
	if resp, err := p.client.CreateSnapshot(ctx, r); err == nil {
		s.snapshots[name] = resp.GetSnapshot()
	}
}

func (s *scenario) expand(p *process, name string, bytes int64) {
	v := s.kept[name]
	if v == nil {
		return
	}
	ctx, cancel := context.WithTimeout(s.n.t.Context(), waitTimeout)
	defer cancel()
	if resp, err := p.client.ExpandVolume(ctx, &lvmdv1.ExpandVolumeRequest{Id: v.GetId(), RequiredBytes: bytes}); err == nil {
		s.kept[name] = resp.GetVolume()
	}
}

func (s *scenario) delete(p *process, name string) {
	ctx, cancel := context.WithTimeout(s.n.t.Context(), waitTimeout)
	defer cancel()
	if snapshot := s.snapshots[name]; snapshot != nil {
		delete(s.snapshots, name)
		delete(s.snapshotted, name)
		_, _ = p.client.DeleteSnapshot(ctx, &lvmdv1.DeleteSnapshotRequest{Id: snapshot.GetId()})
		return
	}
	v := s.kept[name]
	if v == nil {
		return
	}
	delete(s.kept, name)
	delete(s.asked, name)
	s.unsure[name] = true
	if _, err := p.client.DeleteVolume(ctx, &lvmdv1.DeleteVolumeRequest{Id: v.GetId()}); err == nil {
		delete(s.unsure, name)
	}
}

// check compares an lvmd with earlier acknowledgements, repeats the other requests, and deletes
// everything.
func (s *scenario) check(p *process, all int64) {
	t := s.n.t
	t.Helper()
	// lvmd's background work suspends devices for a moment, too.
	waittest.Until(t, "no device is suspended", func() bool {
		return !strings.Contains(mappings(t, "-o", "name", "-S", "suspended=Suspended"), s.n.group+"-")
	})
	s.n.checkDevices()
	for name, v := range s.kept {
		resp, err := p.client.GetVolume(t.Context(), &lvmdv1.GetVolumeRequest{Name: name})
		got := resp.GetVolume()
		if err != nil || got.GetId() != v.GetId() || got.GetState() != lvmdv1.VolumeState_VOLUME_STATE_READY ||
			got.GetSizeBytes() < v.GetSizeBytes() || slices.ContainsFunc(got.GetConditions(), isLasting) {
			t.Errorf("acknowledged volume %v is %v, error %v", v, got, err)
			continue
		}
		if v.GetFsType() != "" {
			if info, err := filesystem.Probe(got.GetDevicePath()); err != nil || string(info.Type) != v.GetFsType() {
				t.Errorf("acknowledged volume %s holds %+v, error %v", name, info, err)
			}
		} else {
			checkFilled(t, got, 0x5a, s.asked[name].GetRequiredBytes())
		}
	}
	for name, r := range s.asked {
		switch again := p.retry(r); {
		case s.kept[name] != nil:
			if again.GetId() != s.kept[name].GetId() {
				t.Errorf("a retry of %s made %v", name, again)
			}
		case r.GetSource() != nil:
			checkFilled(t, again, 0x5a, r.GetRequiredBytes())
		case r.GetFsType() == "":
			Map(t, again)
		}
	}
	for name, r := range s.snapshotted {
		again := p.snapshotAgain(r)
		if kept := s.snapshots[name]; !again.GetReady() || kept != nil && kept.GetId() != again.GetId() {
			t.Errorf("a retry of snapshot %v made %v", kept, again)
			continue
		}
		s.restore(p, again)
	}
	for name := range s.unsure {
		p.deleteAgain(&lvmdv1.DeleteVolumeRequest{Name: name})
	}
	list, err := p.client.ListSnapshots(t.Context(), &lvmdv1.ListSnapshotsRequest{})
	if err != nil {
		t.Error(err)
	}
	for _, snapshot := range list.GetSnapshots() {
		p.again("a snapshot is deleted", func() error {
			_, err := p.client.DeleteSnapshot(t.Context(), &lvmdv1.DeleteSnapshotRequest{Id: snapshot.GetId()})
			return err
		})
	}
	for _, v := range p.state().GetVolumes() {
		p.deleteAgain(&lvmdv1.DeleteVolumeRequest{Id: v.GetId()})
	}
	waittest.Until(t, "all space is back", func() bool { return p.available() == all })
	if left := s.n.leftovers(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func (s *scenario) restore(p *process, snapshot *lvmdv1.Snapshot) {
	s.n.t.Helper()
	fill(s.n.t, s.kept["pvc-kept"], 0xa5)
	r := create("pvc-of-"+snapshot.GetName(), s.asked["pvc-kept"].GetRequiredBytes(), "")
	r.Source = &lvmdv1.VolumeSource{SnapshotId: snapshot.GetId()}
	checkFilled(s.n.t, p.retry(r), 0x5a, r.GetRequiredBytes())
}

// checkDevices waits until the kernel's devices match LVM, hidden ones included: lvmd's
// background work changes both.
func (n *node) checkDevices() {
	n.t.Helper()
	var inconsistent string
	defer func() {
		if inconsistent != "" {
			n.t.Log(inconsistent)
		}
	}()
	waittest.Until(n.t, "devices are what the metadata says", func() bool {
		inconsistent = n.inconsistent()
		return inconsistent == ""
	})
}

func (n *node) inconsistent() string {
	tables, err := exec.Command("dmsetup", "table").CombinedOutput()
	if err != nil {
		return fmt.Sprintf("dmsetup table: %v\n%s", err, tables)
	}
	lengths := map[string]int64{}
	for line := range strings.Lines(string(tables)) {
		// NAME: START LENGTH TYPE …
		if words := strings.Fields(line); len(words) > 3 {
			sectors, err := strconv.ParseInt(words[2], 10, 64)
			if err != nil {
				return fmt.Sprintf("table %q: %v", line, err)
			}
			lengths[strings.TrimSuffix(words[0], ":")] += sectors
		}
	}
	sizes, err := exec.Command("lvm", "lvs", "--all", "--noheadings", "--units", "s", "--nosuffix", "-o", "lv_dm_path,lv_size", n.group, "--config", handConfig).Output()
	if err != nil {
		return fmt.Sprintf("lvs: %v", err)
	}
	for line := range strings.Lines(string(sizes)) {
		words := strings.Fields(line)
		if len(words) != 2 {
			continue // A pool's spare has no device.
		}
		device := strings.TrimPrefix(words[0], "/dev/mapper/")
		for _, name := range []string{device, device + "-tpool"} {
			if length, ok := lengths[name]; ok && strconv.FormatInt(length, 10) != words[1] {
				return fmt.Sprintf("device %s has %d sectors, by LVM's metadata it has %s", name, length, words[1])
			}
		}
	}
	for line := range strings.Lines(mappings(n.t, "--separator", " ", "-o", "name,tables_loaded")) {
		if words := strings.Fields(line); len(words) == 2 && strings.HasPrefix(words[0], n.group+"-") && words[1] != "Live" {
			return fmt.Sprintf("device %s has tables: %s", words[0], words[1])
		}
	}
	return ""
}

func isLasting(c *lvmdv1.Condition) bool { return c.GetType() != "OutOfSync" }

func (p *process) again(what string, ask func() error) {
	p.t.Helper()
	waittest.Until(p.t, what, func() bool {
		err := ask()
		if err != nil && status.Code(err) != codes.Aborted {
			p.t.Fatalf("%s: %v", what, err)
		}
		return err == nil
	})
}

func (p *process) retry(r *lvmdv1.CreateVolumeRequest) (v *lvmdv1.Volume) {
	p.t.Helper()
	p.again("a retry of "+r.GetName(), func() error {
		resp, err := p.client.CreateVolume(p.t.Context(), r)
		v = resp.GetVolume()
		return err
	})
	return v
}

func (p *process) snapshotAgain(r *lvmdv1.CreateSnapshotRequest) (snapshot *lvmdv1.Snapshot) {
	p.t.Helper()
	p.again("a retry of "+r.GetName(), func() error {
		resp, err := p.client.CreateSnapshot(p.t.Context(), r)
		snapshot = resp.GetSnapshot()
		return err
	})
	return snapshot
}

func (p *process) deleteAgain(r *lvmdv1.DeleteVolumeRequest) {
	p.t.Helper()
	p.again("a deletion", func() error {
		_, err := p.client.DeleteVolume(p.t.Context(), r)
		return err
	})
}
