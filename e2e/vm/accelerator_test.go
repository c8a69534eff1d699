package vm

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/carve-csi/carve/e2e/vm/guest"
)

func TestAProbeFindsOutWhyAnAcceleratorDoesNotWork(t *testing.T) {
	const printsReply = `for a; do case $a in file:*) echo '` + guest.ProbeReply + `' > "${a#file:}";; esac; done; exit 1`
	// Each stands for QEMU; an argument is "file:" and the path of the console.
	for name, c := range map[string]struct {
		script string
		bound  time.Duration
		want   string
	}{
		"the machine boots": {script: printsReply, bound: time.Minute},
		"QEMU fails": {
			script: `echo first >&2; echo 'failed to initialize kvm: Function not implemented' >&2; exit 1`, bound: time.Minute,
			want: Binary + " ends with exit status 1: failed to initialize kvm: Function not implemented",
		},
		"QEMU fails without a word": {
			script: `exit 3`, bound: time.Minute,
			want: Binary + " ends with exit status 3",
		},
		"the machine says nothing": {
			script: `exit 0`, bound: time.Minute,
			want: "a machine went off before it had booted with kvm",
		},
		"the machine hangs": {
			script: `exec sleep 600`, bound: 200 * time.Millisecond,
			want: "a machine did not boot with kvm within 200ms",
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, Binary), []byte("#!/bin/sh\n"+c.script+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
			kvm := candidate{accelerator: KVM, command: kvmCommand("kernel", "initramfs")}
			if got := kvm.probe(context.Background(), dir, c.bound); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestAKernelInUserModeIsProbedOnItsStdout(t *testing.T) {
	dir := t.TempDir()
	kernel := filepath.Join(dir, "kernel")
	if err := os.WriteFile(kernel, []byte("#!/bin/sh\necho '"+guest.ProbeReply+"'\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	uml := candidate{accelerator: UML, command: userModeProbe(UserMode{Kernel: kernel, Libraries: dir})}
	if got := uml.probe(context.Background(), dir, time.Minute); got != "" {
		t.Errorf("got %q, want nothing", got)
	}
}

func TestTheFirstAcceleratorThatWorksIsChosenAndTheReasonsAreSaid(t *testing.T) {
	for name, c := range map[string]struct {
		candidates []candidate
		want       string
	}{
		"none": {
			[]candidate{{accelerator: KVM, unusable: "there is no /dev/kvm"}, {accelerator: UML, unusable: "it panics"}},
			"virtual machines are emulated, about twenty times slower than with KVM: there is no /dev/kvm; it panics",
		},
	} {
		found, err := choose(context.Background(), c.candidates)
		if err != nil || found.String() != c.want {
			t.Errorf("%s: got %q, %v, want %q", name, found, err, c.want)
		}
	}
	for found, want := range map[probed]string{
		{Accelerator: KVM}: "virtual machines run with KVM",
		{UML, "it hangs"}:  "machines run as programs, User Mode Linux, not with KVM: it hangs",
	} {
		if got := found.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestAKernelInUserModeWantsSpaceForItsMachinesMemory(t *testing.T) {
	if got, want := (UserMode{}).unusable(t.TempDir()), "there is no such kernel for "+runtime.GOARCH; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	// A file system that has no blocks at all.
	if got, want := (UserMode{Kernel: "/k"}).unusable("/proc"), "/proc has 0 MiB free, want 5120"; got != want {
		t.Errorf("got %q, want %q", got, want)
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
