package oci_test

import (
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"

	"github.com/carve-csi/carve/release/oci"
	"github.com/carve-csi/carve/release/oci/ocitest"
)

// archives writes an image for each architecture.
func archives(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, architecture := range []string{"amd64", "arm64"} {
		path := filepath.Join(t.TempDir(), architecture+".tar")
		ocitest.Write(t, path, architecture)
		all = append(all, path)
	}
	return all
}

func signer(t *testing.T) signature.SignerVerifier {
	t.Helper()
	key, _, err := cryptoutils.GeneratePEMEncodedECDSAKeyPair(elliptic.P256(), nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err := oci.Signer(key, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestAPushedIndexHasEveryArchitectureAndItsSignatureIsFound(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	index, err := oci.Index(archives(t)...)
	if err != nil {
		t.Fatal(err)
	}
	reference := strings.TrimPrefix(server.URL, "http://") + "/storage/carve:v1"
	digest, err := oci.Push(t.Context(), index, reference)
	if err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag(reference)
	if err != nil {
		t.Fatal(err)
	}
	found, err := remote.Index(tag)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := found.IndexManifest()
	if err != nil || manifest.MediaType != types.OCIImageIndex || len(manifest.Manifests) != 2 {
		t.Fatalf("the index in the registry: %+v, %v", manifest, err)
	}
	for i, want := range []string{"amd64", "arm64"} {
		if p := manifest.Manifests[i].Platform; p == nil || p.OS != "linux" || p.Architecture != want || manifest.Manifests[i].MediaType != types.OCIManifestSchema1 {
			t.Errorf("manifest %d: %+v", i, manifest.Manifests[i])
		}
		if got := manifest.Manifests[i].ArtifactType; got != "" {
			t.Errorf("manifest %d has the artifact type %s, which some tools do not copy", i, got)
		}
	}
	ours := signer(t)
	if err := oci.Verify(t.Context(), digest, ours); err == nil {
		t.Error("it has a signature before it was signed")
	}
	if err := oci.Sign(t.Context(), digest, ours); err != nil {
		t.Fatal(err)
	}
	if err := oci.Verify(t.Context(), digest, ours); err != nil {
		t.Error(err)
	}
	if err := oci.Verify(t.Context(), digest, signer(t)); !errors.Is(err, oci.ErrNotSigned) {
		t.Errorf("by another key: want %v, got %v", oci.ErrNotSigned, err)
	}
	if _, err := oci.Push(t.Context(), index, "carve"); err == nil || !strings.Contains(err.Error(), `"carve"`) {
		t.Errorf("a name without a registry and a tag: want an error that names it, got %v", err)
	}
}

func TestAnArchiveIsALayoutAndTheSameBytesTwice(t *testing.T) {
	paths := archives(t)
	var digests []string
	for range 2 {
		index, err := oci.Index(paths...)
		if err != nil {
			t.Fatal(err)
		}
		output := filepath.Join(t.TempDir(), "oci.tar")
		if err := oci.Archive(index, "registry.example.com/carve:v1", output, time.Unix(0, 0)); err != nil {
			t.Fatal(err)
		}
		dir := unpack(t, output)
		read, err := layout.ImageIndexFromPath(dir)
		if err != nil {
			t.Fatal(err)
		}
		manifest, err := read.IndexManifest()
		if err != nil || len(manifest.Manifests) != 1 || manifest.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != "v1" ||
			manifest.Manifests[0].Annotations["io.containerd.image.name"] != "registry.example.com/carve:v1" {
			t.Errorf("the layout's index: %+v, %v", manifest, err)
		}
		digests = append(digests, sum(t, output))
	}
	if digests[0] != digests[1] {
		t.Error("two archives of the same images differ")
	}
}

// TestTheArchiveHoldsForEachPlatformWhatItsImageHolds reads the archive as a registry or containerd
// would, and compares it with the images that went in.
func TestTheArchiveHoldsForEachPlatformWhatItsImageHolds(t *testing.T) {
	paths := archives(t)
	index, err := oci.Index(paths...)
	if err != nil {
		t.Fatal(err)
	}
	output := filepath.Join(t.TempDir(), "oci.tar")
	if err := oci.Archive(index, "registry.example.com/carve:v1", output, time.Unix(0, 0)); err != nil {
		t.Fatal(err)
	}
	written, err := layout.ImageIndexFromPath(unpack(t, output))
	if err != nil {
		t.Fatal(err)
	}
	// Layers, their digests and sizes are as the manifests say.
	if err := validate.Index(written); err != nil {
		t.Error(err)
	}
	outer, err := written.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	inner, err := written.ImageIndex(outer.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := inner.IndexManifest()
	if err != nil || len(manifest.Manifests) != len(paths) {
		t.Fatalf("the index %+v, %v", manifest, err)
	}
	var last []string
	for i, architecture := range []string{"amd64", "arm64"} {
		descriptor := manifest.Manifests[i]
		got, err := inner.Image(descriptor.Digest)
		if err != nil {
			t.Fatal(err)
		}
		want, err := tarball.ImageFromPath(paths[i], nil)
		if err != nil {
			t.Fatal(err)
		}
		gotConfig, gotLayers := contents(t, got)
		wantConfig, wantLayers := contents(t, want)
		if p := descriptor.Platform; p == nil || p.OS != gotConfig.OS || p.Architecture != gotConfig.Architecture || gotConfig.Architecture != architecture {
			t.Errorf("%s: its platform is %v, that of the image %s/%s", architecture, p, gotConfig.OS, gotConfig.Architecture)
		}
		if diff := cmp.Diff(wantConfig.Config, gotConfig.Config); diff != "" {
			t.Errorf("%s: its configuration (- docker, + oci):\n%s", architecture, diff)
		}
		if len(gotLayers) != 2 || !slices.Equal(gotLayers, wantLayers) || slices.Equal(gotLayers, last) {
			t.Errorf("%s: its layers are %q, want %q, and not those of another: %q", architecture, gotLayers, wantLayers, last)
		}
		last = gotLayers
	}
}

// contents are the configuration of an image, and the checksums of what its layers hold.
func contents(t *testing.T, image v1.Image) (config *v1.ConfigFile, sums []string) {
	t.Helper()
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	layers, err := image.Layers()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range layers {
		content, err := l.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		hash := sha256.New()
		if _, err := io.Copy(hash, content); err != nil {
			t.Fatal(err)
		}
		sums = append(sums, fmt.Sprintf("%x", hash.Sum(nil)))
	}
	return config, sums
}

func TestKeysThatCannotSignAreRefused(t *testing.T) {
	other, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(other)
	if err != nil {
		t.Fatal(err)
	}
	encrypted, _, err := cryptoutils.GeneratePEMEncodedECDSAKeyPair(elliptic.P256(), cryptoutils.StaticPasswordFunc([]byte("secret")))
	if err != nil {
		t.Fatal(err)
	}
	for name, key := range map[string][]byte{
		"no key": []byte("x"), "of another kind": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded}),
		"damaged": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("x")}), "with another password": encrypted,
	} {
		if _, err := oci.Signer(key, []byte("wrong")); !errors.Is(err, oci.ErrKey) {
			t.Errorf("%s: want %v, got %v", name, oci.ErrKey, err)
		}
	}
	if _, err := oci.Signer(encrypted, []byte("secret")); err != nil {
		t.Errorf("an encrypted key with its password: %v", err)
	}
}

// unpack unpacks an archive and returns the folder.
func unpack(t *testing.T, path string) string {
	t.Helper()
	dir := t.TempDir()
	if output, err := exec.CommandContext(t.Context(), "tar", "-xf", path, "-C", dir).CombinedOutput(); err != nil {
		t.Fatalf("tar: %v\n%s", err, output)
	}
	return dir
}

func sum(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", sha256.Sum256(content))
}
