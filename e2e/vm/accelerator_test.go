package vm

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/carve-csi/carve/e2e/vm/guest"
)

func TestAProbeSaysWhichAcceleratorIsUsedAndWhyNotKVM(t *testing.T) {
	// Each stands for QEMU; an argument is "file:" and the path of the console.
	for name, c := range map[string]struct {
		script string
		bound  time.Duration
		want   probed
		line   string
	}{
		"the machine boots": {
			script: `for a; do case $a in file:*) echo '` + guest.ProbeReply + `' > "${a#file:}";; esac; done; exit 1`, bound: time.Minute,
			want: probed{Accelerator: KVM},
			line: "virtual machines run with KVM",
		},
		"QEMU fails": {
			script: `echo first >&2; echo 'failed to initialize kvm: Function not implemented' >&2; exit 1`, bound: time.Minute,
			want: probed{TCG, Binary + " ends with exit status 1: failed to initialize kvm: Function not implemented"},
		},
		"QEMU fails without a word": {
			script: `exit 3`, bound: time.Minute,
			want: probed{TCG, Binary + " ends with exit status 3"},
		},
		"the machine says nothing": {
			script: `exit 0`, bound: time.Minute,
			want: probed{TCG, "a machine went off before it had booted with it"},
		},
		"the machine hangs": {
			script: `exec sleep 600`, bound: 200 * time.Millisecond,
			want: probed{TCG, "a machine did not boot with it within 200ms"},
			line: "virtual machines are emulated, about twenty times slower than with KVM: a machine did not boot with it within 200ms",
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, Binary), []byte("#!/bin/sh\n"+c.script+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
			got := probe(context.Background(), dir, "kernel", "initramfs", c.bound)
			if got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
			if c.line != "" && got.String() != c.line {
				t.Errorf("got the line %q, want %q", got, c.line)
			}
		})
	}
}

func TestADeviceThatCannotBeOpenedIsNamed(t *testing.T) {
	dir := t.TempDir()
	if got, want := unusable(filepath.Join(dir, "kvm")), "there is no "+dir+"/kvm"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := unusable(dir), "open "+dir+": is a directory"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := unusable(os.DevNull); got != "" {
		t.Errorf("got %q for a device that can be opened", got)
	}
}
