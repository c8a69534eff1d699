package image

import (
	"archive/tar"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestMergingMovesFilesUnderUsrAndLeavesLinks(t *testing.T) {
	root := tree{
		"bin":            folder(0o755),
		"bin/mount":      file(0o755, []byte("mount")),
		"bin/same":       file(0o755, []byte("same")),
		"bin/other":      {kind: tar.TypeLink, link: "bin/mount"},
		"sbin":           folder(0o755),
		"sbin/lvm":       file(0o755, []byte("lvm")),
		"usr":            folder(0o755),
		"usr/bin":        folder(0o755),
		"usr/bin/same":   link("/bin/same"),
		"usr/bin/usr":    file(0o755, []byte("usr")),
		"lib64":          folder(0o755),
		"lib64/ld.so.2":  link("/lib/x/ld.so.2"),
		"lib/x/ld.so.2":  file(0o755, []byte("loader")),
		"libx32":         folder(0o755),
		"etc/lvm/a.conf": file(0o644, nil),
	}
	root.mergeUsr()
	for name, target := range map[string]string{"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"} {
		if e := root[name]; e.kind != tar.TypeSymlink || e.link != target {
			t.Errorf("%s: want a link to %s, got %+v", name, target, e)
		}
	}
	if root.has("libx32") {
		t.Error("an empty libx32 was kept")
	}
	if got := string(root["usr/bin/same"].content); got != "same" {
		t.Errorf("usr/bin/same: want the file, got %q", got)
	}
	if got := root["usr/bin/other"].link; got != "usr/bin/mount" {
		t.Errorf("hard link: want it to usr/bin/mount, got %q", got)
	}
	for _, name := range []string{"usr/bin/mount", "usr/sbin/lvm", "usr/bin/usr", "usr/sbin", "etc/lvm/a.conf"} {
		if !root.has(name) {
			t.Errorf("%s is missing", name)
		}
	}
	if got := root.target("usr/lib64/ld.so.2"); got != "usr/lib/x/ld.so.2" {
		t.Errorf("target of the loader: got %s", got)
	}
}

func TestWhatIsNeverReadIsDroppedButLicencesAreKept(t *testing.T) {
	root := tree{
		"usr/share/man/man8/lvm.8.gz":     file(0o644, nil),
		"usr/share/doc/lvm2/copyright":    file(0o644, nil),
		"usr/share/doc/lvm2/changelog.gz": file(0o644, nil),
		"usr/share/doc/libstdc++6":        link("gcc-12-base"),
		"usr/share/common-licenses/GPL-2": file(0o644, nil),
		"usr/share/common-licenses/GPL":   link("GPL-3"),
		"usr/bin/perl":                    file(0o755, nil),
		"usr/bin/perl5.36.0":              {kind: tar.TypeLink, link: "usr/bin/perl"},
		"usr/sbin/lvm":                    file(0o755, nil),
		"dev/null":                        file(0o644, nil),
	}
	root.drop()
	for name, want := range map[string]bool{
		"usr/share/man/man8/lvm.8.gz":     false,
		"usr/share/doc/lvm2/copyright":    true,
		"usr/share/doc/lvm2":              true,
		"usr/share/doc/lvm2/changelog.gz": false,
		"usr/share/doc/libstdc++6":        true,
		"usr/share/common-licenses/GPL-2": true,
		"usr/share/common-licenses/GPL":   true,
		"usr/bin/perl5.36.0":              false,
		"usr/sbin/lvm":                    true,
		"dev/null":                        false,
	} {
		if got := root.has(name); got != want {
			t.Errorf("%s: want it there %t, got %t", name, want, got)
		}
	}
}

// system returns a tree with one program of this machine and the libraries around it.
func system(t *testing.T, program string) tree {
	t.Helper()
	const libraries = "usr/lib/x86_64-linux-gnu"
	root := tree{"lib64": link("usr/lib64"), "lib": link("usr/lib")}
	if err := root.add("usr/bin/program", program, 0o755); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir("/" + libraries)
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range entries {
		// Enough for coreutils, and something that they do not need.
		if slices.ContainsFunc([]string{"libc.so.6", "libselinux.so.1", "libpcre2-8.so.0", "libm.so.6"},
			func(prefix string) bool { return strings.HasPrefix(one.Name(), prefix) }) {
			if err := root.add(libraries+"/"+one.Name(), filepath.Join("/", libraries, one.Name()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := root.add(libraries+"/ld-linux-x86-64.so.2", "/lib64/ld-linux-x86-64.so.2", 0o755); err != nil {
		t.Fatal(err)
	}
	root["usr/lib64/ld-linux-x86-64.so.2"] = link("/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2")
	return root
}

func TestOnlyLibrariesThatAreNeededStay(t *testing.T) {
	root := system(t, "/bin/ls")
	if err := root.pruneLibraries(); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{
		"usr/lib/x86_64-linux-gnu/libc.so.6":            true,
		"usr/lib/x86_64-linux-gnu/libselinux.so.1":      true,
		"usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2": true,
		"usr/lib64/ld-linux-x86-64.so.2":                true,
		"usr/lib/x86_64-linux-gnu/libm.so.6":            false,
	} {
		if got := root.has(name); got != want {
			t.Errorf("%s: want it there %t, got %t", name, want, got)
		}
	}
}

func TestAProgramWithoutItsLibraryIsAnError(t *testing.T) {
	root := system(t, "/bin/ls")
	delete(root, "usr/lib/x86_64-linux-gnu/libselinux.so.1")
	err := root.pruneLibraries()
	if err == nil || !strings.Contains(err.Error(), "usr/bin/program needs libselinux.so.1") {
		t.Errorf("want an error that names the library, got %v", err)
	}
}

func TestAnImageSaysWhatItWasMadeOf(t *testing.T) {
	root := tree{
		"var/cache/apt/archives/lvm2_2.03.16-2_arm64.deb":                    file(0o644, nil),
		"var/cache/apt/archives/libdevmapper1.02.1_2%3a1.02.185-2_arm64.deb": file(0o644, nil),
		"var/cache/apt/archives/lock":                                        file(0o644, nil),
	}
	got, err := root.unpackedPackages()
	if err != nil {
		t.Fatal(err)
	}
	want := "Package: libdevmapper1.02.1\nStatus: install ok installed\nVersion: 2:1.02.185-2\nArchitecture: arm64\n"
	if content := string(got["var/lib/dpkg/status.d/libdevmapper1.02.1"].content); content != want || !got.has("var/lib/dpkg/status.d/lvm2") {
		t.Errorf("want %q, got %q of %d entries", want, content, len(got))
	}
	for _, bad := range []tree{{}, {"var/cache/apt/archives/lvm2.deb": file(0o644, nil)}} {
		if got, err := bad.unpackedPackages(); err == nil {
			t.Errorf("of %v: want an error, got %v", bad, got)
		}
	}
}
