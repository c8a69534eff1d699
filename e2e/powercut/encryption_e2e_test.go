//go:build e2e

package powercut

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/carve-csi/carve/e2e/vm/agent"
)

const (
	// sealedBytes is the size of the volumes.
	sealedBytes = 32 << 20
	// headBytes is how much of an encrypted volume's beginning is zeroes at first.
	headBytes = 1 << 20
)

// sealed is what lvmd reports of an encrypted volume.
type sealed struct{ ID, Name, State, DevicePath, EmptiedAt string }

// sealed lists the volumes once all of them are ready.
func (r *rig) sealed(ctx context.Context) ([]sealed, error) {
	for {
		out, err := r.run(ctx, lvmd, "volumes", "--json")
		if err != nil {
			return nil, err
		}
		all, err := decode[sealed](out)
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(all, func(v sealed) bool { return v.State != "VOLUME_STATE_READY" || v.DevicePath == "" }) {
			return all, nil
		}
		select {
		case <-ctx.Done():
			return all, ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// holds reports whether a disk of the volume group, a file in the folder, has a text.
func holds(dir string, text []byte) (bool, error) {
	for _, disk := range []string{"group", "mirror"} {
		if found, err := fileHolds(filepath.Join(dir, disk), text); found || err != nil {
			return found, err
		}
	}
	return false, nil
}

func fileHolds(file string, text []byte) (bool, error) {
	f, err := os.Open(file)
	if err != nil {
		return false, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || info.Size() != groupBytes {
		return false, fmt.Errorf("%s must have %d bytes: %+v, error %w", file, groupBytes, info, err)
	}
	const chunk = 4 << 20
	b := make([]byte, chunk+len(text))
	for off := int64(0); ; off += chunk {
		n, err := f.ReadAt(b, off)
		if bytes.Contains(b[:n], text) {
			return true, nil
		}
		if errors.Is(err, io.EOF) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
}

// checkReadsAsZeroes holds what finds volumes empty against a device that is not, one
// that is too short and one that fails.
func checkReadsAsZeroes(ctx context.Context, t *testing.T, r *rig, written string) {
	t.Helper()
	const empty, broken = "/dev/mapper/empty", "/dev/mapper/broken"
	dmsetup := func(script string) {
		t.Helper()
		// Without udevd, mknodes makes and removes the files of devices.
		if out, err := r.run(ctx, "sh", "-ec", script+"; dmsetup mknodes"); err != nil {
			t.Fatalf("%s: %v\n%s", script, err, out)
		}
	}
	dmsetup(`dmsetup create empty --noudevsync --table "0 2048 zero"`)
	dmsetup(`printf '0 1024 zero\n1024 1024 error\n' | dmsetup create broken --noudevsync`)
	for _, c := range []struct {
		device string
		size   int64
		want   error
	}{
		{empty, 1 << 20, nil}, {empty, 1<<20 + 512, errShort}, {broken, 1 << 20, errRead}, {written, 1 << 20, errNotZero},
	} {
		if err := r.readsAsZeroes(ctx, c.device, c.size); !errors.Is(err, c.want) {
			t.Errorf("%d bytes of %s: error %v, want %v", c.size, c.device, err, c.want)
		}
	}
	dmsetup("dmsetup remove --noudevsync empty broken")
}

// TestAfterAPowerCutEncryptedVolumesAreEmpty looks at the disks of a machine that
// lost its power, and at its volumes after the next start.
func TestAfterAPowerCutEncryptedVolumesAreEmpty(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 4*bootBound)
	defer cancel()
	dir := t.TempDir()
	r, err := newRig(ctx, dir, seedOf(t), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.close(); err != nil {
			t.Error(err)
		}
	})
	must := func(argv ...string) string {
		t.Helper()
		out, err := r.run(ctx, argv...)
		if err != nil {
			t.Fatalf("%q: %v\nlvmd's log:\n%s", argv, err, r.log())
		}
		return out
	}
	secret, open := []byte("plain text that no one may find "), []byte("plain text that anybody may find")
	write := func(file string, text []byte) {
		t.Helper()
		code, err := r.machine.Agent().Run(ctx, agent.Command{
			Argv:  []string{"dd", "status=none", "iflag=fullblock", "bs=64k", "conv=notrunc,fsync", "of=" + file},
			Stdin: bytes.NewReader(bytes.Repeat(text, 256<<10/len(text))),
		})
		if err != nil || code != 0 {
			t.Fatalf("writing to %s: dd ends with %d, error %v", file, code, err)
		}
	}
	if err := r.boot(ctx); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"raw", "--block", "--encryption=ephemeral"}, {"fs", "--encryption=ephemeral"}, {"thin", "--class=thin", "--encryption=ephemeral"}, {"plain", "--block"},
	} {
		must(append([]string{lvmd, "create", args[0], strconv.Itoa(sealedBytes)}, args[1:]...)...)
	}
	before, err := r.sealed(ctx)
	if err != nil {
		t.Fatal(err)
	}
	must("mkdir", "-p", "/mnt/fs", "/mnt/thin")
	for _, v := range before {
		switch v.Name {
		case "raw":
			write(v.DevicePath, secret)
		case "fs", "thin":
			must("mount", v.DevicePath, "/mnt/"+v.Name)
			write("/mnt/"+v.Name+"/file", secret)
			must("sync")
		case "plain":
			write(v.DevicePath, open)
			checkReadsAsZeroes(ctx, t, r, v.DevicePath)
		}
	}
	if _, err := r.cut(); err != nil {
		t.Fatal(err)
	}
	if found, err := holds(dir, secret); found || err != nil {
		t.Errorf("plain text is on the disk: %t, error %v", found, err)
	}
	// What is not encrypted is found, or nothing is proven.
	if found, err := holds(dir, open); !found || err != nil {
		t.Errorf("a volume that is not encrypted is on the disk: %t, error %v", found, err)
	}

	if err := r.boot(ctx); err != nil {
		t.Fatal(err)
	}
	after, err := r.sealed(ctx)
	if err != nil {
		t.Fatalf("%v: %v\nlvmd's log:\n%s", after, err, r.log())
	}
	if len(after) != len(before) {
		t.Errorf("volumes are %v, were %v", after, before)
	}
	for _, v := range after {
		if (v.EmptiedAt != "") != (v.Name != "plain") {
			t.Errorf("volume %+v", v)
		}
		switch v.Name {
		case "raw":
			// The rest is noise.
			if err := r.readsAsZeroes(ctx, v.DevicePath, headBytes); err != nil {
				t.Errorf("volume %s: %v", v.Name, err)
			}
		case "fs", "thin":
			must("mkdir", "-p", "/mnt/"+v.Name)
			must("mount", v.DevicePath, "/mnt/"+v.Name)
			if held := strings.TrimSpace(must("ls", "/mnt/"+v.Name)); held != "lost+found" {
				t.Errorf("volume %s holds %q", v.Name, held)
			}
			must("umount", "/mnt/"+v.Name)
		}
	}
	if log := must("cat", "/var/log/lvmd.log"); strings.Count(log, "the key of an encrypted volume is gone") != 3 {
		t.Errorf("lvmd's log:\n%s", log)
	}
	for _, v := range after {
		must(lvmd, "delete", v.ID)
	}
	if left := must("dmsetup", "ls"); strings.Contains(left, "carve.crypt.") {
		t.Errorf("left: %s", left)
	}
}
