package dist

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/pem"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/carve-csi/carve/release/chart"
	"github.com/carve-csi/carve/release/manifests"
	"github.com/carve-csi/carve/release/oci"
	"github.com/carve-csi/carve/release/oci/ocitest"
	"github.com/carve-csi/carve/release/version"
)

const root = "../.."

func encode(t *testing.T, key any) []byte {
	t.Helper()
	encoded, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded})
}

// TestAReleaseIsWholeSignedAndReproducible makes it twice, for this machine's platform.
func TestAReleaseIsWholeSignedAndReproducible(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	var all []map[string][]byte
	for range 2 {
		dir := t.TempDir()
		version, err := version.Read(root)
		if err != nil {
			t.Fatal(err)
		}
		images, err := Images(root, version)
		if err != nil {
			t.Fatal(err)
		}
		for _, image := range images {
			for _, architecture := range Architectures {
				ocitest.Write(t, filepath.Join(dir, image.Archive(architecture)), architecture)
			}
		}
		signer, err := oci.Signer(encode(t, key), nil)
		if err != nil {
			t.Fatal(err)
		}
		v, err := Make(t.Context(), Options{
			Root: root, Dir: dir, Platforms: []Platform{{runtime.GOOS, runtime.GOARCH}}, At: time.Unix(1_700_000_000, 0), Signer: signer,
		})
		if err != nil {
			t.Fatal(err)
		}
		check(t, dir, v, &key.PublicKey)
		files := map[string][]byte{}
		for _, name := range names(t, dir) {
			content, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			files[name] = content
		}
		all = append(all, files)
	}
	if len(all[0]) != len(all[1]) {
		t.Errorf("files: got %d and %d", len(all[0]), len(all[1]))
	}
	for name, content := range all[0] {
		// A signature by ECDSA is another each time.
		if name != Signature && !bytes.Equal(content, all[1][name]) {
			t.Errorf("%s differs between two releases of the same sources", name)
		}
	}
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var result []string
	for _, entry := range entries {
		result = append(result, entry.Name())
	}
	return result
}

// check checks that a release is whole, as its users would.
func check(t *testing.T, dir, v string, public *ecdsa.PublicKey) {
	t.Helper()
	sums, err := os.ReadFile(filepath.Join(dir, Checksums))
	if err != nil {
		t.Fatal(err)
	}
	signature, err := os.ReadFile(filepath.Join(dir, Signature))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := base64.StdEncoding.DecodeString(string(signature))
	if err != nil {
		t.Fatal(err)
	}
	if digest := sha256.Sum256(sums); !ecdsa.VerifyASN1(public, digest[:], raw) {
		t.Error("the signature is not that of the checksums")
	}
	command := exec.CommandContext(t.Context(), "sha256sum", "--check", "--strict", Checksums)
	command.Dir = dir
	if output, err := command.CombinedOutput(); err != nil {
		t.Errorf("sha256sum: %v\n%s", err, output)
	}
	plugin := "kubectl-carve-" + v + "-" + runtime.GOOS + "-" + runtime.GOARCH + ".tar.gz"
	chartPackage := filepath.Base(ChartArchive(dir, v))
	files := []string{"carve.yaml", "carve-thin.yaml", "carve-openshift.yaml", chartPackage, plugin}
	for _, image := range imageNames(t, v) {
		files = append(files, image+"-linux-amd64.tar", image+"-linux-arm64.tar", image+"-oci.tar", image+"-linux-amd64.spdx.json", image+"-linux-arm64.spdx.json")
	}
	for _, want := range files {
		if !bytes.Contains(sums, []byte("  "+want+"\n")) {
			t.Errorf("checksums: want %s, got\n%s", want, sums)
		}
	}
	if _, err := chart.Load(filepath.Join(dir, chartPackage)); err != nil {
		t.Error(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "carve.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	set := make(manifests.Set)
	if err := set.Read(text); err != nil || len(set) < 20 {
		t.Errorf("carve.yaml: got %d objects, %v", len(set), err)
	}
	checkPage(t, string(text), v)
	for overlay, source := range map[string]string{"carve.yaml": "deploy/base", "carve-thin.yaml": "deploy/overlays/thin", "carve-openshift.yaml": "deploy/overlays/openshift"} {
		want, err := manifests.Build(filepath.Join(root, source))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(dir, overlay)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not what %s makes: %v", overlay, source, err)
		}
	}
	checkLists(t, dir, v)
	unpacked := t.TempDir()
	if output, err := exec.CommandContext(t.Context(), "tar", "-xzf", filepath.Join(dir, plugin), "-C", unpacked).CombinedOutput(); err != nil {
		t.Fatalf("tar: %v\n%s", err, output)
	}
	output, err := exec.CommandContext(t.Context(), filepath.Join(unpacked, "kubectl-carve"), "--version").CombinedOutput()
	if err != nil || !strings.HasSuffix(strings.TrimSpace(string(output)), v) {
		t.Errorf("kubectl-carve --version: want %s, got %q, %v", v, output, err)
	}
	checkLicences(t, unpacked)
	// As kubectl does for `kubectl carve st<TAB>`.
	complete := exec.CommandContext(t.Context(), filepath.Join(unpacked, "kubectl_complete-carve"), "st")
	complete.Env = append(os.Environ(), "PATH="+unpacked+":"+os.Getenv("PATH"))
	if output, err := complete.Output(); err != nil || !strings.HasPrefix(string(output), "status\t") {
		t.Errorf("completed: want status, got %q, %v", output, err)
	}
}

// checkLicences checks that kubectl-carve comes with its licence, and those of Go and of each module that
// it has by its own word.
func checkLicences(t *testing.T, dir string) {
	t.Helper()
	info, err := buildinfo.ReadFile(filepath.Join(dir, "kubectl-carve"))
	if err != nil || len(info.Deps) < 20 {
		t.Fatalf("kubectl-carve is made of %+v, %v", info, err)
	}
	want := []string{"LICENSE", "licenses/go/LICENSE"}
	for _, module := range info.Deps {
		want = append(want, filepath.Join("licenses", module.Path+"@"+module.Version, "*"))
	}
	for _, pattern := range want {
		if found, err := filepath.Glob(filepath.Join(dir, pattern)); err != nil || len(found) == 0 {
			t.Errorf("kubectl-carve comes without %s (%v)", pattern, err)
		}
	}
}

// checkPage checks that the command of the page of the installation names another image in all Pods of
// the manifests.
func checkPage(t *testing.T, text, v string) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(root, "docs/get-started/install.md"))
	if err != nil {
		t.Fatal(err)
	}
	command := regexp.MustCompile(`sed 's\|([^|]+)\|([^|]+)\|' dist/carve\.yaml`).FindStringSubmatch(string(page))
	if command == nil {
		t.Fatal("the page of the installation does not apply the manifests")
	}
	images := regexp.MustCompile(`(?m)^ +(?:- )?image: (.+)$`).FindAllStringSubmatch(strings.ReplaceAll(text, command[1], command[2]), -1)
	if len(images) < 3 {
		t.Errorf("images of the manifests: want three or more, got %q", images)
	}
	for _, image := range images {
		if want := "registry.internal/storage/carve:" + v; image[1] != want {
			t.Errorf("an image of the manifests: want %s, got %s", want, image[1])
		}
	}
}

// imageNames returns what the names of the files of a release's images begin with.
func imageNames(t *testing.T, v string) []string {
	t.Helper()
	minors, err := version.Minors(root)
	if err != nil {
		t.Fatal(err)
	}
	names := []string{"carve-image-" + v}
	for _, minor := range minors {
		names = append(names, "carve-scheduler-image-"+v+"-k8s"+minor)
	}
	return names
}

// checkLists checks that each list is of the image that the index has for its architecture.
func checkLists(t *testing.T, dir, v string) {
	t.Helper()
	images, err := Images(root, v)
	if err != nil {
		t.Fatal(err)
	}
	names := imageNames(t, v)
	if len(images) != len(names) {
		t.Fatalf("images: got %+v, want those of %q", images, names)
	}
	for i, one := range images {
		index, _, err := one.Index(dir)
		if err != nil {
			t.Fatal(err)
		}
		manifest, err := index.IndexManifest()
		if err != nil || len(manifest.Manifests) != len(Architectures) {
			t.Fatalf("index of %s: got %+v, %v", names[i], manifest, err)
		}
		for _, image := range manifest.Manifests {
			architecture := image.Platform.Architecture
			name := names[i] + "-linux-" + architecture
			list, err := os.ReadFile(filepath.Join(dir, name+".spdx.json"))
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{image.Digest.Hex, `"` + name + `"`, "?arch=" + architecture} {
				if !bytes.Contains(list, []byte(want)) {
					t.Errorf("the list of %s does not have %s", name, want)
				}
			}
		}
	}
}
