package cluster

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/carve-csi/carve/e2e/vm"
	"github.com/carve-csi/carve/e2e/vm/platform"
)

// sandbox points the cache at an empty folder.
func sandbox(t *testing.T) {
	t.Helper()
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
}

func TestNodesHaveAddressesOfTheirOwn(t *testing.T) {
	n := node{number: 2, dir: "/c/nodes/node-2"}
	if got := fmt.Sprintf("%s %s %s %s", n.name(), n.address(), n.podSubnet(), n.tap()); got != "node-2 10.80.0.12 10.244.2.0/24 tap2" {
		t.Errorf("node 2 is %s", got)
	}
	if routes := n.network().Routes; len(routes) != MaxNodes-1 || routes[0].Destination != "10.244.1.0/24" || routes[0].Via != "10.80.0.11" {
		t.Errorf("node 2 has the routes %v", routes)
	}
}

func TestAMachinesDescriptionSurvivesJSON(t *testing.T) {
	n := node{number: 1, pmem: true, dir: "/c/nodes/node-1"}
	content, err := json.Marshal(n.machine(assets{platform: platform.Platform{Accelerator: vm.TCG}}))
	if err != nil {
		t.Fatal(err)
	}
	var got vm.Config
	if err := json.Unmarshal(content, &got); err != nil {
		t.Fatal(err)
	}
	if got.Name != "node-1" || len(got.Disks) != 4 || got.Disks[0].Volatile || got.PmemMiB == 0 || len(got.Guest.Services) != 2 {
		t.Errorf("the description came back with %d disks, %d MiB of persistent memory and %d services", len(got.Disks), got.PmemMiB, len(got.Guest.Services))
	}
}

func TestNamesThatCannotBeUsedAreRefused(t *testing.T) {
	sandbox(t)
	for _, name := range []string{"A", "a_b", "-a", "a/b", strings.Repeat("a", 41)} {
		if _, err := Attach(name); err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Attach(%q): %v, want an error about the name", name, err)
		}
	}
}

func TestAClusterThatIsNotUpCannotBeAttachedTo(t *testing.T) {
	sandbox(t)
	if _, err := Attach("absent"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Attach: %v, want fs.ErrNotExist", err)
	}
}

func TestTheNumberOfNodesIsDecidedByTheFirstUp(t *testing.T) {
	sandbox(t)
	c, err := named("x", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, wanted := range []int{-1, MaxNodes + 1} {
		if err := c.choose(Options{Nodes: wanted}); err == nil {
			t.Errorf("choose(%d): want an error", wanted)
		}
	}
	if err := c.choose(Options{}); err != nil || len(c.nodes) != DefaultNodes {
		t.Errorf("choose(0): %d nodes, %v", len(c.nodes), err)
	}
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := c.writeDescription(description{Nodes: 3}); err != nil {
		t.Fatal(err)
	}
	if err := c.choose(Options{}); err != nil || len(c.nodes) != 3 {
		t.Errorf("choose(0) of a cluster of three: %d nodes, %v", len(c.nodes), err)
	}
	if err := c.choose(Options{Nodes: 2}); err == nil {
		t.Error("choose(2) of a cluster of three: want an error")
	}
}

func TestCommandsThatChangeAClusterTakeTurns(t *testing.T) {
	sandbox(t)
	c, err := named("x", nil)
	if err != nil {
		t.Fatal(err)
	}
	unlock, err := c.lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 250*time.Millisecond)
	defer cancel()
	if _, err := c.lock(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a second lock: %v, want to have waited in vain", err)
	}
	unlock()
	again, err := c.lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	again()
}

func TestHolesAreNotCopied(t *testing.T) {
	dir := t.TempDir()
	source, destination := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	if err := vm.MakeSparse(source, 1<<30); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(source, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteAt([]byte("middle"), 512<<20); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	if err := copySparse(t.Context(), source, destination); err != nil {
		t.Fatal(err)
	}
	copied, err := os.Open(destination)
	if err != nil {
		t.Fatal(err)
	}
	defer copied.Close()
	got := make([]byte, 6)
	if _, err := copied.ReadAt(got, 512<<20); err != nil || string(got) != "middle" {
		t.Errorf("the middle is %q, %v", got, err)
	}
	if info, err := copied.Stat(); err != nil || info.Size() != 1<<30 {
		t.Errorf("the copy's size: %v, %v", info, err)
	}
}

func TestAnImagesNameIsReadFromItsTar(t *testing.T) {
	path := filepath.Join(t.TempDir(), "image.tar")
	write := func(name, content string) {
		var archive bytes.Buffer
		writer := tar.NewWriter(&archive)
		if err := writer.WriteHeader(&tar.Header{Name: name, Size: int64(len(content)), Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
		if _, err := writer.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
		if err := writer.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, archive.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("manifest.json", `[{"RepoTags": ["example.com/a:b"]}]`)
	if name, err := imageName(path); err != nil || name != "example.com/a:b" {
		t.Errorf("imageName = %q, %v", name, err)
	}
	for name, content := range map[string]string{"manifest.json": `[]`, "index.json": `{}`} {
		write(name, content)
		if _, err := imageName(path); err == nil {
			t.Errorf("imageName of a tar with %s %s: want an error", name, content)
		}
	}
}

func TestProgressWritesWholeLines(t *testing.T) {
	var output bytes.Buffer
	p := newProgress(&output)
	_, _ = p.Write([]byte("one"))
	if output.Len() > 0 {
		t.Errorf("half a line came as %q", output.String())
	}
	_, _ = p.Write([]byte(" line\ntwo\n"))
	if got := output.String(); strings.Count(got, "\n") != 2 || !strings.Contains(got, "s] one line\n") || !strings.Contains(got, "s] two\n") {
		t.Errorf("progress printed %q", got)
	}
}
