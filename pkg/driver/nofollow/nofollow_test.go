package nofollow_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/carve-csi/carve/pkg/driver/nofollow"
	"github.com/carve-csi/carve/pkg/must"
)

// place makes a trusted directory with a link in it that leads out and one
// that stays within.
func place(t *testing.T) (trusted, outside string) {
	t.Helper()
	dir := t.TempDir()
	trusted, outside = filepath.Join(dir, "trusted"), filepath.Join(dir, "outside")
	must.Succeed(t, os.MkdirAll(filepath.Join(trusted, "a", "b"), 0o700))
	must.Succeed(t, os.Mkdir(outside, 0o700))
	must.Succeed(t, os.Symlink(outside, filepath.Join(trusted, "out")))
	must.Succeed(t, os.Symlink("a", filepath.Join(trusted, "in")))
	return trusted, outside
}

func TestLinksAreNeverFollowed(t *testing.T) {
	calls := map[string]func(trusted, path string) error{
		"mkdir":  func(trusted, path string) error { return nofollow.Mkdir(trusted, path, 0o700) },
		"touch":  func(trusted, path string) error { return nofollow.Touch(trusted, path, 0o600) },
		"remove": nofollow.Remove,
		"parent": func(trusted, path string) error {
			f, _, err := nofollow.Parent(trusted, path)
			f.Close()
			return err
		},
		"directory": func(trusted, path string) error {
			f, err := nofollow.Directory(trusted, path)
			f.Close()
			return err
		},
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			trusted, outside := place(t)
			must.Succeed(t, os.WriteFile(filepath.Join(outside, "precious"), nil, 0o600))
			must.Succeed(t, os.WriteFile(filepath.Join(trusted, "a", "precious"), nil, 0o600))
			for _, path := range []string{"out/precious", "in/precious", "out/new", "in/new"} {
				if err := call(trusted, filepath.Join(trusted, path)); !errors.Is(err, syscall.ELOOP) {
					t.Errorf("%s: got %v", path, err)
				}
			}
			for _, dir := range []string{outside, filepath.Join(trusted, "a")} {
				if _, err := os.Lstat(filepath.Join(dir, "precious")); err != nil {
					t.Error(err)
				}
				if _, err := os.Lstat(filepath.Join(dir, "new")); err == nil {
					t.Errorf("something was made in %s", dir)
				}
			}
		})
	}
}

func TestADirectoryThatIsALinkIsRefused(t *testing.T) {
	trusted, _ := place(t)
	f, err := nofollow.Directory(trusted, filepath.Join(trusted, "out"))
	if f.Close(); !errors.Is(err, syscall.ELOOP) {
		t.Errorf("got %v", err)
	}
}

func TestTheTrustedDirectoryMayBeALink(t *testing.T) {
	trusted, _ := place(t)
	link := filepath.Join(filepath.Dir(trusted), "link")
	must.Succeed(t, os.Symlink(trusted, link))
	must.Succeed(t, nofollow.Mkdir(link, filepath.Join(link, "a", "new"), 0o700))
	if _, err := os.Stat(filepath.Join(trusted, "a", "new")); err != nil {
		t.Error(err)
	}
	if err := nofollow.Mkdir("", filepath.Join(link, "a", "newer"), 0o700); !errors.Is(err, syscall.ELOOP) {
		t.Errorf("a link that is not trusted: %v", err)
	}
}

func TestWaysOutAreRefused(t *testing.T) {
	trusted, outside := place(t)
	for _, path := range []string{trusted + "/../outside/new", trusted + "/a/..", "relative", trusted + "/a/"} {
		if err := nofollow.Mkdir(trusted, path, 0o700); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: got %v", path, err)
		}
	}
	if _, err := os.Lstat(filepath.Join(outside, "new")); err == nil {
		t.Error("something was made outside")
	}
}

func TestWhatIsMadeAndRemoved(t *testing.T) {
	trusted, _ := place(t)
	dir, file, link := filepath.Join(trusted, "a", "dir"), filepath.Join(trusted, "a", "file"), filepath.Join(trusted, "out")
	must.Succeed(t, nofollow.Mkdir(trusted, dir, 0o750))
	must.Succeed(t, nofollow.Touch(trusted, file, 0o600))
	for _, again := range []error{nofollow.Mkdir(trusted, dir, 0o750), nofollow.Touch(trusted, file, 0o600), nofollow.Touch(trusted, link, 0o600)} {
		if !errors.Is(again, fs.ErrExist) {
			t.Errorf("got %v", again)
		}
	}
	must.Succeed(t, os.WriteFile(filepath.Join(dir, "kept"), nil, 0o600))
	if err := nofollow.Remove(trusted, dir); !errors.Is(err, syscall.ENOTEMPTY) {
		t.Errorf("got %v", err)
	}
	must.Succeed(t, nofollow.Remove(trusted, filepath.Join(dir, "kept")))
	for _, path := range []string{dir, file, link} {
		must.Succeed(t, nofollow.Remove(trusted, path))
		if err := nofollow.Remove(trusted, path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("got %v", err)
		}
	}
}
