//go:build kernel

package lvm_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

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
	must.Succeed(t, p.CreatePool(t.Context(), lvm.PoolOptions{
		Group: name, Pool: "pool", Extents: 8, MetadataBytes: found.ExtentSize, ChunkSize: 64 << 10,
	}))
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
	must.Succeed(p.t, p.CreateThin(p.t.Context(), lvm.ThinOptions{Group: p.group, Pool: "pool", Volume: volume, Bytes: thinBytes}))
}

func (p *thinPool) remove(volume string) {
	p.t.Helper()
	must.Succeed(p.t, p.Remove(p.t.Context(), p.group, []string{volume}))
}

func (p *thinPool) device(volume string) string { return filepath.Join("/dev", p.group, volume) }

func (p *thinPool) fill(volume string, b byte) {
	p.t.Helper()
	f := must.Get(os.OpenFile(p.device(volume), os.O_WRONLY, 0))(p.t)
	defer f.Close()
	must.Get(f.Write(bytes.Repeat([]byte{b}, thinBytes)))(p.t)
	must.Succeed(p.t, f.Sync())
}

func (p *thinPool) wantFilled(volume string, want byte) {
	p.t.Helper()
	got := must.Get(os.ReadFile(p.device(volume)))(p.t)
	if at := bytes.IndexFunc(got, func(r rune) bool { return r != rune(want) }); len(got) != thinBytes || at >= 0 {
		p.t.Errorf("%s has %d bytes, of which the one at %d is not %#x", volume, len(got), at, want)
	}
}

// leave puts a message for the pool into LVM's metadata. A kill or a power cut leaves it there
// after the kernel carried it out and before LVM recorded that.
func (p *thinPool) leave(message string) {
	p.t.Helper()
	p.leaveIn("pool", message)
}

func (p *thinPool) leaveIn(pool, message string) {
	p.t.Helper()
	file := filepath.Join(p.t.TempDir(), "metadata")
	lvmByHand(p.t, "vgcfgbackup", "--file", file, p.group)
	text := must.Get(os.ReadFile(file))(p.t)
	at := regexp.MustCompile(`(?ms)^\s*` + pool + ` \{$.*?^\s*transaction_id = \d+$`).FindIndex(text)
	if at == nil {
		p.t.Fatalf("no pool %s in\n%s", pool, text)
	}
	text = []byte(string(text[:at[1]]) + "\nmessage1 {\n" + message + "\n}\n" + string(text[at[1]:]))
	must.Succeed(p.t, os.WriteFile(file, text, 0o600))
	lvmByHand(p.t, "vgcfgrestore", "--yes", "--force", "--file", file, p.group)
	p.scan()
}

// With discards passed down, a power cut makes a pool lose chunks.
func TestAPoolPassesNoDiscardDown(t *testing.T) {
	p := newThinPool(t, "carve-discard")
	if err := p.ExtendPool(t.Context(), p.group, "pool", 9); err != nil { // This reloads its table.
		t.Error(err)
	}
	table, err := exec.Command("dmsetup", "table", "carve--discard-pool").CombinedOutput()
	if err != nil || !strings.Contains(string(table), " no_discard_passdown") {
		t.Errorf("the pool's table is %s, error %v", table, err)
	}
}

// LVM does not know the volume in the pool, as an administrator's lvremove may leave it.
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

// unacknowledge resets the pool to the number before the last message.
func (p *thinPool) unacknowledge() (acknowledge func()) {
	p.t.Helper()
	device := strings.ReplaceAll(p.group, "-", "--") + "-pool-tpool"
	number := must.Get(strconv.Atoi(strings.Fields(dmsetup(p.t, "status", "--noflush", device))[3]))(p.t)
	set := func(from, to int) {
		dmsetup(p.t, "message", device, "0", fmt.Sprintf("set_transaction_id %d %d", from, to))
	}
	set(number, number-1)
	return func() { set(number-1, number) }
}

func (p *thinPool) snapshot(of, name string) {
	p.t.Helper()
	must.Succeed(p.t, p.Snapshot(p.t.Context(), lvm.SnapshotOptions{Group: p.group, Origin: of, Volume: name}))
}

// It leaves messages that the kernel carried out, with or without their number where that
// matters, and tries each next operation.
func TestPoolsGoOnWhateverAKilledCommandLeft(t *testing.T) {
	for _, c := range []struct {
		message      string
		acknowledged bool
	}{
		{"delete = 7", true}, {`create = "cv1"`, true}, {`create = "snap"`, true}, {`create = "snap"`, false},
	} {
		sent := map[bool]string{true: "sent the number", false: "not"}[c.acknowledged]
		t.Run(c.message+", and the kernel was "+sent, func(t *testing.T) {
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
			p.create("cv3") // It gets cv2's number in the pool.
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

// The pool was never sent the message that creates a volume. LVM sends it with the next command
// that changes the pool, but not with an activation.
func TestAScanHasAPoolMakeWhatAKilledCommandDidNot(t *testing.T) {
	p := newThinPool(t, "carve-unsent")
	p.create("cv1")
	p.fill("cv1", 1)
	p.snapshot("cv1", "snap")
	p.create("cv2")
	unsend := func(volume string, number int) {
		lvmByHand(t, "lvchange", "--activate", "n", "--ignoreactivationskip", p.group+"/"+volume)
		dmsetup(t, "message", "carve--unsent-pool-tpool", "0", fmt.Sprintf("delete %d", number))
		p.unacknowledge()
		p.leave(fmt.Sprintf("create = %q", volume))
	}
	unsend("cv2", 3)
	must.Succeed(t, p.Activate(t.Context(), p.group, []string{"cv2"}))
	p.wantFilled("cv2", 0)
	p.remove("cv2")

	unsend("snap", 2)
	if got := p.scan().Unmade.Names; !slices.Equal(got, []string{"snap"}) {
		t.Errorf("snapshots %q are unmade, want snap", got)
	}
	lvmByHand(t, "vgchange", "--activate", "n", p.group)
	if got := p.scan().Unmade; !got.Unknown {
		t.Errorf("while the pool is not active, snapshots %q are unmade", got.Names)
	}
	must.Succeed(t, p.Activate(t.Context(), p.group, []string{"cv1"}))
	if got := p.scan().Unmade; got.Unknown || !slices.Equal(got.Names, []string{"snap"}) {
		t.Errorf("after an activation, snapshots %q are unmade (unknown: %v), want snap", got.Names, got.Unknown)
	}
	p.remove("snap")
	if got := p.scan().Unmade; len(got.Names) > 0 || got.Unknown {
		t.Errorf("snapshots %q are unmade after their removal (unknown: %v)", got.Names, got.Unknown)
	}
	p.snapshot("cv1", "snap2")
	p.wantFilled("snap2", 1)
	p.wantFilled("cv1", 1)
}

// It simulates a power cut between LVM's first two steps of creating a thin volume.
func TestAPoolMakesWhatItWasNotAskedForWhenItIsActivated(t *testing.T) {
	for _, checked := range []bool{false, true} {
		t.Run(fmt.Sprintf("after a check of its own: %v", checked), func(t *testing.T) {
			p := newThinPool(t, "carve-cut")
			p.create("cv1")
			lvmByHand(t, "lvchange", "--activate", "n", p.group+"/cv1")
			dmsetup(t, "message", "carve--cut-pool-tpool", "0", "delete 1")
			p.unacknowledge()
			lvmByHand(t, "vgchange", "--activate", "n", p.group)
			p.leave(`create = "cv1"`)
			must.Succeed(t, p.ActivatePool(t.Context(), p.group, "pool", checked))
			must.Succeed(t, p.Activate(t.Context(), p.group, []string{"cv1"}))
			p.wantFilled("cv1", 0)
			p.remove("cv1")
		})
	}
}

func TestAScanSendsAPoolItsMessagesBesideOneThatIsNotActive(t *testing.T) {
	p := newThinPool(t, "carve-two")
	p.create("cv1")
	must.Succeed(t, p.CreatePool(t.Context(), lvm.PoolOptions{
		Group: p.group, Pool: "inactive", Extents: 2, MetadataBytes: p.scan().ExtentSize, ChunkSize: 64 << 10,
	}))
	p.leaveIn("inactive", "delete = 7")
	lvmByHand(t, "vgchange", "--activate", "n", p.group)
	must.Succeed(t, p.Activate(t.Context(), p.group, []string{"pool"}))
	dmsetup(t, "message", "carve--two-pool-tpool", "0", "delete 1")
	p.unacknowledge()
	p.leave(`create = "cv1"`)
	if got := p.scan().Unmade; !got.Unknown {
		t.Errorf("while a pool is not active, snapshots %q are unmade", got.Names)
	}
	must.Succeed(t, p.Activate(t.Context(), p.group, []string{"cv1"}))
	p.wantFilled("cv1", 0)
}

func (p *thinPool) wantError(what string, err error, words ...string) {
	p.t.Helper()
	for _, word := range words {
		if err == nil || !strings.Contains(err.Error(), word) {
			p.t.Errorf("%s: error %v, want one about %q", what, err, word)
		}
	}
}

// change runs every kind of command with which LVM sends waiting messages.
func (p *thinPool) change() map[string]error {
	return map[string]error{
		"a creation": p.CreateThin(p.t.Context(), lvm.ThinOptions{Group: p.group, Pool: "pool", Volume: "new", Bytes: thinBytes}),
		"a snapshot": p.Snapshot(p.t.Context(), lvm.SnapshotOptions{Group: p.group, Origin: "cv1", Volume: "new"}),
		"a removal":  p.Remove(p.t.Context(), p.group, []string{"cv1"}),
	}
}

func TestNothingIsDoneToAnInactivePoolThatHasMessages(t *testing.T) {
	p := newThinPool(t, "carve-inactive")
	p.create("cv1")
	p.fill("cv1", 1)
	p.leave("delete = 7")
	lvmByHand(t, "vgchange", "--activate", "n", p.group)
	p.scan()
	for what, err := range p.change() {
		p.wantError(what, err, `thin pool "pool"`, "messages that were not finished", "no such device-mapper device")
	}
	must.Succeed(t, p.Activate(t.Context(), p.group, []string{"pool", "cv1"}))
	p.create("cv2")
	p.wantFilled("cv2", 0)
	p.wantFilled("cv1", 1)
}

func TestNoMessageIsSentWhileAnotherCommandHasTheGroup(t *testing.T) {
	p := newThinPool(t, "carve-locked")
	p.create("cv1")
	p.fill("cv1", 1)
	p.leave("delete = 7")
	held := must.Get(os.OpenFile(filepath.Join(lvm.LockDir, "V_"+p.group), os.O_CREATE|os.O_RDWR, 0o600))(t)
	defer held.Close()
	must.Succeed(t, unix.Flock(int(held.Fd()), unix.LOCK_EX))
	for what, err := range p.change() {
		if !errors.Is(err, lvm.ErrBusy) {
			t.Errorf("%s: error %v, want %v", what, err, lvm.ErrBusy)
		}
	}
	must.Succeed(t, unix.Flock(int(held.Fd()), unix.LOCK_UN))
	p.create("cv2")
	p.wantFilled("cv2", 0)
	p.wantFilled("cv1", 1)
}

func TestNothingIsDoneToAPoolThatCarriedOutSomeOfItsMessages(t *testing.T) {
	p := newThinPool(t, "carve-some")
	p.create("cv1")
	p.fill("cv1", 1)
	p.snapshot("cv1", "snap")
	p.leave("create = \"snap\"\n}\nmessage2 {\ndelete = 7")
	acknowledge := p.unacknowledge()
	for what, err := range p.change() {
		p.wantError(what, err, `thin pool "pool"`, "some of 2 messages were sent")
	}
	p.wantFilled("snap", 1)
	acknowledge()
	p.create("cv2")
	p.wantFilled("cv2", 0)
}

// The disk below the metadata fails.
func TestLVMReportsThatAPoolFailedThatHasMessages(t *testing.T) {
	p := newThinPool(t, "carve-failed")
	p.create("cv1")
	p.leave("delete = 7")
	device := strings.ReplaceAll(p.group, "-", "--") + "-pool"
	table := dmsetup(t, "table", device+"_tmeta")
	set := func(table string) {
		dmsetup(t, "suspend", "--noflush", "--nolockfs", device+"_tmeta")
		dmsetup(t, "load", device+"_tmeta", "--table", table)
		dmsetup(t, "resume", device+"_tmeta")
	}
	set(strings.Join(append(strings.Fields(table)[:2], "error"), " "))
	// The kernel notices when it writes.
	_ = exec.Command("dmsetup", "message", device+"-tpool", "0", "create_thin 99").Run()
	if status, err := p.PoolStatus(p.group, "pool"); err != nil || !status.Failed {
		t.Errorf("pool %+v, error %v, want one that failed", status, err)
	}
	if err := p.CreateThin(t.Context(), lvm.ThinOptions{Group: p.group, Pool: "pool", Volume: "cv2", Bytes: thinBytes}); err == nil {
		t.Error("a volume was made in a pool that failed")
	}
	set(table)
	lvmByHand(t, "vgchange", "--activate", "n", p.group)
	must.Succeed(t, p.Activate(t.Context(), p.group, []string{"pool", "cv1"}))
	p.scan()
	p.create("cv3")
	p.wantFilled("cv3", 0)
}

// The disk below the metadata stops answering while the pool writes there.
func TestAPoolWhoseDiskDoesNotAnswerIsNotWaitedFor(t *testing.T) {
	p := newThinPool(t, "carve-hanging")
	p.create("cv1")
	device := strings.ReplaceAll(p.group, "-", "--") + "-pool"
	dmsetup(t, "suspend", "--noflush", "--nolockfs", "--noudevsync", device+"_tmeta")
	resume := sync.OnceFunc(func() { dmsetup(t, "resume", "--noudevsync", device+"_tmeta") })
	t.Cleanup(resume)
	// The pool writes its metadata before it acknowledges a message.
	message := exec.Command("dmsetup", "message", device+"-tpool", "0", "create_thin 99")
	must.Succeed(t, message.Start())
	asked := make(chan error, 1)
	go func() {
		var err error
		for err == nil { // until it writes
			_, err = p.PoolStatus(p.group, "pool")
		}
		asked <- err
	}()
	select {
	case err := <-asked:
		if !errors.Is(err, lvm.ErrTimedOut) {
			t.Errorf("error %v, want ErrTimedOut", err)
		}
		if p.Stuck() != 1 {
			t.Errorf("%d operations count as stuck, want 1", p.Stuck())
		}
	case <-time.After(time.Minute):
		t.Error("the pool's status was waited for")
	}
	resume()
	must.Succeed(t, message.Wait())
	waittest.Until(t, "nothing is stuck", func() bool { return p.Stuck() == 0 })
	if status, err := p.PoolStatus(p.group, "pool"); err != nil || status.DataTotal < 1 {
		t.Errorf("when the disk answers: pool %+v, error %v", status, err)
	}
	dmsetup(t, "message", device+"-tpool", "0", "delete 99")
}

// An administrator removes the pool's devices just when LVM has removed a volume.
func TestAPoolThatIsAwayAfterARemovalIsSentItLater(t *testing.T) {
	p := newThinPool(t, "carve-away")
	p.create("cv1")
	p.create("cv2")
	p.fill("cv2", 2)
	p.leave("delete = 7")
	real := must.Get(exec.LookPath("lvm"))(t)
	script := filepath.Join(t.TempDir(), "lvm")
	text := "#!/bin/sh\n" + real + ` "$@"; code=$?
if [ "$1" = lvremove ]; then ` + real + " vgchange --activate n " + p.group + " --config '" + handConfig + `' >&2; fi
exit $code
`
	must.Succeed(t, os.WriteFile(script, []byte(text), 0o700))
	before := p.Host
	p.Host = hostOf(t, script)
	p.scan()
	p.wantError("the removal", p.Remove(t.Context(), p.group, []string{"cv2"}), `removed thin volume "cv2"`, "still in its pool")
	p.Host = before
	must.Succeed(t, p.Activate(t.Context(), p.group, []string{"pool", "cv1"}))
	if found := p.scan(); found.Volume("cv2") != nil {
		t.Error("the volume is still there")
	}
	p.create("cv3") // It gets cv2's number in the pool.
	p.wantFilled("cv3", 0)
}
