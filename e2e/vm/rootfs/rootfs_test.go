package rootfs

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func writeTree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestModulesAreOrderedAfterWhatTheyNeed(t *testing.T) {
	dir := writeTree(t, map[string]string{
		"modules.dep": "kernel/fs/ext4/ext4.ko: kernel/fs/jbd2/jbd2.ko kernel/lib/crc16.ko\n" +
			"kernel/fs/jbd2/jbd2.ko: kernel/lib/crc16.ko\n" +
			"kernel/lib/crc16.ko:\n" +
			"kernel/drivers/virtio/virtio-blk.ko: kernel/drivers/virtio/virtio.ko\n" +
			"kernel/drivers/virtio/virtio.ko:\n",
		"modules.builtin": "kernel/fs/proc/built-in-one.ko\n",
	})
	got, err := loadOrder(dir, []string{"virtio_blk", "built_in_one", "ext4", "virtio"})
	want := []string{
		"kernel/drivers/virtio/virtio.ko", "kernel/drivers/virtio/virtio-blk.ko",
		"kernel/lib/crc16.ko", "kernel/fs/jbd2/jbd2.ko", "kernel/fs/ext4/ext4.ko",
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("loadOrder: %q, %v; want %q", got, err, want)
	}
	if _, err := loadOrder(dir, []string{"missing"}); err == nil || !strings.Contains(err.Error(), "missing") {
		t.Errorf("loadOrder of a module that is not there: %v, want an error that names it", err)
	}
}

func TestAnArchiveIsReadByOthersThanTheKernel(t *testing.T) {
	if _, err := exec.LookPath("busybox"); err != nil {
		t.Log("no busybox here: only the archive's length is looked at")
	}
	var archive bytes.Buffer
	writer := newCPIO(&archive)
	writer.directory("etc")
	writer.file("etc/hello", 0o640, []byte("hello"))
	if err := writer.close(); err != nil {
		t.Fatal(err)
	}
	if archive.Len()%4 != 0 {
		t.Errorf("the archive has %d bytes, want a multiple of four", archive.Len())
	}
	if _, err := exec.LookPath("busybox"); err != nil {
		return
	}
	command := exec.CommandContext(t.Context(), "busybox", "cpio", "-i", "-d")
	command.Dir, command.Stdin = t.TempDir(), &archive
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("cpio: %v: %s", err, output)
	}
	path := filepath.Join(command.Dir, "etc", "hello")
	content, err := os.ReadFile(path)
	if err != nil || string(content) != "hello" {
		t.Errorf("the file holds %q, %v", content, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o640 {
		t.Errorf("the file's mode: %v, %v", info, err)
	}
}

func TestATreesSizeCountsWholeBlocks(t *testing.T) {
	dir := writeTree(t, map[string]string{"one": "1", "two": strings.Repeat("2", 4097)})
	size, err := treeSize(dir)
	// The folder itself takes a block, too.
	if err != nil || size < 3*4096 || size > 5*4096 {
		t.Errorf("treeSize = %d, %v", size, err)
	}
}
