//go:build !kernel

package luks

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// Opening a pipe waits in the kernel until another process opens it too.
func TestADeviceThatDoesNotAnswerHoldsUpNeitherALookNorAClearing(t *testing.T) {
	for name, do := range map[string]func(ctx context.Context, device string) error{
		"looking at a header": func(ctx context.Context, device string) error {
			_, err := inspectWithin(ctx, device, volume)
			return err
		},
		"clearing": clearWithin,
	} {
		t.Run(name, func(t *testing.T) {
			device, before := filepath.Join(t.TempDir(), "device"), filesystem.Stuck()
			must.Succeed(t, unix.Mkfifo(device, 0o600))
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			ended := make(chan error, 1)
			go func() { ended <- do(ctx, device) }()
			waittest.Until(t, "it is given up", func() bool { return len(ended) > 0 })
			if err := <-ended; !errors.Is(err, blockdev.ErrTimedOut) {
				t.Errorf("got %v, want %v", err, blockdev.ErrTimedOut)
			}
			if n := filesystem.Stuck() - before; n != 1 {
				t.Errorf("%d operations count as stuck, want 1", n)
			}
			if err := do(t.Context(), device); !errors.Is(err, blockdev.ErrTimedOut) {
				t.Errorf("another one: got %v, want %v at once", err, blockdev.ErrTimedOut)
			}
			other := must.Get(os.OpenFile(device, os.O_RDWR, 0))(t)
			defer other.Close()
			waittest.Until(t, "none is stuck", func() bool { return filesystem.Stuck() == before })
		})
	}
}

func TestAClearingThatWasGivenUpBeforeItBeganWritesNothing(t *testing.T) {
	device, content := filepath.Join(t.TempDir(), "device"), bytes.Repeat([]byte{7}, 4096)
	must.Succeed(t, os.WriteFile(device, content, 0o600))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := clearEnds(ctx, device); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
	if !bytes.Equal(must.Get(os.ReadFile(device))(t), content) {
		t.Error("it wrote")
	}
	must.Succeed(t, clearEnds(t.Context(), device))
	if !bytes.Equal(must.Get(os.ReadFile(device))(t), make([]byte, 4096)) {
		t.Error("it is not cleared")
	}
}
