//go:build e2e

package image

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/carve-csi/carve/e2e/debian"
	"github.com/carve-csi/carve/e2e/kube"
)

// emulator runs programs for arm64 on another processor.
const emulator = "qemu-aarch64-static"

// TestTheImageForARM64Runs makes the image for arm64 and starts its programs under emulation:
// Carve's, and those that they run, with the libraries of the image.
func TestTheImageForARM64Runs(t *testing.T) {
	root := imageForARM64(t, Carve)
	for _, test := range []struct{ want, program string }{
		{"v9.9.9", "usr/local/bin/carve-lvmd --version"},
		{"v9.9.9", "usr/local/bin/carve-node --version"},
		{"v9.9.9", "usr/local/bin/carve-controller --version"},
		{"LVM version", "usr/sbin/lvm version"},
		{"mke2fs", "usr/sbin/mke2fs -V"},
		{"mkfs.xfs version", "usr/sbin/mkfs.xfs -V"},
		{"btrfs-progs", "usr/bin/btrfs --version"},
		{"cryptsetup", "usr/sbin/cryptsetup --version"},
		{"util-linux", "usr/bin/mount --version"},
		{"thin_check", "usr/sbin/thin_check --help"},
	} {
		wantPrinted(t, root, test.program, test.want)
	}
}

func TestSchedulerForARM64Runs(t *testing.T) {
	wantPrinted(t, imageForARM64(t, Scheduler), "usr/local/bin/carve-scheduler --version", kube.Version)
}

// imageForARM64 makes an image and returns the folder with its contents.
func imageForARM64(t *testing.T, make func(context.Context, Options) (string, error)) (root string) {
	t.Helper()
	if err := debian.Ensure(t.Context(), os.Stderr, "qemu-user-static"); err != nil {
		t.Fatal(err)
	}
	archive, err := make(t.Context(), Options{Architecture: "arm64", Version: "v9.9.9", Output: filepath.Join(t.TempDir(), "image.tar"), Progress: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	image, err := tarball.ImageFromPath(archive, nil)
	if err != nil {
		t.Fatal(err)
	}
	if config, err := image.ConfigFile(); err != nil || config.Architecture != "arm64" {
		t.Fatalf("configuration: got %+v, %v", config, err)
	}
	root = t.TempDir()
	unpackImage(t, image, root)
	return root
}

// wantPrinted checks what a program of an image prints under emulation.
func wantPrinted(t *testing.T, root, program, want string) {
	t.Helper()
	argv := strings.Fields(program)
	command := exec.CommandContext(t.Context(), emulator, append([]string{"-L", root, filepath.Join(root, argv[0])}, argv[1:]...)...)
	if output, err := command.CombinedOutput(); err != nil || !strings.Contains(string(output), want) {
		t.Errorf("%s: want %q, got %v\n%s", program, want, err, output)
	}
}

// unpackImage unpacks what an image holds. Links lead to where they do within it.
func unpackImage(t *testing.T, image v1.Image, root string) {
	t.Helper()
	contents := mutate.Extract(image)
	defer contents.Close()
	for reader := tar.NewReader(contents); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(root, header.Name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		switch header.Typeflag {
		case tar.TypeDir:
			err = os.MkdirAll(path, 0o755)
		case tar.TypeSymlink:
			target := header.Linkname
			if filepath.IsAbs(target) {
				target = filepath.Join(root, target)
			}
			err = os.Symlink(target, path)
		case tar.TypeLink:
			err = os.Link(filepath.Join(root, header.Linkname), path)
		case tar.TypeReg:
			err = writeProgram(path, reader)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func writeProgram(path string, content io.Reader) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, content)
	return errors.Join(err, file.Close())
}
