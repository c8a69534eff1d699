// Package chart renders, checks and packages Carve's Helm chart with Helm's own library.
package chart

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"time"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	chartutil "helm.sh/helm/v4/pkg/chart/v2/util"
	"helm.sh/helm/v4/pkg/engine"

	"github.com/carve-csi/carve/release/manifests"
)

// Dir is the chart's folder in the source tree.
const Dir = "deploy/chart/carve"

// Load reads a chart from its folder, or from an archive.
func Load(name string) (*chart.Chart, error) {
	loaded, err := loader.Load(name)
	if err != nil {
		return nil, fmt.Errorf("load the chart %s: %w", name, err)
	}
	return loaded, nil
}

// Render returns what an installation of the chart makes in a namespace, given values as
// a user gives them. It fails where the values do not fit the chart's schema.
func Render(c *chart.Chart, namespace string, values map[string]any) (manifests.Set, error) {
	options := common.ReleaseOptions{Name: "carve", Namespace: namespace, IsInstall: true, Revision: 1}
	input, err := util.ToRenderValues(c, values, options, common.DefaultCapabilities)
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
