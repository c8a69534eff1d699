//go:build kernel

package lvmd_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/filesystem"
)

// soaking tells whether every place is wanted; otherwise a few are taken, others
// each time.
var soaking = os.Getenv("CARVE_SOAK") != ""

// chance decides which places are taken. CARVE_SEED, which tests print, has a run
// take the same ones again.
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

// places yields the numbers of the places to die at: all of them until one is not
// reached, or so many of the first ones, of which each is as likely.
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

// saga is what was asked of one lvmd after the other, and what was acknowledged.
type saga struct {
	n *node
	// kept are acknowledged volumes by name; their raw ones are full of 0x5a.
	kept map[string]*lvmdv1.Volume
	// asked are the requests, by name; those not acknowledged are made again.
	asked map[string]*lvmdv1.CreateVolumeRequest
	// unsure are deletions that were not acknowledged, by name.
	unsure map[string]bool
}

func newSaga(n *node) *saga {
	return &saga{n: n, kept: map[string]*lvmdv1.Volume{}, asked: map[string]*lvmdv1.CreateVolumeRequest{}, unsure: map[string]bool{}}
}

func (s *saga) create(p *process, r *lvmdv1.CreateVolumeRequest) {
	s.asked[r.GetName()] = r
	ctx, cancel := context.WithTimeout(s.n.t.Context(), patience)
	defer cancel()
	resp, err := p.client.CreateVolume(ctx, r)
	if err != nil {
		return
	}
	v := resp.GetVolume()
	s.kept[r.GetName()] = v
	if v.GetFsType() == "" {
		clean(s.n.t, v)
		fill(s.n.t, v, 0x5a)
	}
}

func (s *saga) expand(p *process, name string, bytes int64) {
	v := s.kept[name]
	if v == nil {
		return
	}
	ctx, cancel := context.WithTimeout(s.n.t.Context(), patience)
	defer cancel()
	if resp, err := p.client.ExpandVolume(ctx, &lvmdv1.ExpandVolumeRequest{Id: v.GetId(), RequiredBytes: bytes}); err == nil {
		s.kept[name] = resp.GetVolume()
	}
}

func (s *saga) delete(p *process, name string) {
	v := s.kept[name]
	if v == nil {
		return
	}
	delete(s.kept, name)
	delete(s.asked, name)
	s.unsure[name] = true
	ctx, cancel := context.WithTimeout(s.n.t.Context(), patience)
	defer cancel()
	if _, err := p.client.DeleteVolume(ctx, &lvmdv1.DeleteVolumeRequest{Id: v.GetId()}); err == nil {
		delete(s.unsure, name)
	}
}

// check holds an lvmd against what its predecessors had acknowledged, asks again
// for the rest, and ends the saga with nothing left of it.
func (s *saga) check(p *process, all int64) {
	t := s.n.t
	t.Helper()
	if suspended := byHand(t, "dmsetup", "info", "-c", "--noheadings", "-o", "name", "-S", "suspended=Suspended"); strings.Contains(suspended, s.n.group+"-") {
		t.Errorf("devices are suspended: %s", suspended)
	}
	for name, v := range s.kept {
		resp, err := p.client.GetVolume(t.Context(), &lvmdv1.GetVolumeRequest{Name: name})
		got := resp.GetVolume()
		if err != nil || got.GetId() != v.GetId() || got.GetState() != lvmdv1.VolumeState_VOLUME_STATE_READY ||
			got.GetSizeBytes() < v.GetSizeBytes() || len(got.GetConditions()) > 0 {
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
		if again := p.retry(r); s.kept[name] != nil && again.GetId() != s.kept[name].GetId() {
			t.Errorf("a retry of %s made %v", name, again)
		} else if s.kept[name] == nil && r.GetFsType() == "" {
			clean(t, again)
		}
	}
	for name := range s.unsure {
		p.deleteAgain(&lvmdv1.DeleteVolumeRequest{Name: name})
	}
	for _, v := range p.state().GetVolumes() {
		p.deleteAgain(&lvmdv1.DeleteVolumeRequest{Id: v.GetId()})
	}
	wait(t, "all space is back", func() bool { return p.available() == all })
	if left := s.n.leftovers(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// retry asks until what is under way is done.
func (p *process) retry(r *lvmdv1.CreateVolumeRequest) (v *lvmdv1.Volume) {
	p.t.Helper()
	wait(p.t, "a retry succeeds", func() bool {
		resp, err := p.client.CreateVolume(p.t.Context(), r)
		if err != nil && status.Code(err) != codes.Aborted {
			p.t.Fatalf("a retry of %s: %v", r.GetName(), err)
		}
		v = resp.GetVolume()
		return err == nil
	})
	return v
}

func (p *process) deleteAgain(r *lvmdv1.DeleteVolumeRequest) {
	p.t.Helper()
	wait(p.t, "a deletion succeeds", func() bool {
		_, err := p.client.DeleteVolume(p.t.Context(), r)
		if err != nil && status.Code(err) != codes.Aborted {
			p.t.Fatalf("deleting %v: %v", r, err)
		}
		return err == nil
	})
}

// checkFilled reads that the beginning of a raw volume holds a pattern.
func checkFilled(t testing.TB, v *lvmdv1.Volume, pattern byte, length int64) {
	t.Helper()
	f, err := os.Open(v.GetDevicePath())
	if err != nil {
		t.Error(err)
		return
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, length))
	if err != nil || int64(bytes.Count(b, []byte{pattern})) != length {
		t.Errorf("acknowledged volume %s lost data: %d of %d bytes are right, error %v", v.GetName(), bytes.Count(b, []byte{pattern}), length, err)
	}
}

// live tells an lvmd everything that volumes go through.
func (s *saga) live(p *process) {
	s.create(p, create("pvc-fs", 16<<20, "ext4"))
	s.create(p, create("pvc-raw", 8<<20, ""))
	s.expand(p, "pvc-raw", 16<<20)
	s.delete(p, "pvc-fs")
	s.create(p, create("pvc-other", 8<<20, ""))
}

func TestKilledBetweenTwoEffectsOnRealLVM(t *testing.T) {
	n := newNode(t)
	p := n.start()
	all := p.available()
	p.kill()
	for number := range places(chance(t), 4, 60) {
		s := newSaga(n)
		p := n.startMortal(number)
		s.live(p)
		for i := 0; i < 50 && !p.dead(100*time.Millisecond) && len(n.leftovers()) > len(s.kept); i++ {
		}
		place := n.read("died")
		p.kill()
		t.Logf("place %d: %s", number, place)
		p = n.start()
		s.check(p, all)
		p.kill()
		if t.Failed() {
			t.Fatalf("died at place %d, %q", number, place)
		}
		if place == "" {
			if number < 20 {
				t.Errorf("only %d places to die at", number-1)
			}
			return // It survived: there are no more places.
		}
	}
}

func TestLVMKilledInTheMiddleOfACommand(t *testing.T) {
	n := newNode(t)
	n.standIn()
	random := chance(t)
	p := n.start()
	all := p.available()
	for _, command := range []string{"lvcreate", "lvextend", "lvremove"} {
		for _, whom := range []string{"lvm", "lvmd"} {
			t.Run(fmt.Sprintf("%s, with %s", command, whom), func(t *testing.T) {
				for number := range places(random, 2, 8) {
					if n.slayAt(p, all, &p, command, number, whom) {
						break
					}
					if t.Failed() {
						t.Fatalf("%s was killed before effect %d", command, number)
					}
				}
			})
		}
	}
}

// slayAt has one command killed before its effect of the number, and lvmd with it
// if whom says so, and checks what becomes of it. It returns true when the command
// had fewer effects.
func (n *node) slayAt(p *process, all int64, next **process, command string, number int, whom string) (ended bool) {
	n.t.Helper()
	s := newSaga(n)
	s.create(p, create("pvc-kept", 8<<20, ""))
	_, _ = os.Remove(n.dir+"/effects"), os.Remove(n.dir+"/slain")
	if err := os.WriteFile(n.dir+"/slay", []byte(command+" "+strconv.Itoa(number)+" "+whom), 0o600); err != nil {
		n.t.Fatal(err)
	}
	switch command {
	case "lvcreate":
		s.create(p, create("pvc-new", 8<<20, ""))
	case "lvextend":
		s.expand(p, "pvc-kept", 12<<20)
	case "lvremove":
		s.delete(p, "pvc-kept")
	}
	wait(n.t, "the command ended, or was killed", func() bool { return n.read("effects") != "" || n.read("slain") != "" })
	n.t.Logf("killed before effect %d of %s; it had %q", number, command, n.read("effects"))
	if whom == "lvmd" && n.read("effects") == "" {
		wait(n.t, "lvmd is dead", func() bool { return p.dead(time.Millisecond) })
		p = n.start()
		*next = p
	}
	s.check(p, all)
	return n.read("effects") != ""
}
