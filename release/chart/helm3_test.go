package chart_test

import (
	"maps"
	"path"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"

	"github.com/carve-csi/carve/release/chart"
	"github.com/carve-csi/carve/release/manifests"
)

// TestHelm3MakesWhatHelm4Makes renders the chart with both of Helm's libraries: with every platform's
// values, and with all that can be enabled. Both refuse values that do not fit.
func TestHelm3MakesWhatHelm4Makes(t *testing.T) {
	cases := platforms(t)
	cases["defaults"] = nil
	cases["everything"] = values(t, `{scheduler: {enabled: true}, startupTaint: {enabled: true}, nodeConditions: {enabled: true}, inlineVolumes: {enabled: true, maxSize: 5Gi},
ioLimits: {enabled: true}, openshift: {enabled: true}, criticalQuota: {enabled: true}, createNamespace: true, kubeletDir: /data/kubelet,
podMonitor: {enabled: true, labels: {a: b}, interval: 30s}, alerts: {enabled: true, labels: {a: b}}, dashboards: {enabled: true, annotations: {a: b}}}`)
	cases["pools"] = values(t, "nodePools: [{name: fast, nodeSelector: {disks: nvme}}, {name: slow, nodeSelector: {disks: hdd}, affinity: {nodeAffinity: {of: slow}}}]")
	cases["values that are removed"] = values(t, "{node: {affinity: null, nodeSelector: null}, controller: {nodeSelector: null}, dashboards: {enabled: true, labels: {grafana_dashboard: null}}}")
	for name, v := range cases {
		t.Run(name, func(t *testing.T) {
			want, err := chart.Render(load(t), namespace, v)
			if err != nil {
				t.Fatal(err)
			}
			got, err := renderWithHelm3(v)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(plain(t, want), plain(t, got)); diff != "" {
				t.Errorf("- Helm 4, + Helm 3:\n%s", diff)
			}
		})
	}
	if _, err := renderWithHelm3(values(t, "kubeletDirectory: /data")); err == nil {
		t.Error("a value that is misspelt: want an error, got none")
	}
}

// renderWithHelm3 is what chart.Render does.
func renderWithHelm3(v map[string]any) (manifests.Set, error) {
	c, err := loader.Load(filepath.Join(root, chart.Dir))
	if err != nil {
		return nil, err
	}
	options := chartutil.ReleaseOptions{Name: "carve", Namespace: namespace, IsInstall: true, Revision: 1}
	capabilities := chartutil.DefaultCapabilities.Copy()
	version, err := chartutil.ParseKubeVersion(chart.KubeVersion)
	if err != nil {
		return nil, err
	}
	capabilities.KubeVersion = *version
	input, err := chartutil.ToRenderValues(c, v, options, capabilities)
	if err != nil {
		return nil, err
	}
	files, err := engine.Render(c, input)
	if err != nil {
		return nil, err
	}
	set := make(manifests.Set)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if path.Ext(name) != ".yaml" {
			continue
		}
		if err := set.Read([]byte(files[name])); err != nil {
			return nil, err
		}
	}
	return set, nil
}
