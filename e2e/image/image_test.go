package image

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/carve-csi/carve/e2e/checkout"
)

func sample() tree {
	return tree{
		"bin":         link("usr/bin"),
		"usr":         folder(0o755),
		"usr/bin":     folder(0o755),
		"usr/bin/one": file(0o755, []byte("one")),
		"usr/bin/a":   {kind: tar.TypeLink, mode: 0o755, link: "usr/bin/one"},
		"tmp":         folder(0o1777),
	}
}

func TestTheSameTreeGivesTheSameBytes(t *testing.T) {
	first, err := sample().tar()
	if err != nil {
		t.Fatal(err)
	}
	for range 20 { // The order of a map changes from one look to the next.
		again, err := sample().tar()
		if err != nil || !bytes.Equal(first, again) {
			t.Fatalf("the bytes of the same tree differ (%v)", err)
		}
	}
}

func TestATreeSurvivesBeingWrittenAndRead(t *testing.T) {
	content, err := sample().tar()
	if err != nil {
		t.Fatal(err)
	}
	got, err := readTree(bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != len(sample()) {
		t.Errorf("entries: want %d, got %d", len(sample()), len(got))
	}
	for name, want := range sample() {
		if one := got[name]; one.kind != want.kind || one.mode != want.mode || one.link != want.link || !bytes.Equal(one.content, want.content) {
			t.Errorf("%s: want %+v, got %+v", name, want, one)
		}
	}
}

func TestHardLinksComeAfterTheirFiles(t *testing.T) {
	content, err := sample().tar()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for reader := tar.NewReader(bytes.NewReader(content)); ; {
		header, err := reader.Next()
		if err != nil {
			break
		}
		names = append(names, header.Name)
	}
	if slices.Index(names, "usr/bin/a") < slices.Index(names, "usr/bin/one") {
		t.Errorf("the order of entries: %q", names)
	}
}

func TestTheSameImageHasTheSameDigestAndItsName(t *testing.T) {
	digest := func() v1.Hash {
		layer, err := treeLayer(sample())
		if err != nil {
			t.Fatal(err)
		}
		output := filepath.Join(t.TempDir(), "image.tar")
		d := description{name: WorkloadName, layers: []v1.Layer{layer}, entrypoint: []string{"/usr/bin/one"}, user: "65532:65532"}
		if err := d.write(output); err != nil {
			t.Fatal(err)
		}
		tag, err := name.NewTag(WorkloadName)
		if err != nil {
			t.Fatal(err)
		}
		image, err := tarball.ImageFromPath(output, &tag)
		if err != nil {
			t.Fatal(err)
		}
		digest, err := image.ConfigName()
		if err != nil {
			t.Fatal(err)
		}
		config, err := image.ConfigFile()
		if err != nil || !slices.Equal(config.Config.Entrypoint, []string{"/usr/bin/one"}) || config.Config.User != d.user || config.Architecture != "amd64" {
			t.Errorf("configuration: got %+v, %v", config, err)
		}
		return digest
	}
	if first, second := digest(), digest(); first != second {
		t.Errorf("digests of the same image: %s and %s", first, second)
	}
}

func TestANameWithoutATagIsRefused(t *testing.T) {
	err := description{name: "carve"}.write(filepath.Join(t.TempDir(), "image.tar"))
	if err == nil {
		t.Error("want an error, got none")
	}
}

func TestThePackageListOfTheSourceTreeCanBeRead(t *testing.T) {
	root, err := checkout.Root()
	if err != nil {
		t.Fatal(err)
	}
	packages, err := readPackages(filepath.Join(root, packageList))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"lvm2", "e2fsprogs", "xfsprogs", "mount"} {
		if !slices.Contains(packages, want) {
			t.Errorf("%s is not in %q", want, packages)
		}
	}
}

func TestPackageListsThatAreWrongAreRefused(t *testing.T) {
	for _, content := range []string{"", "# nothing\n", "lvm2 e2fsprogs\n", "lvm2\n--yes\n", "LVM2\n"} {
		path := filepath.Join(t.TempDir(), "packages.txt")
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if packages, err := readPackages(path); err == nil {
			t.Errorf("list %q: want an error, got %q", content, packages)
		}
	}
}

// TestTheImageHasTheLicencesOfItsPrograms does it for arm64. The list of what an image is made of, which a
// release has, compares them with what the programs say.
func TestTheImageHasTheLicencesOfItsPrograms(t *testing.T) {
	root, err := checkout.Root()
	if err != nil {
		t.Fatal(err)
	}
	layer := make(tree)
	if err := addLicences(t.Context(), layer, filepath.Join(t.TempDir(), "found"), "arm64", carvePrograms(root)); err != nil {
		t.Fatal(err)
	}
	own, err := os.ReadFile(filepath.Join(root, "LICENSE"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(layer["licenses/LICENSE"].content, own) {
		t.Errorf("Carve's licence: got %q", layer["licenses/LICENSE"].content)
	}
	modules := 0
	for name, one := range layer {
		if one.kind == tar.TypeReg && (len(one.content) == 0 || one.mode != 0o644) {
			t.Errorf("%s: mode %o, %d bytes", name, one.mode, len(one.content))
		}
		if strings.Contains(name, "@") && one.kind == tar.TypeReg {
			modules++
		}
	}
	if modules < 50 || !layer.has("licenses/go/LICENSE") {
		t.Errorf("licences of %d modules; Go's %t", modules, layer.has("licenses/go/LICENSE"))
	}
}

func TestSchedulerModuleIsChosenByMinorVersion(t *testing.T) {
	dir := t.TempDir()
	for name, version := range map[string]string{"go.mod": "v1.37.2", "go-1.36.mod": "v1.36.3", "go-1.34.mod": "v1.33.1"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("require (\n\tk8s.io/kubernetes "+version+"\n)\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for minor, want := range map[string]string{"1.37": "go.mod v1.37.2", "1.36": "go-1.36.mod v1.36.3", "1.35": "", "1.34": "", "1.3": "", "": ""} {
		file, version, err := module(dir, minor)
		if got := strings.TrimSpace(file + " " + version); got != want || (err == nil) != (want != "") {
			t.Errorf("Kubernetes %q: got %q, %v, want %q", minor, got, err, want)
		}
	}
}
