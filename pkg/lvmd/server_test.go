//go:build !kernel

package lvmd

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carve-csi/carve/pkg/must"
)

func TestOnlyOneLvmdHasAStateDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "if", "needed")
	release := must.Get(LockStateDir(dir))(t)
	if _, err := LockStateDir(dir); err == nil || !strings.Contains(err.Error(), "another lvmd is running") {
		t.Errorf("error %v", err)
	}
	release()
	release = must.Get(LockStateDir(dir))(t)
	release()
}

func TestOnlyOneLvmdRunsOnANode(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "lvm")
	release := must.Get(LockNode(dir))(t)
	if _, err := LockNode(dir); err == nil || !strings.Contains(err.Error(), "another lvmd is running") {
		t.Errorf("error %v, want one about another lvmd", err)
	}
	release()
	release = must.Get(LockNode(dir))(t)
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
	// A killed lvmd leaves its socket behind.
	first.Close()
	must.Get(os.Stat(path))(t)
	second, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
}

func TestASocketThatAProgramAnswersOnIsLeftAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lvmd.sock")
	first, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	if _, err := Listen(path); err == nil || !strings.Contains(err.Error(), "answers on it") {
		t.Errorf("error %v, want that a program answers", err)
	}
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatalf("the first one's socket: %v", err)
	}
	conn.Close()
}

func TestAFileInTheSocketsPlaceIsLeftAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lvmd.sock")
	must.Succeed(t, os.WriteFile(path, []byte("precious"), 0o600))
	if _, err := Listen(path); err == nil || !strings.Contains(err.Error(), "no socket") {
		t.Errorf("error %v", err)
	}
	if b, _ := os.ReadFile(path); string(b) != "precious" {
		t.Error("it was overwritten")
	}
}
