//go:build kernel

package lvmd_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/must"
)

// fill is durable when it returns.
func fill(t testing.TB, v *lvmdv1.Volume, pattern byte) {
	t.Helper()
	f := must.Get(os.OpenFile(v.GetDevicePath(), os.O_WRONLY, 0))(t)
	chunk := bytes.Repeat([]byte{pattern}, 1<<20)
	for left := v.GetSizeBytes(); left > 0; left -= int64(len(chunk)) {
		must.Get(f.Write(chunk[:min(left, int64(len(chunk)))]))(t)
	}
	must.Succeed(t, errors.Join(f.Sync(), f.Close()))
}

// Map wants zeroes in the whole raw volume.
func Map(t testing.TB, v *lvmdv1.Volume) {
	t.Helper()
	checkContents(t, v, 0, wholeDevice)
}

func checkFilled(t testing.TB, v *lvmdv1.Volume, pattern byte, length int64) {
	t.Helper()
	checkContents(t, v, pattern, length)
}

const wholeDevice = -1

// checkContents also fails the test if a byte cannot be read, or if the device is shorter than
// length or not as long as the volume claims.
func checkContents(t testing.TB, v *lvmdv1.Volume, pattern byte, length int64) {
	t.Helper()
	f, err := os.Open(v.GetDevicePath())
	if err != nil {
		t.Errorf("volume %s: %v", v.GetName(), err)
		return
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil || size < v.GetSizeBytes() || size == 0 {
		t.Errorf("volume %s claims %d bytes, its device has %d, error %v", v.GetName(), v.GetSizeBytes(), size, err)
		return
	}
	if length == wholeDevice {
		length = size
	}
	want, chunk := bytes.Repeat([]byte{pattern}, 1<<20), make([]byte, 1<<20)
	for off := int64(0); off < length; off += int64(len(chunk)) {
		b := chunk[:min(int64(len(chunk)), length-off)]
		if n, err := f.ReadAt(b, off); err != nil {
			t.Errorf("volume %s: %d bytes are read at %d, want %d of %d: %v", v.GetName(), n, off, len(b), length, err)
			return
		}
		if !bytes.Equal(b, want[:len(b)]) {
			other := slices.IndexFunc(b, func(c byte) bool { return c != pattern })
			t.Errorf("volume %s holds %#x at %d, and %d of %d bytes from %d on are %#x, want all",
				v.GetName(), b[other], off+int64(other), bytes.Count(b, want[:1]), len(b), off, pattern)
			return
		}
	}
}

type failing struct {
	testing.TB
	why []string
}

func (f *failing) Errorf(format string, args ...any) {
	f.why = append(f.why, fmt.Sprintf(format, args...))
}

func TestContentsThatCannotBeReadFailATest(t *testing.T) {
	const size = 4 << 20
	file := filepath.Join(t.TempDir(), "file")
	must.Succeed(t, os.WriteFile(file, make([]byte, size), 0o600))
	spoiled := filepath.Join(t.TempDir(), "spoiled")
	must.Succeed(t, os.WriteFile(spoiled, append(make([]byte, size-1), 1), 0o600))
	const name = "carve-unreadable"
	disk := spares(t, size>>20)[0]
	byHand(t, "dmsetup", "create", name, "--noudevsync", "--table", fmt.Sprintf("0 4096 linear %s 0\n4096 4096 error", disk))
	t.Cleanup(func() { byHand(t, "dmsetup", "remove", "--noudevsync", "--retry", name) })
	for _, c := range []struct {
		what, path string
		claims     int64
		length     int64
		want       string
	}{
		{"as it should be", file, size, wholeDevice, ""},
		{"the readable half", "/dev/mapper/" + name, size, size / 2, ""},
		{"shorter than the volume claims", file, size + 512, wholeDevice, "its device has 4194304"},
		{"shorter than what is to be read", file, size, size + 512, "EOF"},
		{"empty", os.DevNull, 0, wholeDevice, "its device has 0"},
		{"a read error in the second half", "/dev/mapper/" + name, size, wholeDevice, "input/output error"},
		{"one byte at the end", spoiled, size, wholeDevice, "holds 0x1 at 4194303"},
	} {
		f := &failing{TB: t}
		checkContents(f, &lvmdv1.Volume{Name: "v", DevicePath: c.path, SizeBytes: c.claims}, 0, c.length)
		if got := strings.Join(f.why, "; "); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: the failure is %q, want %q", c.what, got, c.want)
		}
	}
}
