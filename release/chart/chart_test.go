package chart_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	helmchart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/carve-csi/carve/release/chart"
	"github.com/carve-csi/carve/release/manifests"
)

const (
	root      = "../.."
	namespace = "carve-system"
)

func load(t *testing.T) *helmchart.Chart {
	t.Helper()
	c, err := chart.Load(filepath.Join(root, chart.Dir))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// values reads values as a user writes them.
func values(t *testing.T, text string) map[string]any {
	t.Helper()
	result := map[string]any{}
	if err := yaml.Unmarshal([]byte(text), &result); err != nil {
		t.Fatalf("values %s: %v", text, err)
	}
	return result
}

// kustomization renders a kustomization, one that lies beside the overlays.
func kustomization(t *testing.T, text string) manifests.Set {
	t.Helper()
	// Kustomize takes in what lies beside or above a kustomization by relative paths only.
	dir, err := os.MkdirTemp(filepath.Join(root, "deploy"), ".chart-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	header := "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
	if !strings.Contains(text, "openshift") && !strings.Contains(text, "namespace:") {
		header += "namespace: " + namespace + "\n"
	}
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(header+text), 0o600); err != nil {
		t.Fatal(err)
	}
	set, err := manifests.Kustomize(dir)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// readWithLabels adds the objects of a file to a set, with the labels that every object has.
func readWithLabels(t *testing.T, set manifests.Set, file string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	added := make(manifests.Set)
	if err := added.Read(text); err != nil {
		t.Fatal(err)
	}
	for key, object := range added {
		object.SetLabels(map[string]string{"app.kubernetes.io/part-of": "carve"})
		set[key] = object
	}
}

// comparable returns the objects without what may differ: the digests in the names of
// ConfigMaps, and comments in lvmd's configuration.
func comparable(t *testing.T, set manifests.Set) map[string]any {
	t.Helper()
	result := map[string]any{}
	for key, object := range set {
		object = object.DeepCopy()
		if object.GetKind() == "ConfigMap" {
			object.SetName(manifests.WithoutDigest(object.GetName()))
			data, _, err := unstructured.NestedStringMap(object.Object, "data")
			if err != nil {
				t.Fatal(err)
			}
			parsed := map[string]any{}
			for name, text := range data {
				parsed[name] = values(t, text)
			}
			object.Object["data"] = parsed
		}
		volumes, _, err := unstructured.NestedSlice(object.Object, "spec", "template", "spec", "volumes")
		if err != nil {
			t.Fatal(err)
		}
		for _, volume := range volumes {
			if source, ok := volume.(map[string]any)["configMap"].(map[string]any); ok {
				source["name"] = manifests.WithoutDigest(source["name"].(string))
			}
		}
		if volumes != nil {
			if err := unstructured.SetNestedSlice(object.Object, volumes, "spec", "template", "spec", "volumes"); err != nil {
				t.Fatal(err)
			}
		}
		result[key] = object.Object
	}
	return result
}

// TestTheChartMakesWhatKustomizeMakes compares both ways to install Carve, object by object.
func TestTheChartMakesWhatKustomizeMakes(t *testing.T) {
	const thinConfig = `
lvmd:
  config:
    apiVersion: carve.csi.local/v1
    kind: LvmdConfig
    deviceClasses:
      - {name: local, default: true, volumeGroup: carve}
      - {name: thin, volumeGroup: carve, type: thin, thin: {pool: carve-pool, size: 60%}}
storageClasses:
  - {name: carve, parameters: {csi.storage.k8s.io/fstype: ext4}}
  - {name: carve-thin, parameters: {carve.csi.local/device-class: thin, csi.storage.k8s.io/fstype: ext4}}
`
	for name, test := range map[string]struct{ kustomization, values string }{
		"base": {"resources: [../base]", ""},
		"carve-scheduler": {
			"resources: [../base]\ncomponents: [../components/scheduler]", "scheduler: {enabled: true}",
		},
		"start-up taint": {
			"resources: [../base]\ncomponents: [../components/startup-taint]", "startupTaint: {enabled: true}",
		},
		"start-up taint under a key of one's own": {
			"resources: [../base]\ncomponents: [../components/startup-taint]\n" + yamlOf(t, "startup-taint.md", "patches:"),
			yamlOf(t, "startup-taint.md", "startupTaint:"),
		},
		"node conditions": {
			"resources: [../base]\ncomponents: [../components/node-conditions]", "nodeConditions: {enabled: true}",
		},
		"inline volumes": {
			"resources: [../base]\ncomponents: [../components/inline-volumes]", "inlineVolumes: {enabled: true}",
		},
		"I/O limits": {
			"resources: [../base]\ncomponents: [../components/io-limits]", "ioLimits: {enabled: true}",
		},
		"overlay openshift": {
			"resources: [../overlays/openshift]", "openshift: {enabled: true}",
		},
		"quota of critical Pods": {
			"resources: [../base]\ncomponents: [../components/critical-quota]", "criticalQuota: {enabled: true}",
		},
		"PodMonitor": {
			"resources: [../base]\ncomponents: [../components/pod-monitor]", "podMonitor: {enabled: true}",
		},
		"alert rules": {
			"resources: [../base]\ncomponents: [../components/alerts]", "alerts: {enabled: true}",
		},
		"Grafana dashboards": {
			"resources: [../base]\ncomponents: [../components/grafana-dashboards]", "dashboards: {enabled: true}",
		},
		"all components": {
			"resources: [../base]\ncomponents: [../components/scheduler, ../components/startup-taint, ../components/node-conditions, ../components/inline-volumes, " +
				"../components/io-limits, ../components/critical-quota, ../components/pod-monitor, ../components/alerts, ../components/grafana-dashboards]",
			"{scheduler: {enabled: true}, startupTaint: {enabled: true}, nodeConditions: {enabled: true}, inlineVolumes: {enabled: true}, ioLimits: {enabled: true}, " +
				"criticalQuota: {enabled: true}, podMonitor: {enabled: true}, alerts: {enabled: true}, dashboards: {enabled: true}}",
		},
		"overlay startup-taint": {"resources: [../overlays/startup-taint]", "startupTaint: {enabled: true}"},
		"overlay thin":          {"resources: [../overlays/thin]", thinConfig},
		"overlay layouts": {"resources: [../overlays/layouts]", `
lvmd:
  config:
    apiVersion: carve.csi.local/v1
    kind: LvmdConfig
    deviceClasses:
      - {name: fast, default: true, volumeGroup: carve, type: striped, stripes: 4, stripeSize: 128Ki}
      - {name: safe, volumeGroup: carve, type: raid1}
storageClasses:
  - {name: carve, parameters: {csi.storage.k8s.io/fstype: ext4}}
  - {name: carve-fast, parameters: {carve.csi.local/device-class: fast, csi.storage.k8s.io/fstype: xfs}}
  - {name: carve-safe, parameters: {carve.csi.local/device-class: safe, csi.storage.k8s.io/fstype: ext4}}
`},
		"overlay loop": {"resources: [../overlays/loop]", `
lvmd:
  config:
    volumeGroups:
      - {name: carve, loopFile: {path: /var/lib/carve/loop/carve.img, size: 10Gi}}
`},
		"overlay pmem": {"resources: [../overlays/pmem]", `
lvmd:
  config:
    deviceClasses:
      - {name: local, default: true, volumeGroup: carve}
      - {name: pmem, volumeGroup: carve-pmem, medium: pmem, optional: true}
storageClasses:
  - {name: carve, parameters: {csi.storage.k8s.io/fstype: ext4}}
  - {name: carve-pmem, parameters: {carve.csi.local/device-class: pmem, csi.storage.k8s.io/fstype: ext4}}
`},
		"another image": {"resources: [../base]\nimages: [{name: registry.example.com/carve, newName: registry.internal/storage/carve, newTag: v9.9.9}]",
			"image: {repository: registry.internal/storage/carve, tag: v9.9.9}"},
	} {
		t.Run(name, func(t *testing.T) {
			want := kustomization(t, test.kustomization)
			if strings.Contains(test.kustomization, "components/scheduler") { // a file that is applied by itself
				readWithLabels(t, want, "deploy/components/scheduler/namespaces.yaml")
			}
			given := values(t, test.values)
			given["createNamespace"] = true
			got, err := chart.Render(load(t), namespace, given)
			if err != nil {
				t.Fatal(err)
			}
			if len(want) < 20 {
				t.Fatalf("objects of the kustomization: want all of them, got %q", slices.Sorted(maps.Keys(want)))
			}
			if diff := cmp.Diff(comparable(t, want), comparable(t, got)); diff != "" {
				t.Errorf("the chart makes other objects (- kustomize, + chart):\n%s", diff)
			}
		})
	}
}

// TestTheStatusOfAContainerSaysWhyItEnded has `kubectl describe pod` show why a program ended.
func TestTheStatusOfAContainerSaysWhyItEnded(t *testing.T) {
	set, err := chart.Render(load(t), namespace, values(t, "{scheduler: {enabled: true}, ioLimits: {enabled: true}}"))
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for key, object := range set {
		for _, list := range []string{"containers", "initContainers"} {
			containers, _, err := unstructured.NestedSlice(object.Object, "spec", "template", "spec", list)
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range containers {
				seen++
				container := c.(map[string]any)
				if got := container["terminationMessagePolicy"]; got != "FallbackToLogsOnError" {
					t.Errorf("%s: container %v has the policy %v", key, container["name"], got)
				}
			}
		}
	}
	if seen < 5 {
		t.Errorf("%d containers were seen", seen)
	}
}

// TestAnAgentThatStartsSlowlyIsNotEnded: it answers no probe before all its groups are activated, one
// after the other, each with a minute for a command.
func TestAnAgentThatStartsSlowlyIsNotEnded(t *testing.T) {
	set, err := chart.Render(load(t), namespace, values(t, "{}"))
	if err != nil {
		t.Fatal(err)
	}
	seen := false
	for key, object := range set {
		containers, _, err := unstructured.NestedSlice(object.Object, "spec", "template", "spec", "containers")
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range containers {
			container := c.(map[string]any)
			if container["name"] != "lvmd" {
				continue
			}
			seen = true
			period, _, _ := unstructured.NestedInt64(container, "startupProbe", "periodSeconds")
			most, _, _ := unstructured.NestedInt64(container, "startupProbe", "failureThreshold")
			if given := time.Duration(period*most) * time.Second; given < 20*time.Minute {
				t.Errorf("%s: lvmd is given %v to start, want 20 minutes or more", key, given)
			}
			startup, _, _ := unstructured.NestedMap(container, "startupProbe", "httpGet")
			liveness, _, _ := unstructured.NestedMap(container, "livenessProbe", "httpGet")
			if diff := cmp.Diff(liveness, startup); diff != "" {
				t.Errorf("%s: the startup probe asks something else (- liveness, + startup):\n%s", key, diff)
			}
		}
	}
	if !seen {
		t.Error("there is no container lvmd")
	}
}

// TestTheKubeletsDirectoryIsOneValue proves that no path of the usual directory is left, and
// that the node plugin gets the other one.
func TestTheKubeletsDirectoryIsOneValue(t *testing.T) {
	const key = "DaemonSet.apps/carve-system/carve-node"
	usual, err := chart.Render(load(t), namespace, nil)
	if err != nil {
		t.Fatal(err)
	}
	moved, err := chart.Render(load(t), namespace, values(t, "kubeletDir: /data/kubelet"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(usual[key].Object)
	if err != nil {
		t.Fatal(err)
	}
	want := values(t, strings.ReplaceAll(string(text), "/var/lib/kubelet", "/data/kubelet"))
	containers, _, _ := unstructured.NestedSlice(want, "spec", "template", "spec", "containers")
	plugin := containers[1].(map[string]any)
	plugin["args"] = append(plugin["args"].([]any), "--kubelet-dir=/data/kubelet")
	if err := unstructured.SetNestedSlice(want, containers, "spec", "template", "spec", "containers"); err != nil {
		t.Fatal(err)
	}
	text, err = json.Marshal(moved[key].Object)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, values(t, string(text))); diff != "" {
		t.Errorf("the DaemonSet with another directory (- want, + got):\n%s", diff)
	}
}

// TestAConfigurationThatChangesRollsTheAgents wants another name for the ConfigMap.
func TestAConfigurationThatChangesRollsTheAgents(t *testing.T) {
	names := map[string]bool{}
	for _, group := range []string{"carve", "other"} {
		set, err := chart.Render(load(t), namespace, values(t, "lvmd: {config: {deviceClasses: [{name: local, volumeGroup: "+group+"}]}}"))
		if err != nil {
			t.Fatal(err)
		}
		names[set["ConfigMap/carve-system/carve-lvmd"].GetName()] = true
	}
	if len(names) != 2 {
		t.Errorf("names of the ConfigMap for two configurations: want two, got %v", names)
	}
}

// TestTheNamespaceIsTheReleases looks for the usual namespace in another installation.
func TestTheNamespaceIsTheReleases(t *testing.T) {
	set, err := chart.Render(load(t), "storage", values(t, "{openshift: {enabled: true}, podMonitor: {enabled: true}, startupTaint: {enabled: true}, alerts: {enabled: true}, dashboards: {enabled: true}}"))
	if err != nil {
		t.Fatal(err)
	}
	for key, object := range set {
		text, err := json.Marshal(object.Object)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(text, []byte(namespace)) {
			t.Errorf("%s names the namespace %s in an installation in storage: %s", key, namespace, text)
		}
	}
}

// TestRulesAndDashboardsAreWhereTheyAreLookedFor: a Prometheus or a Grafana may read its own
// namespace only.
func TestRulesAndDashboardsAreWhereTheyAreLookedFor(t *testing.T) {
	set, err := chart.Render(load(t), namespace, values(t, "{podMonitor: {enabled: true}, alerts: {enabled: true, namespace: prometheus}, dashboards: {enabled: true, namespace: grafana}}"))
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{
		"PodMonitor.monitoring.coreos.com/carve-system/carve", // where the Secret is that it names
		"PrometheusRule.monitoring.coreos.com/prometheus/carve",
		"ConfigMap/grafana/carve-dashboard-fleet", "ConfigMap/grafana/carve-dashboard-node",
		"ConfigMap/grafana/carve-dashboard-volumes", "ConfigMap/grafana/carve-dashboard-creation",
	} {
		if set[key] == nil {
			t.Errorf("want %s, got %q", key, keys(set))
		}
	}
}

// TestThePageOfMonitoringHasPrometheusFindWhatComponentsMake applies the patch that the page has
// for kustomize, and wants what the chart makes of the same labels.
func TestThePageOfMonitoringHasPrometheusFindWhatComponentsMake(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs/how-to/monitoring.md"))
	if err != nil {
		t.Fatal(err)
	}
	patch := regexp.MustCompile("(?s)```yaml\n(patches:\n.*?)```").FindSubmatch(page)
	if patch == nil {
		t.Fatal("the page has no patch")
	}
	want, err := chart.Render(load(t), namespace, values(t, "{podMonitor: {enabled: true, labels: {release: kube-prometheus-stack}}, alerts: {enabled: true, labels: {release: kube-prometheus-stack}}}"))
	if err != nil {
		t.Fatal(err)
	}
	got := kustomization(t, "resources: [../base]\ncomponents: [../components/pod-monitor, ../components/alerts]\n"+string(patch[1]))
	for _, kind := range []string{"PodMonitor", "PrometheusRule"} {
		key := kind + ".monitoring.coreos.com/carve-system/carve"
		if diff := cmp.Diff(want[key].Object, got[key].Object); diff != "" {
			t.Errorf("%s (- chart, + kustomize):\n%s", key, diff)
		}
	}
}

func TestValuesThatDoNotFitAreRefused(t *testing.T) {
	for name, test := range map[string]struct{ values, want string }{
		"a key that is misspelt":                          {"kubeletDirectory: /data", "kubeletDirectory"},
		"a kubelet directory with a slash":                {"kubeletDir: /data/", "/kubeletDir"},
		"a relative kubelet directory":                    {"kubeletDir: data", "/kubeletDir"},
		"a type of volumes that is unknown":               {"lvmd: {config: {deviceClasses: [{name: a, volumeGroup: b, type: raid7}]}}", "/lvmd/config/deviceClasses/0/type"},
		"no device class":                                 {"lvmd: {config: {deviceClasses: []}}", "/lvmd/config/deviceClasses"},
		"a pool without nodes":                            {"nodePools: [{name: a}]", "nodeSelector"},
		"a pool with an unknown key in its configuration": {"nodePools: [{name: a, nodeSelector: {a: b}, config: {classes: []}}]", "/nodePools/0/config"},
		"a digest that is none":                           {"image: {digest: latest}", "/image/digest"},
		"no controllers":                                  {"controller: {replicas: 0}", "/controller/replicas"},
		"no agent may be away":                            {"node: {maxUnavailable: 0}", "/node/maxUnavailable"},
		"an interval without a unit":                      {`podMonitor: {interval: "30"}`, "/podMonitor/interval"},
		"a PodMonitor away from its Secret":               {"podMonitor: {namespace: monitoring}", "namespace"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := chart.Render(load(t), namespace, values(t, test.values))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("want an error that names %s, got %v", test.want, err)
			}
		})
	}
}

// TestTheSchemaHoldsTheConfigurations compares the schema of lvmd's configuration in that
// of the values with the one that lvmd prints.
func TestTheSchemaHoldsTheConfigurations(t *testing.T) {
	read := func(name string) map[string]any {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		return values(t, string(text))
	}
	want := read("api/config/schema.json")
	delete(want, "$id")
	delete(want, "$schema")
	got, _, err := unstructured.NestedMap(read(chart.Dir+"/values.schema.json"), "$defs", "lvmdConfig")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("$defs.lvmdConfig is not api/config/schema.json (- want, + got):\n%s", diff)
	}
}

func TestHelmHasNoFindings(t *testing.T) {
	for name, text := range map[string]string{
		"as it is":       "{}",
		"all components": "{scheduler: {enabled: true}, startupTaint: {enabled: true}, nodeConditions: {enabled: true}, inlineVolumes: {enabled: true}, ioLimits: {enabled: true}, openshift: {enabled: true}, criticalQuota: {enabled: true}, podMonitor: {enabled: true}, alerts: {enabled: true}, dashboards: {enabled: true}}",
	} {
		for _, message := range lint.RunAll(filepath.Join(root, chart.Dir), values(t, text), namespace).Messages {
			if message.Severity == support.InfoSev && strings.Contains(message.Error(), "icon is recommended") {
				continue
			}
			t.Errorf("%s: %v", name, message)
		}
	}
}

func TestAnObjectThatIsThereTwiceIsAnError(t *testing.T) {
	const object = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"
	if err := (manifests.Set{}).Read([]byte(object + "---\n" + object)); !errors.Is(err, manifests.ErrTwice) {
		t.Errorf("want %v, got %v", manifests.ErrTwice, err)
	}
}

// TestMain silences what Helm logs of each of the chart's links.
func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	os.Exit(m.Run())
}
