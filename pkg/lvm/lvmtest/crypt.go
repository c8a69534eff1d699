package lvmtest

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/must"
)

// cryptCases use names of their own, as encrypted devices are named without their group.
var cryptCases = []struct {
	name string
	test func(*testing.T, Env)
}{
	{"what is written through an encrypted device cannot be read below it", encrypts},
	{"an encrypted device keeps its key until that is forgotten", keepsKey},
	{"an encrypted device grows while it is open and keeps what it holds", growsCrypt},
	{"an encrypted device claims its volume, and is not removed while open", claimsVolume},
	{"an encrypted device ends with the volume's device, and its key with it", endsWithDevice},
	{"what is not encrypted says so", notEncrypted},
}

const pattern = "plain text that none may find ! "

func block() []byte { return bytes.Repeat([]byte(pattern), 64<<10/len(pattern)) }

func (e Env) encrypt(t *testing.T, name string) {
	t.Helper()
	e.create(t, name, 1)
	fresh, err := e.Groups.Encrypt(e.Group, name, lvm.CryptOptions{})
	if err != nil || !fresh {
		t.Fatalf("Encrypt: fresh %t, error %v", fresh, err)
	}
	t.Cleanup(func() {
		if err := e.Groups.ForgetKey(name); err != nil {
			t.Error(err)
		}
	})
}

func (e Env) writePattern(t *testing.T, name string, off int64) {
	t.Helper()
	e.through(t, name, func(h blockdev.Handle) {
		if _, err := h.WriteAt(block(), off); err != nil {
			t.Error(err)
		}
		if err := h.Sync(); err != nil {
			t.Error(err)
		}
	})
}

func (e Env) reads(t *testing.T, name string, off int64) (same bool) {
	t.Helper()
	e.through(t, name, func(h blockdev.Handle) {
		b := make([]byte, 64<<10)
		if _, err := h.ReadAt(b, off); err != nil {
			t.Error(err)
		}
		// The fake remembers only the first byte of each block.
		same = b[0] == pattern[0] && b[4096] == pattern[0]
	})
	return same
}

func (e Env) through(t *testing.T, name string, do func(blockdev.Handle)) {
	t.Helper()
	h := must.Get(e.Groups.OpenCrypt(name))(t)
	do(h)
	if err := h.Close(); err != nil {
		t.Error(err)
	}
}

func encrypts(t *testing.T, e Env) {
	e.scan(t)
	e.encrypt(t, "cvcrypt1")
	e.writePattern(t, "cvcrypt1", 0)
	if !e.reads(t, "cvcrypt1", 0) {
		t.Error("what was written is not read")
	}
	h, err := e.Groups.OpenInUse(e.Group, "cvcrypt1")
	if err != nil {
		t.Fatal(err)
	}
	raw := make([]byte, 128<<10)
	_, err = h.ReadAt(raw, 0)
	must.Succeed(t, errors.Join(err, h.Close()))
	if bytes.Contains(raw, []byte(pattern)) || raw[0] == pattern[0] && raw[4096] == pattern[0] {
		t.Error("plain text is on the volume's own device")
	}
	if names, err := e.Groups.Encrypted(); err != nil || !slices.Contains(names, "cvcrypt1") {
		t.Errorf("encrypted are %q, error %v", names, err)
	}
	d, err := e.Groups.CryptDevice("cvcrypt1")
	if err != nil {
		t.Fatal(err)
	}
	if n, err := e.Groups.Numbers(e.Group); err != nil || n.Encrypted["cvcrypt1"] != d.Number() || n.Volumes["cvcrypt1"] == d.Number() {
		t.Errorf("numbers %v, error %v, want the encrypted device %v beside the volume's own", n, err, d.Number())
	}
}

func keepsKey(t *testing.T, e Env) {
	e.scan(t)
	e.encrypt(t, "cvcrypt2")
	e.writePattern(t, "cvcrypt2", 0)
	before, err := e.Groups.CryptDevice("cvcrypt2")
	if err != nil {
		t.Fatal(err)
	}
	if fresh, err := e.Groups.Encrypt(e.Group, "cvcrypt2", lvm.CryptOptions{}); fresh || err != nil {
		t.Errorf("a second Encrypt: fresh %t, error %v", fresh, err)
	}
	after, err := e.Groups.CryptDevice("cvcrypt2")
	if err != nil || after != before || !e.reads(t, "cvcrypt2", 0) {
		t.Errorf("device %+v, then %+v, error %v", before, after, err)
	}
	for range 2 {
		must.Succeed(t, e.Groups.ForgetKey("cvcrypt2"))
	}
	if fresh, err := e.Groups.Encrypt(e.Group, "cvcrypt2", lvm.CryptOptions{Discards: true}); !fresh || err != nil {
		t.Fatalf("Encrypt after the key was forgotten: fresh %t, error %v", fresh, err)
	}
	if e.reads(t, "cvcrypt2", 0) {
		t.Error("what was written with the first key is read with the second")
	}
}

func growsCrypt(t *testing.T, e Env) {
	g := e.scan(t)
	e.encrypt(t, "cvcrypt3")
	e.writePattern(t, "cvcrypt3", 0)
	release := must.Get(e.HoldCrypt(e.Group, "cvcrypt3"))(t)
	must.Succeed(t, e.Groups.Extend(t.Context(), e.Group, "cvcrypt3", 3))
	for range 2 {
		must.Succeed(t, e.Groups.GrowCrypt(e.Group, "cvcrypt3"))
	}
	if d, err := e.Groups.CryptDevice("cvcrypt3"); err != nil || d.Suspended || d.OpenCount != 1 {
		t.Errorf("device %+v, error %v", d, err)
	}
	release()
	e.writePattern(t, "cvcrypt3", 2*g.ExtentSize)
	if !e.reads(t, "cvcrypt3", 0) || !e.reads(t, "cvcrypt3", 2*g.ExtentSize) {
		t.Error("what was written is not read")
	}
	e.through(t, "cvcrypt3", func(h blockdev.Handle) {
		if h.Size() != 3*g.ExtentSize {
			t.Errorf("size %d, want 3 extents", h.Size())
		}
	})
}

func claimsVolume(t *testing.T, e Env) {
	e.scan(t)
	e.encrypt(t, "cvcrypt4")
	_, err := e.Groups.Open(e.Group, "cvcrypt4")
	wantErr(t, "Open of the volume below", err, lvm.ErrClaimed)
	if err != nil && !strings.Contains(err.Error(), "(carve.crypt.cvcrypt4)") {
		t.Errorf("the error does not name what lies on the volume: %v", err)
	}
	wantErr(t, "Remove", e.Groups.Remove(t.Context(), e.Group, []string{"cvcrypt4"}), lvm.ErrBusy)
	release, err := e.HoldCrypt(e.Group, "cvcrypt4")
	if err != nil {
		t.Fatal(err)
	}
	_, err = e.Groups.OpenCrypt("cvcrypt4")
	wantErr(t, "OpenCrypt", err, lvm.ErrBusy)
	wantErr(t, "ForgetKey", e.Groups.ForgetKey("cvcrypt4"), lvm.ErrBusy)
	release()
	must.Succeed(t, e.Groups.ForgetKey("cvcrypt4"))
	_, err = e.Groups.CryptDevice("cvcrypt4")
	wantErr(t, "CryptDevice", err, lvm.ErrNotFound)
	if err := e.Groups.Remove(context.WithoutCancel(t.Context()), e.Group, []string{"cvcrypt4"}); err != nil {
		t.Error(err)
	}
}

func endsWithDevice(t *testing.T, e Env) {
	e.scan(t)
	e.encrypt(t, "cvcrypt5")
	e.writePattern(t, "cvcrypt5", 0)
	// A reboot removes both devices; here the upper one must go first.
	must.Succeed(t, e.Groups.ForgetKey("cvcrypt5"))
	e.Deactivate()
	_, err := e.Groups.Encrypt(e.Group, "cvcrypt5", lvm.CryptOptions{})
	wantErr(t, "Encrypt of an inactive volume", err, lvm.ErrNotFound)
	must.Succeed(t, e.Groups.Activate(t.Context(), e.Group, []string{"cvcrypt5"}))
	_, err = e.Groups.CryptDevice("cvcrypt5")
	wantErr(t, "CryptDevice", err, lvm.ErrNotFound)
	if fresh, err := e.Groups.Encrypt(e.Group, "cvcrypt5", lvm.CryptOptions{}); !fresh || err != nil {
		t.Fatalf("Encrypt: fresh %t, error %v", fresh, err)
	}
	if e.reads(t, "cvcrypt5", 0) {
		t.Error("what was written with the first key is read with the second")
	}
}

func notEncrypted(t *testing.T, e Env) {
	e.scan(t)
	e.create(t, "cvcrypt6", 1)
	_, err := e.Groups.CryptDevice("cvcrypt6")
	wantErr(t, "CryptDevice", err, lvm.ErrNotFound)
	_, err = e.Groups.OpenCrypt("cvcrypt6")
	wantErr(t, "OpenCrypt", err, lvm.ErrNotFound)
	wantErr(t, "GrowCrypt", e.Groups.GrowCrypt(e.Group, "cvcrypt6"), lvm.ErrNotFound)
	if err := e.Groups.ForgetKey("cvcrypt6"); err != nil {
		t.Error(err)
	}
	_, err = e.Groups.Encrypt(e.Group, "cvcrypt7", lvm.CryptOptions{})
	wantErr(t, "Encrypt of no volume", err, lvm.ErrNotFound)
	release, err := e.Hold(e.Group, "cvcrypt6")
	if err != nil {
		t.Fatal(err)
	}
	release()
	if names, err := e.Groups.Encrypted(); err != nil || len(names) > 0 {
		t.Errorf("encrypted are %q, error %v", names, err)
	}
}
