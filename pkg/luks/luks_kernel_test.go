//go:build kernel

package luks

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// byHand runs a program as an administrator would and returns its output.
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

// table is a device-mapper table of the first bytes of /dev/vdb.
func table(bytes int64) string { return "0 " + strconv.FormatInt(bytes/512, 10) + " linear /dev/vdb 0" }

// device makes an empty device that can grow, of that size, until the test ends.
func device(t *testing.T, size int64) string {
	t.Helper()
	byHand(t, "blkdiscard", "--zeroout", "--length", strconv.Itoa(HeaderBytes), "/dev/vdb")
	byHand(t, "dmsetup", "create", "below", "--table", table(size))
	t.Cleanup(func() {
		byHand(t, "dmsetup", "remove", "--retry", "below")
		byHand(t, "blkdiscard", "--zeroout", "--length", strconv.Itoa(HeaderBytes), "/dev/vdb")
	})
	return "/dev/mapper/below"
}

// limited is a context with a bound that only a hang reaches.
func limited(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func wantState(t *testing.T, device string, want State) {
	t.Helper()
	if got, err := Inspect(device, volume); err != nil || got != want {
		t.Fatalf("the volume is %v, error %v; want %v", got, err, want)
	}
}

func TestRealCryptsetupMakesOpensGrowsAndCloses(t *testing.T) {
	const size = 32 << 20
	c, on, ctx := New("cryptsetup"), device(t, size), limited(t)
	c.memoryKiB = 64 // The machine is emulated.
	wantState(t, on, Blank)
	if err := c.Format(ctx, on, volume, key); err != nil {
		t.Fatal(err)
	}
	wantState(t, on, Making)
	// A key is all its bytes: neither zeroes nor newlines end it.
	wrong := bytes.TrimSuffix(key, []byte("t"))
	if err := c.Open(ctx, on, volume, wrong, false); !errors.Is(err, ErrWrongKey) {
		t.Errorf("a wrong key: %v", err)
	}
	if err := c.Open(ctx, on, volume, key, true); err != nil {
		t.Fatal(err)
	}
	closed := false
	t.Cleanup(func() {
		if !closed {
			byHand(t, "dmsetup", "remove", "--retry", MappingPrefix+volume)
		}
	})
	if err := c.Open(ctx, on, volume, key, true); !errors.Is(err, ErrInUse) {
		t.Errorf("opened twice: %v", err)
	}
	mapped := byHand(t, "dmsetup", "table", "--showkeys", MappingPrefix+volume)
	if strings.Contains(mapped, "logon") || !strings.Contains(mapped, "allow_discards") || !strings.HasPrefix(mapped, "0 32768 crypt aes-xts-plain64 ") {
		t.Errorf("the mapping is %s", mapped)
	}
	uuid := byHand(t, "dmsetup", "info", "--columns", "--noheadings", "-o", "uuid", MappingPrefix+volume)
	if !strings.HasPrefix(uuid, UUIDPrefix) || !strings.HasSuffix(strings.TrimSpace(uuid), MappingPrefix+volume) {
		t.Errorf("the mapping's UUID is %s", uuid)
	}
	// It is finished, and grown, while it is in use.
	f, err := os.OpenFile(Path(volume), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	text := bytes.Repeat([]byte("plain text that nobody may find "), 128)
	_, err = f.WriteAt(text, 0)
	if err := errors.Join(err, f.Sync(), c.Finish(ctx, on, volume)); err != nil {
		t.Fatal(err)
	}
	wantState(t, on, Made)
	if err := c.Close(ctx, volume); !errors.Is(err, ErrInUse) {
		t.Errorf("closed while it is open: %v", err)
	}
	byHand(t, "dmsetup", "suspend", "below")
	byHand(t, "dmsetup", "load", "below", "--table", table(size+8<<20))
	byHand(t, "dmsetup", "resume", "below")
	if err := c.Resize(ctx, volume); err != nil {
		t.Fatal(err)
	}
	if end, err := f.Seek(0, 2); err != nil || end != size+8<<20-HeaderBytes {
		t.Errorf("it has %d bytes, error %v", end, err)
	}
	if err := errors.Join(f.Close(), c.Close(ctx, volume)); err != nil {
		t.Fatal(err)
	}
	closed = true
	if left, err := filepath.Glob("/dev/mapper/" + MappingPrefix + "*"); err != nil || len(left) > 0 {
		t.Errorf("left: %q, error %v", left, err)
	}
	if err := c.Test(ctx, on, volume, wrong); !errors.Is(err, ErrWrongKey) {
		t.Errorf("a wrong key: %v", err)
	}
	if err := c.Test(ctx, on, volume, key); err != nil {
		t.Error(err)
	}
	raw, err := os.ReadFile(on)
	if err != nil || bytes.Contains(raw, text[:64]) || bytes.Contains(raw, key) {
		t.Errorf("plain text, or the key, is on the disk; error %v", err)
	}
}

func TestAnInterruptedFormatIsToldFromAVolumeThatHoldsData(t *testing.T) {
	c, on := New("cryptsetup"), device(t, 32<<20)
	begin := time.Now()
	if err := c.Format(limited(t), on, volume, key); err != nil {
		t.Fatal(err)
	}
	took := time.Since(begin)
	dump := byHand(t, "cryptsetup", "luksDump", on)
	for _, want := range []string{"argon2id", "Memory:     32768", "Time cost:  4", "Threads:    1", "offset: 16777216 [bytes]", "cipher: aes-xts-plain64"} {
		if !strings.Contains(dump, want) {
			t.Errorf("no %q in\n%s", want, dump)
		}
	}
	for _, part := range []time.Duration{took / 6, took / 3, took / 2} {
		byHand(t, "blkdiscard", "--zeroout", "--length", strconv.Itoa(HeaderBytes), on)
		ctx, cancel := context.WithTimeout(limited(t), part)
		err := c.Format(ctx, on, volume, key)
		cancel()
		state, inspectErr := Inspect(on, volume)
		t.Logf("killed after %v of %v: %v, state %v", part, took, err, state)
		if inspectErr != nil || state == Made {
			t.Errorf("state %v, error %v", state, inspectErr)
		}
	}
	if err := c.Format(limited(t), on, volume, key); err != nil {
		t.Error(err)
	}
	wantState(t, on, Making)
}
