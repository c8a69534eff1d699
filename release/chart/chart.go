// Package chart renders, checks and packages Carve's Helm chart with Helm's own library.
package chart

import (
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	chartutil "helm.sh/helm/v4/pkg/chart/v2/util"
	"helm.sh/helm/v4/pkg/engine"
	"helm.sh/helm/v4/pkg/registry"

	"github.com/carve-csi/carve/release/manifests"
)

// Dir is the chart's folder in the source tree.
const Dir = "deploy/chart/carve"

// KubeVersion is the newest version of Kubernetes that carve-scheduler has an image for.
const KubeVersion = "v1.37.0"

// Load reads a chart from its folder, or from an archive.
func Load(name string) (*chart.Chart, error) {
	loaded, err := loader.Load(name)
	if err != nil {
		return nil, fmt.Errorf("load the chart %s: %w", name, err)
	}
	return loaded, nil
}

// Render returns the objects of an installation of the chart in a namespace of a cluster with KubeVersion, given
// values as a user gives them. It fails where the values do not fit the chart's schema.
func Render(c *chart.Chart, namespace string, values map[string]any) (manifests.Set, error) {
	return RenderFor(c, KubeVersion, namespace, values)
}

// RenderFor is Render for a cluster with the given version of Kubernetes, such as v1.37.2.
func RenderFor(c *chart.Chart, kubeVersion, namespace string, values map[string]any) (manifests.Set, error) {
	version, err := common.ParseKubeVersion(kubeVersion)
	if err != nil {
		return nil, fmt.Errorf("version of Kubernetes: %w", err)
	}
	capabilities := common.DefaultCapabilities.Copy()
	capabilities.KubeVersion = *version
	options := common.ReleaseOptions{Name: "carve", Namespace: namespace, IsInstall: true, Revision: 1}
	input, err := util.ToRenderValues(c, values, options, capabilities)
	if err != nil {
		return nil, fmt.Errorf("render the chart: %w", err)
	}
	files, err := engine.Render(c, input)
	if err != nil {
		return nil, fmt.Errorf("render the chart: %w", err)
	}
	set := make(manifests.Set)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if path.Ext(name) != ".yaml" {
			continue
		}
		if err := set.Read([]byte(files[name])); err != nil {
			return nil, fmt.Errorf("render the chart: %s: %w", name, err)
		}
	}
	return set, nil
}

// Package writes the chart as an archive into a folder, and returns its path. Every file
// in it has the given time, so that equal charts give equal archives.
func Package(c *chart.Chart, dir string, at time.Time) (string, error) {
	c.StampModTimes(at)
	archive, err := chartutil.Save(c, dir)
	if err != nil {
		return "", fmt.Errorf("package the chart: %w", err)
	}
	return archive, nil
}

// Push puts a chart's archive into a registry as `helm push` does, under REPOSITORY/NAME:VERSION,
// and returns its reference by digest. Who may is as Helm's or Docker's configuration says. As
// with images, a registry on this machine is reached without TLS.
func Push(archive, repository string, at time.Time) (name.Digest, error) {
	content, err := os.ReadFile(archive)
	if err != nil {
		return name.Digest{}, fmt.Errorf("push the chart: %w", err)
	}
	c, err := Load(archive)
	if err != nil {
		return name.Digest{}, err
	}
	tag, err := name.NewTag(fmt.Sprintf("%s/%s:%s", repository, c.Name(), c.Metadata.Version), name.StrictValidation)
	if err != nil {
		return name.Digest{}, fmt.Errorf("repository of the chart: got %q, want REGISTRY/NAME: %w", repository, err)
	}
	var options []registry.ClientOption
	if tag.Scheme() == "http" {
		options = append(options, registry.ClientOptPlainHTTP())
	}
	client, err := registry.NewClient(options...)
	if err != nil {
		return name.Digest{}, fmt.Errorf("push the chart: %w", err)
	}
	pushed, err := client.Push(content, tag.String(), registry.PushOptCreationTime(at.UTC().Format(time.RFC3339)))
	if err != nil {
		return name.Digest{}, fmt.Errorf("push the chart %s: %w", tag, err)
	}
	return tag.Digest(pushed.Manifest.Digest), nil
}
