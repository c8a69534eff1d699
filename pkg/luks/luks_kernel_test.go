//go:build kernel

package luks_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/carve-csi/carve/pkg/luks"
	"github.com/carve-csi/carve/pkg/luks/lukstest"
	"github.com/carve-csi/carve/pkg/must"
)

// cheap is quick even on the emulated machine.
var cheap = luks.Cost{MemoryKiB: 32, Rounds: 4}

func byHand(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), "DM_DISABLE_UDEV=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// below is an empty device on the first bytes of /dev/vdb that can grow and
// fail.
type below struct{ size int64 }

const belowPath = "/dev/mapper/below"

func newBelow(t *testing.T) *below {
	t.Helper()
	b := &below{size: 32 << 20}
	blank(t, "/dev/vdb")
	byHand(t, "dmsetup", "create", "below", "--table", b.table("linear /dev/vdb 0"))
	t.Cleanup(func() {
		// Leftovers of a failed test.
		_ = exec.Command("dmsetup", "remove", "--retry", luks.MappingPrefix+lukstest.Volume).Run()
		byHand(t, "dmsetup", "remove", "--retry", "below")
		blank(t, "/dev/vdb")
	})
	return b
}

func (b *below) table(target string) string {
	return "0 " + strconv.FormatInt(b.size/512, 10) + " " + target
}

func (b *below) swap(t *testing.T, target string) {
	t.Helper()
	byHand(t, "dmsetup", "load", "below", "--table", b.table(target))
	byHand(t, "dmsetup", "suspend", "--noflush", "below")
	byHand(t, "dmsetup", "resume", "below")
}

func blank(t *testing.T, device string) {
	t.Helper()
	byHand(t, "blkdiscard", "--zeroout", "--length", strconv.Itoa(luks.HeaderBytes), device)
}

// limited returns a context that expires only if the call hangs.
func limited(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestReal(t *testing.T) {
	b := newBelow(t)
	lukstest.Run(t, lukstest.Harness{
		Interface: luks.New("cryptsetup", cheap), Device: belowPath,
		Hold: func(t *testing.T, node string) func() {
			f := must.Get(os.Open(node))(t)
			return func() { f.Close() }
		},
		Grow: func(t *testing.T, more int64) {
			b.size += more
			b.swap(t, "linear /dev/vdb 0")
		},
		Size: func(t *testing.T, node string) int64 {
			f := must.Get(os.Open(node))(t)
			defer f.Close()
			size := must.Get(f.Seek(0, io.SeekEnd))(t)
			return size
		},
		Interrupt: func(t *testing.T, volume string) {
			byHand(t, "dmsetup", "create", luks.MappingPrefix+volume, "--notable", "--uuid", luks.UUIDPrefix+"0-"+luks.MappingPrefix+volume)
		},
		Fail: func(t *testing.T) func() {
			b.swap(t, "error")
			return func() { b.swap(t, "linear /dev/vdb 0") }
		},
	})
}

// TestRealKeyIsChangedByHand follows docs/how-to/encryption.md, but with less
// memory, while the volume is open, and searches the disk for its plain text.
func TestRealKeyIsChangedByHand(t *testing.T) {
	disk := newBelow(t)
	c, ctx := luks.New("cryptsetup", cheap), limited(t)
	must.Succeed(t, errors.Join(c.Format(ctx, belowPath, lukstest.Volume, lukstest.Key), c.Open(ctx, belowPath, lukstest.Volume, lukstest.Key, true)))
	mapped := byHand(t, "dmsetup", "table", "--showkeys", luks.MappingPrefix+lukstest.Volume)
	if strings.Contains(mapped, "logon") || !strings.Contains(mapped, "allow_discards") || !strings.HasPrefix(mapped, "0 32768 crypt aes-xts-plain64 ") {
		t.Errorf("the mapping is %s", mapped)
	}
	text := bytes.Repeat([]byte("plain text that no one may find "), 128)
	f, err := os.OpenFile(luks.Path(lukstest.Volume), os.O_RDWR, 0)
	if err == nil {
		_, err = f.WriteAt(text, 0)
		err = errors.Join(err, f.Sync(), f.Close())
	}
	another := []byte("another key")
	before, after := filepath.Join(t.TempDir(), "old.key"), filepath.Join(t.TempDir(), "new.key")
	must.Succeed(t, errors.Join(err, os.WriteFile(before, lukstest.Key, 0o600), os.WriteFile(after, another, 0o600)))
	byHand(t, "cryptsetup", "luksAddKey", "--pbkdf", "argon2id", "--pbkdf-memory", "32", "--pbkdf-parallel", "1", "--pbkdf-force-iterations", "4",
		"--key-file", before, belowPath, after)
	byHand(t, "cryptsetup", "luksRemoveKey", belowPath, before)
	if err := c.Test(ctx, belowPath, lukstest.Volume, another); err != nil {
		t.Error(err)
	}
	if err := c.Test(ctx, belowPath, lukstest.Volume, lukstest.Key); !errors.Is(err, luks.ErrWrongKey) {
		t.Errorf("the old key: %v", err)
	}
	if err := c.Close(ctx, lukstest.Volume); err != nil {
		t.Error(err)
	}
	raw, err := os.ReadFile(belowPath)
	if err != nil || int64(len(raw)) != disk.size || bytes.Contains(raw, text[:64]) || bytes.Contains(raw, lukstest.Key) || bytes.Contains(raw, another) {
		t.Errorf("plain text, or a key, is on the disk, or not all of it is read: %d of %d bytes, error %v", len(raw), disk.size, err)
	}
}

// cryptsetup makes headers in state Made, as anyone with access to the disk
// could.
func TestRealHeadersThatAskForAnotherEncryptionAreNotAccepted(t *testing.T) {
	newBelow(t)
	c, ctx := luks.New("cryptsetup", cheap), limited(t)
	file := filepath.Join(t.TempDir(), "key")
	must.Succeed(t, os.WriteFile(file, lukstest.Key, 0o600))
	for what, args := range map[string][]string{
		"no cipher":       {"--cipher", "cipher_null-ecb", "--key-size", "256"},
		"a shorter key":   {"--cipher", "aes-xts-plain64", "--key-size", "256"},
		"another mode":    {"--cipher", "aes-cbc-plain64", "--key-size", "256"},
		"larger sectors":  {"--cipher", "aes-xts-plain64", "--key-size", "512", "--sector-size", "4096"},
		"another segment": {"--cipher", "aes-xts-plain64", "--key-size", "512", "--offset", "34816"},
	} {
		blank(t, belowPath)
		byHand(t, "cryptsetup", append([]string{"luksFormat", "--batch-mode", "--type", "luks2", "--label", lukstest.Volume, "--subsystem", "carve.made",
			"--pbkdf", "argon2id", "--pbkdf-memory", "32", "--pbkdf-parallel", "1", "--pbkdf-force-iterations", "4", "--key-file", file, belowPath}, args...)...)
		if state, err := c.Inspect(belowPath, lukstest.Volume); state != luks.Made || err != nil {
			t.Fatalf("%s: state %v, error %v; want a header that is made", what, state, err)
		}
		must.Succeed(t, c.Open(ctx, belowPath, lukstest.Volume, lukstest.Key, false))
		if err := c.Verify(belowPath, lukstest.Volume); !errors.Is(err, luks.ErrForeign) {
			t.Errorf("%s: Verify returns %v, want %v", what, err, luks.ErrForeign)
		}
		must.Succeed(t, c.Close(ctx, lukstest.Volume))
	}
}

func TestRealInterruptedFormatIsDistinguishedFromAVolumeThatHoldsData(t *testing.T) {
	newBelow(t)
	c := luks.New("cryptsetup", luks.Usual)
	begin := time.Now()
	must.Succeed(t, c.Format(limited(t), belowPath, lukstest.Volume, lukstest.Key))
	took := time.Since(begin)
	dump := byHand(t, "cryptsetup", "luksDump", belowPath)
	for _, want := range []string{"argon2id", "Memory:     32768", "Time cost:  4", "Threads:    1", "offset: 16777216 [bytes]", "cipher: aes-xts-plain64"} {
		if !strings.Contains(dump, want) {
			t.Errorf("no %q in\n%s", want, dump)
		}
	}
	// The first run that is killed, and had not ended already.
	killed := false
	for share := time.Duration(2); share <= 16 && !killed; share *= 2 {
		blank(t, belowPath)
		ctx, cancel := context.WithTimeout(limited(t), took/share)
		err := c.Format(ctx, belowPath, lukstest.Volume, lukstest.Key)
		cancel()
		killed = errors.Is(err, context.DeadlineExceeded)
		if err != nil && !killed {
			t.Fatal(err)
		}
	}
	if !killed {
		t.Fatalf("it was never killed, in 1/16 of %v neither", took)
	}
	wantNoCryptsetup(t)
	if state, err := luks.Inspect(belowPath, lukstest.Volume); err != nil || state == luks.Made {
		t.Errorf("state %v, error %v", state, err)
	}
	ctx := limited(t)
	must.Succeed(t, errors.Join(c.Format(ctx, belowPath, lukstest.Volume, lukstest.Key), c.Finish(ctx, belowPath, lukstest.Volume)))
	if state, err := luks.Inspect(belowPath, lukstest.Volume); err != nil || state != luks.Made {
		t.Errorf("made once more, it has the state %v, error %v", state, err)
	}
}

// wantNoCryptsetup checks that a killed command is gone.
func wantNoCryptsetup(t *testing.T) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d processes, error %v", len(files), err)
	}
	for _, file := range files {
		// A process that has just ended has no name.
		if name, err := os.ReadFile(file); err == nil && strings.TrimSpace(string(name)) == "cryptsetup" {
			t.Errorf("cryptsetup goes on: %s", file)
		}
	}
}
