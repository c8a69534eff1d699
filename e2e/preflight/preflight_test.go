package preflight

import (
	"errors"
	"path/filepath"
	"slices"
	"testing"
)

// good has all that is needed.
func good() host {
	return host{
		system: "linux", processor: "amd64", root: true, memoryMiB: 8 << 10,
		cache: space{"/cache", 20 << 10}, temp: space{"/tmp", 2 << 10}, shared: space{"/dev/shm", 64},
	}
}

func TestEverythingThatIsMissingIsSaidAtOnceALineEach(t *testing.T) {
	cluster := Needs{MemoryMiB: 6 << 10, Network: true}
	for name, c := range map[string]struct {
		change func(*host)
		needs  Needs
		want   []string
	}{
		"nothing": {change: func(*host) {}, needs: cluster},
		"another system": {
			change: func(h *host) { *h = host{system: "darwin", processor: "arm64"} }, needs: cluster,
			want: []string{"system: this is darwin, Linux is needed"},
		},
		"arm64": {
			change: func(h *host) { h.processor = "arm64" }, needs: cluster,
			want: []string{"processor: this is arm64, amd64 (x86-64) is needed: virtual machines and images are made for it only"},
		},
		"almost everything": {
			change: func(h *host) {
				h.root, h.memoryMiB, h.cache.freeMiB, h.temp.freeMiB = false, 5<<10+512, 3<<10, 1<<9
				h.namespaces, h.tun = "none can be made: operation not permitted", "open /dev/net/tun: no such file or directory"
				h.absent = []string{"apt-get", "git"}
			}, needs: cluster,
			want: []string{
				"rights: run it as root, for network namespaces, mounts and the installation of packages",
				"network namespaces: none can be made: operation not permitted",
				"TUN/TAP devices: open /dev/net/tun: no such file or directory",
				"memory: 5.5 GiB available, 6.0 GiB needed",
				"disk: 3.0 GiB free in /cache, 4.0 GiB needed",
				"disk: 0.5 GiB free in /tmp, 1.0 GiB needed",
				"apt-get, which installs Debian packages, is not in the PATH",
				"git, which names the version of what is built, is not in the PATH",
			},
		},
		"a machine that has no network needs no network": {
			change: func(h *host) { h.namespaces, h.tun = "none", "none" }, needs: Needs{MemoryMiB: 1 << 10},
		},
		"what runs already needs no more memory": {
			change: func(h *host) { h.memoryMiB = 1 }, needs: Needs{Network: true},
		},
		"an empty cache needs more": {
			change: func(h *host) { h.cold, h.cache.freeMiB = true, 10<<10 }, needs: cluster,
			want: []string{"disk: 10.0 GiB free in /cache, 14.0 GiB needed"},
		},
		"disks of machines need more": {
			change: func(*host) {}, needs: Needs{DisksMiB: 17 << 10},
			want: []string{"disk: 20.0 GiB free in /cache, 21.0 GiB needed", "disk: 2.0 GiB free in /tmp, 18.0 GiB needed"},
		},
		"machines that run as programs need their memory": {
			change: func(h *host) { h.kvm = "there is no /dev/kvm" }, needs: Needs{SharedMiB: 5 << 10},
			want: []string{"memory of machines: 0.1 GiB free in /dev/shm, 5.0 GiB needed without KVM (there is no /dev/kvm)"},
		},
		"machines that run with KVM do not": {change: func(*host) {}, needs: Needs{SharedMiB: 5 << 10}},
	} {
		t.Run(name, func(t *testing.T) {
			h := good()
			c.change(&h)
			if got := missing(c.needs, h); !slices.Equal(got, c.want) {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
		})
	}
}

func TestKVMIsProvedWhereTheMachinesMemoryDependsOnIt(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*host)
		// why is what the proof finds; proofs is how often it is asked.
		why    string
		proofs int
		want   []string
	}{
		"it works": {change: func(*host) {}, proofs: 1},
		"the device can be opened and runs no machine": {
			change: func(*host) {}, why: "qemu ends with signal: aborted", proofs: 1,
			want: []string{"memory of machines: 0.1 GiB free in /dev/shm, 5.0 GiB needed without KVM (qemu ends with signal: aborted)"},
		},
		"there is memory for either": {change: func(h *host) { h.shared.freeMiB = 5 << 10 }, why: "it does not"},
		"there is no device": {
			change: func(h *host) { h.kvm = "there is no /dev/kvm" },
			want:   []string{"memory of machines: 0.1 GiB free in /dev/shm, 5.0 GiB needed without KVM (there is no /dev/kvm)"},
		},
		"something else is missing": {
			change: func(h *host) { h.root = false }, why: "it does not",
			want: []string{"rights: run it as root, for network namespaces, mounts and the installation of packages"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			h, proofs := good(), 0
			c.change(&h)
			got, err := missingAndProved(Needs{SharedMiB: 5 << 10, Prove: func() (string, error) {
				proofs++
				return c.why, nil
			}}, h)
			if err != nil || !slices.Equal(got, c.want) || proofs != c.proofs {
				t.Errorf("got  %q, error %v, after %d proofs\nwant %q, after %d", got, err, proofs, c.want, c.proofs)
			}
		})
	}
	failed := errors.New("no package")
	if _, err := missingAndProved(Needs{SharedMiB: 5 << 10, Prove: func() (string, error) { return "", failed }}, good()); !errors.Is(err, failed) {
		t.Errorf("a proof that cannot be made: got error %v, want %v", err, failed)
	}
}

func TestTheNearestFolderIsFound(t *testing.T) {
	dir := t.TempDir()
	for _, path := range []string{dir, filepath.Join(dir, "a"), filepath.Join(dir, "a", "b")} {
		if got := nearest(path); got != dir {
			t.Errorf("nearest folder of %s: got %s, want %s", path, got, dir)
		}
	}
}
