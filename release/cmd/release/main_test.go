package main

import (
	"bytes"
	"crypto/elliptic"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	containerregistry "github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"helm.sh/helm/v4/pkg/registry"

	"github.com/carve-csi/carve/release/dist"
	"github.com/carve-csi/carve/release/oci"
	"github.com/carve-csi/carve/release/oci/ocitest"
	"github.com/carve-csi/carve/release/version"
)

const root = "../../.."

// serve serves an empty registry. It returns its address, and the count of its requests.
func serve(t *testing.T) (host string, requests *atomic.Int64) {
	t.Helper()
	requests = &atomic.Int64{}
	handler := containerregistry.New(containerregistry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://"), requests
}

// at is the time of the files in the archives.
var at = time.Unix(1_700_000_000, 0)

// made makes a release of small images, without kubectl-carve. It returns its folder and its version.
func made(t *testing.T) (dir, v string) {
	t.Helper()
	dir = t.TempDir()
	v, err := version.Read(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, image := range images(t, v) {
		for _, architecture := range dist.Architectures {
			ocitest.Write(t, filepath.Join(dir, image.Archive(architecture)), architecture)
		}
	}
	if _, err := dist.Make(t.Context(), dist.Options{Root: root, Dir: dir, At: at}); err != nil {
		t.Fatal(err)
	}
	return dir, v
}

// images returns the images of the source tree's release.
func images(t *testing.T, v string) []dist.Image {
	t.Helper()
	all, err := dist.Images(root, v)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// run runs the command as make does, and returns what it prints.
func run(t *testing.T, arguments ...string) (string, error) {
	t.Helper()
	c := command()
	var output bytes.Buffer
	c.SetOut(&output)
	c.SetArgs(append(arguments, "--root", root))
	err := c.ExecuteContext(t.Context())
	return output.String(), err
}

// TestAPushedReleaseIsPulledAndItsSignaturesHold pushes a release, and pulls what the documents say is
// in the registry then.
func TestAPushedReleaseIsPulledAndItsSignaturesHold(t *testing.T) {
	host, _ := serve(t)
	dir, v := made(t)
	private, _, err := cryptoutils.GeneratePEMEncodedECDSAKeyPair(elliptic.P256(), nil)
	if err != nil {
		t.Fatal(err)
	}
	key := filepath.Join(t.TempDir(), "key.pem")
	if err := os.WriteFile(key, private, 0o600); err != nil {
		t.Fatal(err)
	}
	output, err := run(t, "push", host+"/storage/carve", "--dir", dir, "--key", key)
	if err != nil {
		t.Fatal(err)
	}
	printed := strings.Fields(output)
	want := []string{host + "/storage/carve:" + v}
	minors, err := run(t, "minors")
	if err != nil {
		t.Fatal(err)
	}
	for _, minor := range strings.Fields(minors) {
		want = append(want, host+"/storage/carve-scheduler:"+v+"-k8s"+minor)
	}
	if len(want) < 2 || len(printed) != len(want)+1 || !strings.HasPrefix(printed[len(want)], host+"/storage/charts/carve@sha256:") {
		t.Fatalf("printed: got %q, want the digests of %q and of the chart", output, want)
	}
	for i, reference := range want {
		checkIndex(t, reference, printed[i])
	}
	client, err := registry.NewClient(registry.ClientOptPlainHTTP())
	if err != nil {
		t.Fatal(err)
	}
	chart, err := client.Pull(host + "/storage/charts/carve:" + strings.TrimPrefix(v, "v"))
	if err != nil {
		t.Fatal(err)
	}
	if want, err := os.ReadFile(dist.ChartArchive(dir, v)); err != nil || !bytes.Equal(chart.Chart.Data, want) {
		t.Errorf("the chart that Helm pulls is not the release's: %v", err)
	}
	verifier, err := oci.Signer(private, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range printed {
		digest, err := name.NewDigest(one)
		if err == nil {
			err = oci.Verify(t.Context(), digest, verifier)
		}
		if err != nil {
			t.Error(err)
		}
	}
}

// checkIndex checks that an image in a registry has both platforms, and the digest that push printed.
func checkIndex(t *testing.T, reference, printed string) {
	t.Helper()
	tag, err := name.NewTag(reference)
	if err != nil {
		t.Fatal(err)
	}
	index, err := remote.Index(tag)
	if err != nil {
		t.Fatal(err)
	}
	digest, err := index.Digest()
	if want := tag.Context().Name() + "@" + digest.String(); err != nil || printed != want {
		t.Errorf("printed for %s: got %s, %v, want %s", tag, printed, err, want)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	var platforms []string
	for _, m := range manifest.Manifests {
		platforms = append(platforms, m.Platform.OS+"/"+m.Platform.Architecture)
	}
	if want := []string{"linux/amd64", "linux/arm64"}; !slices.Equal(platforms, want) {
		t.Errorf("platforms of %s: got %q, want %q", tag, platforms, want)
	}
}

// TestWhatIsNoWholeReleaseIsNotPushed interrupts a release, changes one, and calls the command wrongly:
// nothing of it reaches the registry.
func TestWhatIsNoWholeReleaseIsNotPushed(t *testing.T) {
	whole, v := made(t)
	all := images(t, v)
	arm64, scheduler := all[0].Archive("arm64"), all[len(all)-1].Archive("amd64")
	for name, test := range map[string]struct {
		change func(dir string) error
		want   string
	}{
		"interrupted before the checksums": {func(dir string) error { return os.Remove(filepath.Join(dir, dist.Checksums)) }, dist.Checksums},
		"without the image for arm64":      {func(dir string) error { return os.Remove(filepath.Join(dir, arm64)) }, arm64},
		"without a scheduler's image":      {func(dir string) error { return os.Remove(filepath.Join(dir, scheduler)) }, scheduler},
		"made without it":                  {func(dir string) error { return makeWithout(t, dir, arm64) }, arm64 + " is not in"},
		"made without a scheduler's":       {func(dir string) error { return makeWithout(t, dir, scheduler) }, scheduler + " is not in"},
		"with another chart":               {func(dir string) error { return os.WriteFile(dist.ChartArchive(dir, v), []byte("x"), 0o600) }, filepath.Base(dist.ChartArchive("", v))},
	} {
		t.Run(name, func(t *testing.T) {
			host, requests := serve(t)
			dir := t.TempDir()
			if err := os.CopyFS(dir, os.DirFS(whole)); err != nil {
				t.Fatal(err)
			}
			if err := test.change(dir); err != nil {
				t.Fatal(err)
			}
			output, err := run(t, "push", host+"/storage/carve", "--dir", dir)
			if err == nil || !strings.Contains(err.Error(), dist.ErrNotWhole.Error()) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("want %v that names %s, got %v", dist.ErrNotWhole, test.want, err)
			}
			if n := requests.Load(); n > 0 || output != "" {
				t.Errorf("the registry had %d requests; printed: %q", n, output)
			}
		})
	}
	if _, err := run(t, "push", "--dir", whole); err == nil || !strings.Contains(err.Error(), "make push REGISTRY=") {
		t.Errorf("without a registry: want how to name one, got %v", err)
	}
}

// makeWithout removes an image from a release's folder and makes the release again.
func makeWithout(t *testing.T, dir, archive string) error {
	t.Helper()
	if err := os.Remove(filepath.Join(dir, archive)); err != nil {
		return err
	}
	_, err := dist.Make(t.Context(), dist.Options{Root: root, Dir: dir, At: at})
	return err
}

// TestMain silences what Helm logs of each of the chart's links.
func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	os.Exit(m.Run())
}
