package sbom_test

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"net/url"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx/v2/common"

	"github.com/carve-csi/carve/release/oci"
	"github.com/carve-csi/carve/release/oci/ocitest"
	"github.com/carve-csi/carve/release/sbom"
)

func TestADocumentListsPackagesAndModulesAndIsTheSameTwice(t *testing.T) {
	archive := filepath.Join(t.TempDir(), "image.tar")
	ocitest.Write(t, archive, "arm64")
	image, err := oci.Image(archive)
	if err != nil {
		t.Fatal(err)
	}
	d := sbom.Document{Name: "carve-image-v1-linux-arm64", Version: "v1", At: time.Unix(1_700_000_000, 0)}
	var first, second bytes.Buffer
	for _, output := range []*bytes.Buffer{&first, &second} {
		if err := d.Write(image, output); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("two documents of the same image differ")
	}
	read, err := spdxjson.Read(bytes.NewReader(first.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	digest, err := image.Digest()
	if err != nil {
		t.Fatal(err)
	}
	const whole = "Package-image"
	purls, licences := map[string]string{}, map[string]string{} // by identifier, by URL
	for _, p := range read.Packages {
		switch {
		case p.PackageSPDXIdentifier == whole:
			if len(p.PackageChecksums) != 1 || p.PackageChecksums[0] != (common.Checksum{Algorithm: common.SHA256, Value: digest.Hex}) || p.PackageVersion != "v1" {
				t.Errorf("the image is %+v, want version v1 and the digest %s", p, digest)
			}
		case len(p.PackageExternalReferences) != 1:
			t.Errorf("%s has the references %v, want one", p.PackageName, p.PackageExternalReferences)
		default:
			purl := p.PackageExternalReferences[0].Locator
			purls[string(p.PackageSPDXIdentifier)], licences[purl] = purl, p.PackageLicenseDeclared
			if name, version, ok := strings.Cut(purl, "@"); !ok || path.Base(name) != path.Base(p.PackageName) && p.PackageName != "go" ||
				!strings.HasPrefix(version, url.QueryEscape(strings.TrimPrefix(p.PackageVersion, "go"))) {
				t.Errorf("package %s, version %s, is %s", p.PackageName, p.PackageVersion, purl)
			}
		}
	}
	want := []string{
		"pkg:deb/debian/lvm2@2.03.16-2?arch=arm64", "pkg:deb/debian/libstdc++6@12.2.0-14%2Bdeb12u1?arch=arm64",
		"pkg:golang/github.com/carve-csi/carve@v1", "pkg:golang/stdlib@" + strings.TrimPrefix(runtime.Version(), "go"),
	}
	modules := ocitest.Modules(t)
	if len(modules) < 2 {
		t.Fatalf("the program has the modules %q", modules)
	}
	for _, module := range modules {
		want = append(want, "pkg:golang/"+module)
	}
	slices.Sort(want)
	if got := slices.Sorted(maps.Values(purls)); !slices.Equal(got, want) {
		t.Errorf("the image is made of %q, want %q", got, want)
	}
	for purl, licence := range licences {
		want := "MIT"
		if strings.HasPrefix(purl, "pkg:deb/") {
			want = "NOASSERTION"
		}
		if licence != want {
			t.Errorf("the licence of %s: want %s, got %s", purl, want, licence)
		}
	}
	// The document describes the image, which contains each of the packages.
	contained := map[string]bool{}
	for _, r := range read.Relationships {
		from, to := r.RefA.ElementRefID, r.RefB.ElementRefID
		switch {
		case from == "DOCUMENT" && r.Relationship == "DESCRIBES" && to == whole:
		case from == whole && r.Relationship == "CONTAINS" && purls[string(to)] != "":
			contained[string(to)] = true
		default:
			t.Errorf("%s %s %s", from, r.Relationship, to)
		}
	}
	if len(contained) != len(purls) || len(read.Relationships) != len(read.Packages) || read.CreationInfo.Created != "2023-11-14T22:13:20Z" {
		t.Errorf("%d relationships of %d packages, %d of which are contained, created %s",
			len(read.Relationships), len(read.Packages), len(contained), read.CreationInfo.Created)
	}
	if !strings.HasSuffix(read.DocumentNamespace, digest.Hex) {
		t.Errorf("the namespace %s is not the image's own", read.DocumentNamespace)
	}
}

func TestAnImageWithoutALicenceIsAnError(t *testing.T) {
	archive := filepath.Join(t.TempDir(), "image.tar")
	ocitest.Write(t, archive, "arm64")
	image, err := oci.Image(archive)
	if err != nil {
		t.Fatal(err)
	}
	modules := ocitest.Modules(t)
	for file, part := range map[string]string{
		"usr/share/doc/lvm2/copyright": "lvm2", "usr/share/doc/libstdc++6": "libstdc++6", "usr/share/doc/gcc-12-base/copyright": "libstdc++6",
		"licenses/LICENSE": "github.com/carve-csi/carve", "licenses/go/LICENSE": "go",
		"licenses/" + modules[0]: strings.Split(modules[0], "@")[0],
	} {
		err := sbom.Document{Name: "carve-image-v1-linux-arm64", Version: "v1"}.Write(ocitest.Without(t, image, file), io.Discard)
		if !errors.Is(err, sbom.ErrNoLicence) || !strings.Contains(err.Error(), part+":") {
			t.Errorf("an image without %s: want an error for %s, got %v", file, part, err)
		}
	}
}
