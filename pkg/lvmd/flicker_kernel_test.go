//go:build kernel

package lvmd_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// failing returns a target for a disk that fails everything, or only what features of the
// kernel's flakey target say.
func (f *faulty) failing(features string) string {
	return fmt.Sprintf("flakey %s %d 0 1 %s", f.disk, faultyStart, features) // it works for 0 seconds
}

type flickering struct {
	*scenario
	t *testing.T
	p *process
	// volumes counts the creations in made.
	made, refused, volumes int
	lastly                 error
	reported               bool
}

// typed wants an error that blames the disk or asks for a retry.
func (f *flickering) typed(what string, err error) {
	f.t.Helper()
	if err == nil {
		f.made++
		return
	}
	f.refused++
	f.t.Logf("%s: %v", what, err)
	s := status.Convert(err)
	reasons := slices.ContainsFunc(s.Details(), func(d any) bool {
		info, ok := d.(*errdetails.ErrorInfo)
		return ok && info.GetReason() != ""
	})
	if !slices.Contains([]codes.Code{codes.Unavailable, codes.DeadlineExceeded, codes.Aborted}, s.Code()) || !reasons {
		f.t.Errorf("%s: %v with %v", what, err, s.Details())
	}
}

func (f *flickering) ask(round int) {
	f.t.Helper()
	name := fmt.Sprintf("pvc-%d", f.volumes)
	r := f.asked[name]
	if r == nil {
		r = create(name, 16<<20, []string{"", "ext4"}[f.volumes%2])
		f.asked[name] = r
	}
	made, err := f.p.client.CreateVolume(f.t.Context(), r)
	f.lastly = err
	if f.typed("create "+name, err); err == nil {
		f.kept[name] = made.GetVolume()
		f.volumes++
	}
	grown, err := f.p.client.ExpandVolume(f.t.Context(), &lvmdv1.ExpandVolumeRequest{
		Id: f.kept["pvc-kept"].GetId(), RequiredBytes: f.kept["pvc-kept"].GetSizeBytes() + 4<<20,
	})
	if f.typed("expand", err); err == nil {
		f.kept["pvc-kept"] = grown.GetVolume()
	}
	if v := f.kept[name]; v != nil && round%2 == 0 {
		_, err := f.p.client.DeleteVolume(f.t.Context(), &lvmdv1.DeleteVolumeRequest{Id: v.GetId()})
		f.typed("delete", err)
		f.unsure[name] = err != nil
		delete(f.kept, name)
		delete(f.asked, name)
	}
	f.look()
}

func (f *flickering) look() {
	f.t.Helper()
	state := f.p.state()
	if c := state.GetClasses()[0].GetConditions(); len(c) > 0 && !f.reported {
		f.reported = true
		f.t.Logf("reported: %v", c)
	}
	for name, v := range f.kept {
		if !slices.ContainsFunc(state.GetVolumes(), func(other *lvmdv1.Volume) bool { return other.GetId() == v.GetId() }) {
			f.t.Errorf("acknowledged volume %s is not listed", name)
		}
	}
}

func TestADiskThatFailsNowAndThenLosesNothingAndOthersServe(t *testing.T) {
	disk := newFaulty(t, "/dev/vdb")
	n := newNode(t, disk.path())
	n.otherGroup(t, "/dev/vdc")
	n.standIn()
	p := n.start()
	all := p.available()
	for _, c := range []struct{ name, features string }{
		{"it does not answer", ""},
		{"it takes no writes", "1 error_writes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := &flickering{scenario: newScenario(n), t: t, p: p}
			f.create(p, create("pvc-kept", 8<<20, ""))
			t.Cleanup(disk.work)
			round := 0
			again := func() {
				t.Helper()
				waittest.Until(t, "volumes are made", func() bool {
					round++
					f.ask(round)
					return f.lastly == nil
				})
			}
			again()
			for _, at := range []struct {
				command string
				effect  int
			}{{"lvcreate", 1}, {"lvcreate", 6}, {"lvextend", 2}, {"lvremove", 2}} {
				t.Logf("the disk fails before effect %d of %s", at.effect, at.command)
				f.refused, f.reported = 0, false
				must.Succeed(t, os.WriteFile(filepath.Join(n.dir, "table"), []byte(disk.name+" "+disk.table(disk.failing(c.features))), 0o600))
				point := killPoint{at.effect, "disk", false}
				n.prepareKill(at.command, point)
				round += 2 - round%2 // A volume is deleted in such a round, too.
				f.ask(round)
				point.mustHit(t, n.killed(point))
				waittest.Until(t, "something failed, and that is reported", func() bool {
					round++
					f.ask(round)
					return f.refused > 1 && f.reported
				})
				p.delete(p.create(inClass(create(fmt.Sprintf("pvc-steady-%d", round), 8<<20, "ext4"), "other")).GetId())
				disk.work()
				again()
			}
			t.Logf("after %d rounds: %d made", round, f.made)
			waittest.Until(t, "nothing is wrong any more", func() bool {
				state := p.state()
				return len(state.GetClasses()[0].GetConditions()) == 0 &&
					!slices.ContainsFunc(state.GetVolumes(), func(v *lvmdv1.Volume) bool { return len(v.GetConditions()) > 0 })
			})
			for name, v := range f.kept {
				if v.GetFsType() == "" && name != "pvc-kept" {
					Map(t, v)
					fill(t, v, 0x5a)
				}
			}
			f.check(p, all)
		})
	}
}
