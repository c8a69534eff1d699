package chart_test

import (
	"bytes"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	containerregistry "github.com/google/go-containerregistry/pkg/registry"
	"helm.sh/helm/v4/pkg/registry"

	"github.com/carve-csi/carve/release/chart"
)

// TestThePackageHoldsAllAndIsReproducible packages the chart twice, and installs from the
// archive.
func TestThePackageHoldsAllAndIsReproducible(t *testing.T) {
	var archives [][]byte
	for range 2 {
		file, err := chart.Package(load(t), t.TempDir(), time.Unix(1_700_000_000, 0))
		if err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		archives = append(archives, content)
		packaged, err := chart.Load(file)
		if err != nil {
			t.Fatal(err)
		}
		all := values(t, "{scheduler: {enabled: true}, startupTaint: {enabled: true}, nodeConditions: {enabled: true}, inlineVolumes: {enabled: true}, ioLimits: {enabled: true}, openshift: {enabled: true}}")
		want, err := chart.Render(load(t), namespace, all)
		if err != nil {
			t.Fatal(err)
		}
		got, err := chart.Render(packaged, namespace, all)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("the package renders otherwise than the folder:\n%s", diff)
		}
	}
	if !bytes.Equal(archives[0], archives[1]) {
		t.Error("two packages of the same chart differ")
	}
}

func TestAPushedChartIsInstalledFromTheRegistry(t *testing.T) {
	server := httptest.NewServer(containerregistry.New(containerregistry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	at := time.Unix(1_700_000_000, 0)
	archive, err := chart.Package(load(t), t.TempDir(), at)
	if err != nil {
		t.Fatal(err)
	}
	repository := strings.TrimPrefix(server.URL, "http://") + "/storage/charts"
	digest, err := chart.Push(archive, repository, at)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := chart.Push(archive, repository, at); err != nil || again != digest {
		t.Errorf("pushed again: want %s, got %s, %v", digest, again, err)
	}
	client, err := registry.NewClient(registry.ClientOptPlainHTTP())
	if err != nil {
		t.Fatal(err)
	}
	pulled, err := client.Pull(repository + "/carve:" + load(t).Metadata.Version)
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(archive)
	if err != nil || !bytes.Equal(pulled.Chart.Data, content) || pulled.Manifest.Digest != digest.DigestStr() {
		t.Errorf("pulled by Helm: want the archive's %d bytes and %s, got %d and %s, %v", len(content), digest, len(pulled.Chart.Data), pulled.Manifest.Digest, err)
	}
	if _, err := chart.Push(archive, "carve", at); err == nil || !strings.Contains(err.Error(), `"carve"`) {
		t.Errorf("a repository without a registry: want an error that names it, got %v", err)
	}
}
