//go:build !kernel

package luks

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/carve-csi/carve/pkg/must"
)

// TestMain runs the tests, or acts as cryptsetup if called by that name.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "cryptsetup" {
		standIn(filepath.Dir(os.Args[0]))
	}
	os.Exit(m.Run())
}

// standIn records its input in a directory, prints "No key available" and exits
// with the status found there. "hang" makes it hang.
func standIn(dir string) {
	input, _ := io.ReadAll(os.Stdin)
	_ = os.WriteFile(filepath.Join(dir, "input"), input, 0o600)
	_ = os.WriteFile(filepath.Join(dir, "arguments"), []byte(strings.Join(os.Args[1:], "\n")), 0o600)
	_ = os.WriteFile(filepath.Join(dir, "environment"), []byte(strings.Join(os.Environ(), "\n")), 0o600)
	_, _ = os.Stderr.WriteString("No key available\n  with this passphrase.\n")
	status, _ := os.ReadFile(filepath.Join(dir, "status"))
	if string(status) == "hang" {
		time.Sleep(time.Hour)
	}
	code, _ := strconv.Atoi(string(status))
	os.Exit(code)
}

// stand returns a cryptsetup that exits with status.
func stand(t *testing.T, status string) (*Cryptsetup, func(file string) string) {
	t.Helper()
	dir := t.TempDir()
	self, err := os.Executable()
	if err == nil {
		err = errors.Join(os.Symlink(self, filepath.Join(dir, "cryptsetup")), os.WriteFile(filepath.Join(dir, "status"), []byte(status), 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
	return New(filepath.Join(dir, "cryptsetup"), Usual), func(file string) string {
		b := must.Get(os.ReadFile(filepath.Join(dir, file)))(t)
		return string(b)
	}
}

var key = []byte("a key \x00 with a\nnewline in it")

var calls = []struct {
	name  string
	call  func(context.Context, *Cryptsetup) error
	keyed bool
	// arguments must be among the command's.
	arguments string
}{
	{"Format", func(ctx context.Context, c *Cryptsetup) error { return c.Format(ctx, "/dev/v", volume, key) }, true,
		"luksFormat --batch-mode --type luks2 --label " + volume + " --subsystem carve.making --cipher aes-xts-plain64 --key-size 512 --sector-size 512 --hash sha256 --luks2-metadata-size 16384 --offset 32768 " +
			"--pbkdf argon2id --pbkdf-memory 32768 --pbkdf-parallel 1 --pbkdf-force-iterations 4 --key-file - /dev/v"},
	{"Finish", func(ctx context.Context, c *Cryptsetup) error { return c.Finish(ctx, "/dev/v", volume) }, false,
		"config --batch-mode --label " + volume + " --subsystem carve.made /dev/v"},
	{"Test", func(ctx context.Context, c *Cryptsetup) error { return c.Test(ctx, "/dev/v", volume, key) }, true,
		"open --batch-mode --type luks2 --test-passphrase --key-file - /dev/v"},
	{"Open", func(ctx context.Context, c *Cryptsetup) error { return c.Open(ctx, "/dev/v", volume, key, false) }, true,
		"open --batch-mode --type luks2 --disable-keyring --key-file - /dev/v carve.luks." + volume},
	{"Open with discards", func(ctx context.Context, c *Cryptsetup) error { return c.Open(ctx, "/dev/v", volume, key, true) }, true,
		"open --batch-mode --type luks2 --disable-keyring --key-file - --allow-discards /dev/v carve.luks." + volume},
	{"Resize", func(ctx context.Context, c *Cryptsetup) error { return c.Resize(ctx, volume) }, false,
		"resize --batch-mode --disable-keyring carve.luks." + volume},
}

func TestTheKeyGoesByStandardInputAndNowhereElse(t *testing.T) {
	for _, test := range calls {
		t.Run(test.name, func(t *testing.T) {
			c, file := stand(t, "0")
			must.Succeed(t, test.call(t.Context(), c))
			want := ""
			if test.keyed {
				want = string(key)
			}
			if got := file("input"); got != want {
				t.Errorf("standard input is %q, want %q", got, want)
			}
			if got := strings.ReplaceAll(file("arguments"), "\n", " "); got != test.arguments {
				t.Errorf("arguments\n%s, want\n%s", got, test.arguments)
			}
			for _, line := range strings.Split(file("environment"), "\n") {
				if name, _, _ := strings.Cut(line, "="); name != "PATH" && name != "LC_ALL" && name != "DM_DISABLE_UDEV" {
					t.Errorf("the environment has %q", line)
				}
			}
		})
	}
}

func TestWhatCryptsetupSaysByItsExitStatus(t *testing.T) {
	for status, want := range map[string]error{"2": ErrWrongKey, "5": ErrInUse} {
		for _, test := range calls {
			c, _ := stand(t, status)
			err := test.call(t.Context(), c)
			if !errors.Is(err, want) || !strings.Contains(err.Error(), "No key available with this passphrase.") || !strings.Contains(err.Error(), volume) {
				t.Errorf("%s, status %s: %v", test.name, status, err)
			}
			if strings.Contains(err.Error(), "newline") {
				t.Errorf("the key is in %q", err)
			}
		}
	}
	c, _ := stand(t, "4")
	if err := calls[0].call(t.Context(), c); err == nil || errors.Is(err, ErrWrongKey) || errors.Is(err, ErrInUse) {
		t.Errorf("status 4: %v", err)
	}
	if err := calls[0].call(t.Context(), New("/there/is/none", Usual)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no cryptsetup: %v", err)
	}
}

func TestKeysOfNoUseAreRefusedBeforeAnythingIsDone(t *testing.T) {
	for _, bad := range [][]byte{nil, {}, make([]byte, MaxKey+1)} {
		c := New("/there/is/none", Usual)
		for name, err := range map[string]error{
			"Format": c.Format(t.Context(), "/dev/v", volume, bad), "Open": c.Open(t.Context(), "/dev/v", volume, bad, false), "Test": c.Test(t.Context(), "/dev/v", volume, bad),
		} {
			if !errors.Is(err, ErrBadKey) {
				t.Errorf("%s with %d bytes: %v", name, len(bad), err)
			}
		}
	}
}

func TestKeysAreDerivedAFewAtATimeAndNoCallWaitsForEver(t *testing.T) {
	c, _ := stand(t, "hang")
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan error, derivations)
	for range derivations {
		go func() { ended <- c.Test(ctx, "/dev/v", volume, key) }()
	}
	for c.deriving.TryAcquire(1) {
		c.deriving.Release(1)
		time.Sleep(time.Millisecond)
	}
	waiting, stop := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer stop()
	if err := c.Test(waiting, "/dev/v", volume, key); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a turn was had: %v", err)
	}
	why := errors.New("the node plugin stops")
	cancel(why)
	for range derivations {
		if err := <-ended; !errors.Is(err, why) {
			t.Errorf("a killed cryptsetup: %v", err)
		}
	}
}
