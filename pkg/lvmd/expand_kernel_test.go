//go:build kernel

package lvmd_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func (n *node) fillFree() {
	n.t.Helper()
	lvmByHand(n.t, "lvcreate", "--yes", "--wipesignatures", "n", "--zero", "n", "--name", "theirs", "--extents", "100%FREE", n.group)
	f, err := os.OpenFile("/dev/"+n.group+"/theirs", os.O_WRONLY, 0)
	if err != nil {
		n.t.Fatal(err)
	}
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil || size == 0 {
		n.t.Fatalf("%d bytes, error %v", size, err)
	}
	must.Succeed(n.t, f.Close())
	fill(n.t, &lvmdv1.Volume{DevicePath: "/dev/" + n.group + "/theirs", SizeBytes: size}, 0x77)
	lvmByHand(n.t, "lvremove", "--yes", n.group+"/theirs")
}

// writer writes to each byte as soon as it appears.
type writer struct {
	device *os.File
	seen   int64
	err    error
	done   chan struct{}
	// growing marks the growth of a RAID volume. Its device grows before the kernel's array, and
	// reads beyond the array fail until the growth ends.
	growing atomic.Bool
}

const users = 0x7e

func newWriter(t *testing.T, v *lvmdv1.Volume, want int64) *writer {
	t.Helper()
	f := must.Get(os.OpenFile(v.GetDevicePath(), os.O_RDWR, 0))(t)
	w := &writer{device: f, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		for w.seen < want && w.err == nil && t.Context().Err() == nil {
			w.err = w.step()
		}
	}()
	return w
}

// step wants zeroes in new bytes, and overwrites them.
func (w *writer) step() error {
	size, err := w.device.Seek(0, io.SeekEnd)
	if err != nil || size == w.seen {
		return err
	}
	more, growing := make([]byte, size-w.seen), w.growing.Load()
	if _, err := w.device.ReadAt(more, w.seen); growing && errors.Is(err, unix.EIO) {
		return nil
	} else if err != nil {
		return err
	}
	if n := len(more) - bytes.Count(more, []byte{0}); n > 0 {
		return fmt.Errorf("%d of the %d bytes from %d on are not zero when the user first sees them", n, len(more), w.seen)
	}
	if _, err := w.device.WriteAt(bytes.Repeat([]byte{users}, len(more)), w.seen); err != nil {
		return err
	}
	w.seen = size
	return w.device.Sync()
}

func TestNothingIsWrittenToAGrowingVolumeButByItsUser(t *testing.T) {
	n := newNode(t, spares(t, 64, 64, 64, 64, 64)...)
	n.config = layoutClasses()
	for _, class := range layoutNames {
		t.Run(class, func(t *testing.T) {
			n.fillFree()
			p := n.start()
			all := p.available()
			v := p.create(inClass(create("pvc-"+class, 12<<20, ""), class))
			last := v.GetSizeBytes()
			w := newWriter(t, v, 4*last)
			for _, size := range []int64{2 * last, 4 * last} {
				w.growing.Store(strings.HasPrefix(class, "raid"))
				resp, err := p.client.ExpandVolume(t.Context(), &lvmdv1.ExpandVolumeRequest{Id: v.GetId(), RequiredBytes: size})
				w.growing.Store(false)
				if err != nil || resp.GetVolume().GetSizeBytes() != size {
					t.Fatalf("%v, error %v; want %d bytes", resp, err, size)
				}
				v = resp.GetVolume()
			}
			<-w.done
			if err := errors.Join(w.err, w.device.Close()); err != nil || w.seen != v.GetSizeBytes() {
				t.Errorf("the user has seen %d of %d bytes: %v", w.seen, v.GetSizeBytes(), err)
			}
			checkFilled(t, v, users, wholeDevice)
			p.delete(v.GetId())
			waittest.Until(t, "the space is back", func() bool { return p.available() == all })
			if err := p.stop(); err != nil {
				t.Error(err)
			}
		})
	}
	if left := n.leftovers(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
