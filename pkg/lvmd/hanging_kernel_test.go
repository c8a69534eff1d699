//go:build kernel

package lvmd_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// slowlyFormatted wraps mkfs.xfs: it creates the file formatting, and begins once goOn exists.
func (n *node) slowlyFormatted() (formatting, goOn string) {
	n.t.Helper()
	n.programs = filepath.Join(n.dir, "programs")
	must.Succeed(n.t, os.Mkdir(n.programs, 0o700))
	formatting, goOn = filepath.Join(n.programs, "formatting"), filepath.Join(n.programs, "go")
	script := fmt.Sprintf("#!/bin/sh\n: > %s\nwhile [ ! -e %s ]; do sleep 0.1; done\nexec %s \"$@\"\n", formatting, goOn, must.Get(exec.LookPath("mkfs.xfs"))(n.t))
	must.Succeed(n.t, os.WriteFile(filepath.Join(n.programs, "mkfs.xfs"), []byte(script), 0o700)) //nolint:gosec // it is run
	return formatting, goOn
}

// killedAndThere counts a program's processes with a pending SIGKILL.
func killedAndThere(t *testing.T, program string) (n int) {
	t.Helper()
	for _, file := range must.Get(filepath.Glob("/proc/[0-9]*/status"))(t) {
		status, err := os.ReadFile(file)
		if err != nil || !strings.HasPrefix(string(status), "Name:\t"+program+"\n") {
			continue
		}
		for line := range strings.Lines(string(status)) {
			mask, pending := strings.CutPrefix(line, "ShdPnd:")
			if signals, err := strconv.ParseUint(strings.TrimSpace(mask), 16, 64); pending && err == nil && signals&(1<<(unix.SIGKILL-1)) != 0 {
				n++
			}
		}
	}
	return n
}

func TestAnMkfsThatHangsInTheKernelHoldsUpNoOtherGroup(t *testing.T) {
	disk := newFaulty(t, "/dev/vdc")
	n := newNode(t)
	n.otherGroup(t, disk.path())
	n.timeout = 20 * time.Second
	formatting, goOn := n.slowlyFormatted()
	p, metrics := n.startMeasured()
	ask := inClass(create("pvc-stuck", 320<<20, "xfs"), "other")
	ask.Encryption = names.EncryptionEphemeral
	ctx, giveUp := context.WithCancel(t.Context())
	defer giveUp()
	created := make(chan error, 1)
	go func() {
		_, err := p.client.CreateVolume(ctx, ask)
		created <- err
	}()
	waittest.Succeeds(t, "mkfs begins", func() error { _, err := os.Stat(formatting); return err })
	byHand(t, "dmsetup", "suspend", "--noflush", "--nolockfs", "--noudevsync", disk.name)
	resume := func() { byHand(t, "dmsetup", "resume", "--noudevsync", disk.name) }
	t.Cleanup(resume)
	must.Succeed(t, os.WriteFile(goOn, nil, 0o600))

	p.delete(p.create(create("pvc-meanwhile", 8<<20, "ext4")).GetId())
	giveUp()
	if err := <-created; status.Code(err) != codes.Canceled {
		t.Errorf("the creation that was given up: %v", err)
	}
	// A creation without callers continues for a minute.
	waittest.Until(t, "mkfs is killed and counts as stuck", func() bool { return killedAndThere(t, "mkfs.xfs") == 1 && metrics()["stuck"] > 0 })
	p.delete(p.create(create("pvc-later", 8<<20, "ext4")).GetId())

	resume()
	waittest.Until(t, "nothing is stuck", func() bool { return metrics()["stuck"] == 0 })
	waittest.Until(t, "nothing is left of the volume", func() bool {
		return strings.TrimSpace(lvmByHand(t, "lvs", "--noheadings", "other")) == ""
	})
	v := p.create(ask)
	p.delete(v.GetId())
	waittest.Until(t, "nothing is left", func() bool {
		return strings.TrimSpace(lvmByHand(t, "lvs", "--noheadings", "other")) == "" && len(n.leftovers()) == 0
	})
}

func TestCopiesThatHangInTheKernelHoldUpNoOtherInTheirGroup(t *testing.T) {
	n := newNode(t)
	p := n.start()
	all := p.available()
	const hanging = 2
	ids := make([]string, hanging+1)
	ask := func(i int) *lvmdv1.CreateVolumeRequest {
		r := create("copy-"+ids[i], 16<<20, "")
		r.Source = &lvmdv1.VolumeSource{VolumeId: ids[i]}
		return r
	}
	for i, name := range []string{"a", "b", "c"} {
		v := p.create(create(name, 16<<20, ""))
		fill(t, v, byte(0x11*(i+1)))
		ids[i] = v.GetId()
	}
	created := make(chan error, hanging)
	for i := range hanging {
		device := "carve-" + ids[i]
		byHand(t, "dmsetup", "suspend", "--noflush", "--nolockfs", "--noudevsync", device)
		t.Cleanup(func() { _ = exec.Command("dmsetup", "resume", "--noudevsync", device).Run() })
		go func() {
			_, err := p.client.CreateVolume(t.Context(), ask(i))
			created <- err
		}()
	}
	waittest.Until(t, "both copies have begun", func() bool { return len(n.active()) == len(ids)+hanging })
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	third, err := p.client.CreateVolume(ctx, ask(hanging))
	if err != nil {
		t.Fatalf("while two copies hang, a third: %v", err)
	}
	checkFilled(t, third.GetVolume(), 0x33, 16<<20)
	p.delete(p.create(create("pvc-meanwhile", 8<<20, "ext4")).GetId())

	for i := range hanging {
		byHand(t, "dmsetup", "resume", "--noudevsync", "carve-"+ids[i])
	}
	for range hanging {
		must.Succeed(t, <-created)
	}
	for _, v := range p.state().GetVolumes() {
		p.delete(v.GetId())
	}
	waittest.Until(t, "all space is back", func() bool { return p.available() == all && len(n.leftovers()) == 0 })
}

func reasonOf(err error) string {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return info.GetReason()
		}
	}
	return ""
}

// Only the pool's metadata stop answering. The killed command keeps LVM's lock of the group
// until it is gone, so requests in all classes of the group fail.
func TestACommandThatHangsInAThinPoolHoldsUpItsGroupAlone(t *testing.T) {
	n := newNode(t)
	n.otherGroup(t, "/dev/vdc")
	n.config += "- {name: thin, volumeGroup: other, type: thin, thin: {pool: carve-pool, size: 64Mi, overprovisioning: 4}}\n"
	n.timeout = 15 * time.Second
	p := n.start()
	kept := p.create(inClass(create("pvc-kept", 8<<20, ""), "other"))
	fill(t, kept, 0x5a)
	thin := p.create(inClass(create("pvc-thin", 8<<20, ""), "thin"))
	fill(t, thin, 0xa5)
	waittest.Until(t, "the tags of volumes that are made are taken off", func() bool {
		return !strings.Contains(lvmByHand(t, "lvs", "--noheadings", "-o", "lv_tags", "other"), "carve.making")
	})
	const metadata = "other-carve--pool_tmeta"
	byHand(t, "dmsetup", "suspend", "--noflush", "--nolockfs", "--noudevsync", metadata)
	resume := sync.OnceFunc(func() { byHand(t, "dmsetup", "resume", "--noudevsync", metadata) })
	t.Cleanup(resume)

	hanging := make(chan error, 1)
	go func() {
		_, err := p.client.CreateVolume(t.Context(), inClass(create("pvc-hangs", 8<<20, ""), "thin"))
		hanging <- err
	}()
	p.delete(p.create(create("pvc-beside-it", 8<<20, "ext4")).GetId())
	if err := <-hanging; status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("a creation in the pool: error %v, want DeadlineExceeded", err)
	}
	if killedAndThere(t, "lvm") == 0 {
		t.Error("no command hangs")
	}
	waittest.Until(t, "the class says so", func() bool { return len(p.classNamed("other").GetConditions()) > 0 })
	if _, err := p.client.CreateVolume(t.Context(), inClass(create("pvc-later", 8<<20, ""), "other")); reasonOf(err) != names.ReasonNotResponding {
		t.Errorf("a later creation in the group: error %v, want reason %s", err, names.ReasonNotResponding)
	}
	p.delete(p.create(create("pvc-after-it", 8<<20, "ext4")).GetId())

	resume()
	for name, class := range map[string]string{"pvc-hangs": "thin", "pvc-later": "other"} {
		waittest.Succeeds(t, "class "+class+" serves again", func() error {
			resp, err := p.client.CreateVolume(t.Context(), inClass(create(name, 8<<20, ""), class))
			if err == nil {
				Map(t, resp.GetVolume())
				p.delete(resp.GetVolume().GetId())
			}
			return err
		})
	}
	waittest.Until(t, "the conditions are over", func() bool {
		return len(p.classNamed("other").GetConditions()) == 0 && len(p.classNamed("thin").GetConditions()) == 0 && p.conditions() == ""
	})
	checkFilled(t, kept, 0x5a, 8<<20)
	checkFilled(t, thin, 0xa5, 8<<20)
	p.delete(kept.GetId())
	p.delete(thin.GetId())
	waittest.Until(t, "the pool alone is left", func() bool {
		return strings.TrimSpace(lvmByHand(t, "lvs", "--noheadings", "-o", "lv_name", "other")) == "carve-pool"
	})
}

// Another program holds LVM's lock of the group beyond the deadline of one command in each
// class.
func TestACommandThatIsKilledAndGoneHoldsUpNoOtherInItsGroup(t *testing.T) {
	n := newNode(t)
	n.debug = true
	n.config += "- {name: beside, volumeGroup: carve}\n"
	n.timeout = 5 * time.Second
	p := n.start()
	held := must.Get(os.OpenFile(filepath.Join(lvm.LockDir, "V_"+n.group), os.O_CREATE|os.O_RDWR, 0o600))(t)
	defer held.Close()
	must.Succeed(t, unix.Flock(int(held.Fd()), unix.LOCK_EX))
	created := make(chan error)
	for _, class := range []string{"local", "beside"} {
		go func() {
			_, err := p.client.CreateVolume(t.Context(), inClass(create("pvc-"+class, 8<<20, ""), class))
			created <- err
		}()
	}
	waittest.Until(t, "a command is killed", func() bool { return strings.Contains(p.log.String(), "killed: context deadline exceeded") })
	must.Succeed(t, unix.Flock(int(held.Fd()), unix.LOCK_UN))
	reasons := []string{reasonOf(<-created), reasonOf(<-created)}
	slices.Sort(reasons)
	if want := []string{"", names.ReasonCommandTimedOut}; !slices.Equal(reasons, want) {
		t.Errorf("the creations ended with reasons %q, want %q", reasons, want)
	}
	if c := p.conditions(); c != "" {
		t.Errorf("conditions %s", c)
	}
	for _, class := range []string{"local", "beside"} {
		p.delete(p.create(inClass(create("pvc-"+class, 8<<20, ""), class)).GetId())
	}
	waittest.Until(t, "nothing is left", func() bool { return len(n.leftovers()) == 0 })
}
