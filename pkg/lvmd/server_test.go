//go:build !kernel

package lvmd

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestOnlyOneLvmdHasAStateDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "if", "needed")
	release, err := LockStateDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := LockStateDir(dir); err == nil || !strings.Contains(err.Error(), "another lvmd is running") {
		t.Errorf("error %v", err)
	}
	release()
	release, err = LockStateDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	release()
}

func TestAStaleSocketIsReplacedAndIsItsOwnersAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "lvmd.sock")
	first, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, error %v", info.Mode(), err)
	}
	second, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	// The first one's end must not end the second one's socket.
	first.Close()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
}

func TestAFileInTheSocketsPlaceIsLeftAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lvmd.sock")
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(path); err == nil || !strings.Contains(err.Error(), "no socket") {
		t.Errorf("error %v", err)
	}
	if b, _ := os.ReadFile(path); string(b) != "precious" {
		t.Error("it was overwritten")
	}
}
