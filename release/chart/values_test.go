package chart_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/carve-csi/carve/release/chart"
	"github.com/carve-csi/carve/release/manifests"
	"github.com/carve-csi/carve/release/version"
)

// enabled is every component that has workloads or labels of its own.
const enabled = "{scheduler: {enabled: true}, startupTaint: {enabled: true}, nodeConditions: {enabled: true}, inlineVolumes: {enabled: true}, ioLimits: {enabled: true}, " +
	"podMonitor: {enabled: true}, alerts: {enabled: true}, dashboards: {enabled: true}}"

// TestEveryValueComesWhereItBelongsAndNowhereElse sets every value that no kustomization has a
// counterpart of to something unusual, and wants what the chart makes otherwise with the changes
// that are listed.
func TestEveryValueComesWhereItBelongsAndNowhereElse(t *testing.T) {
	const (
		digest  = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
		carve   = "r.example.com/c@" + digest
		changed = `
image: {repository: r.example.com/c, tag: v0, digest: "` + digest + `", pullPolicy: Always, pullSecrets: [{name: pull}]}
controller:
  replicas: 3
  priorityClassName: first
  nodeSelector: {for: controllers}
  tolerations: [{key: c, operator: Exists}]
  affinity: {nodeAffinity: {of: controllers}}
  resources: {limits: {memory: 1Gi}}
  extraArgs: [--of-the-controller]
  podLabels: {label: controller}
  podAnnotations: {note: controller}
node:
  priorityClassName: second
  nodeSelector: {for: agents}
  affinity: {nodeAffinity: {of: agents}}
  tolerations: [{key: agents, operator: Exists}]
  maxUnavailable: 4
  resources: {limits: {memory: 2Gi}}
  extraArgs: [--of-the-node]
  podLabels: {label: node}
  podAnnotations: {note: node}
lvmd:
  resources: {limits: {memory: 3Gi}}
  extraArgs: [--of-lvmd]
storageClasses:
  - name: carve
    default: true
    annotations: {note: class}
    reclaimPolicy: Retain
    volumeBindingMode: Immediate
    allowVolumeExpansion: false
    parameters: {a: b}
    mountOptions: [noatime]
    allowedTopologies: [{matchLabelExpressions: [{key: a, values: [b]}]}]
inlineVolumes: {maxSize: 5Gi}
ioLimits: {resources: {limits: {memory: 4Gi}}}
scheduler: {image: {repository: r.example.com/s, tag: v2}, replicas: 5, resources: {limits: {memory: 6Gi}}}
podMonitor: {labels: {release: stack}, interval: 15s}
alerts: {labels: {release: rules}}
dashboards: {labels: {for: grafana}, annotations: {grafana_folder: Storage}}
`
		controller = "Deployment.apps/carve-system/carve-controller"
		agent      = "DaemonSet.apps/carve-system/carve-node"
		scheduler  = "Deployment.apps/carve-system/carve-scheduler"
		class      = "StorageClass.storage.k8s.io//carve"
		monitor    = "PodMonitor.monitoring.coreos.com/carve-system/carve"
		rules      = "PrometheusRule.monitoring.coreos.com/carve-system/carve"
		dashboard  = "ConfigMap/carve-system/carve-dashboard-"
	)
	want, err := chart.Render(load(t), namespace, values(t, enabled))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ object, path, value string }{
		{controller, "spec replicas", "3"},
		{controller, "spec template spec priorityClassName", "first"},
		{controller, "spec template spec nodeSelector", "{kubernetes.io/os: linux, for: controllers}"},
		{controller, "spec template spec tolerations", "[{key: c, operator: Exists}, {key: carve.csi.local/agent-not-ready, operator: Exists}, " +
			"{key: startup-taint.cluster-autoscaler.kubernetes.io/carve, operator: Exists}, {key: readiness.k8s.io/carve, operator: Exists}]"},
		{controller, "spec template spec affinity nodeAffinity of", "controllers"},
		{controller, "spec template spec imagePullSecrets", "[{name: pull}]"},
		{controller, "spec template spec containers controller image", carve},
		{controller, "spec template spec containers controller imagePullPolicy", "Always"},
		{controller, "spec template spec containers controller resources limits memory", "1Gi"},
		{controller, "spec template spec containers controller args +", "--of-the-controller"},
		{controller, "spec template metadata labels label", "controller"},
		{controller, "spec template metadata annotations note", "controller"},

		{agent, "spec updateStrategy rollingUpdate maxUnavailable", "4"},
		{agent, "spec template spec priorityClassName", "second"},
		{agent, "spec template spec nodeSelector", "{kubernetes.io/os: linux, for: agents}"},
		{agent, "spec template spec affinity nodeAffinity of", "agents"},
		{agent, "spec template spec tolerations", "[{key: agents, operator: Exists}]"},
		{agent, "spec template spec imagePullSecrets", "[{name: pull}]"},
		{agent, "spec template metadata labels label", "node"},
		{agent, "spec template metadata annotations note", "node"},
		{agent, "spec template spec containers node image", carve},
		{agent, "spec template spec containers node imagePullPolicy", "Always"},
		{agent, "spec template spec containers node resources limits memory", "2Gi"},
		{agent, "spec template spec containers node args", "[--node-name=$(NODE_NAME), " +
			"--host-proc=/host/proc, --inline-volumes, --inline-max-size=5Gi, --io-limits-dir=/run/carve-io-limits, --of-the-node]"},
		{agent, "spec template spec containers lvmd image", carve},
		{agent, "spec template spec containers lvmd imagePullPolicy", "Always"},
		{agent, "spec template spec containers lvmd resources limits memory", "3Gi"},
		{agent, "spec template spec containers lvmd args +", "--of-lvmd"},
		{agent, "spec template spec containers io-limits image", carve},
		{agent, "spec template spec containers io-limits imagePullPolicy", "Always"},
		{agent, "spec template spec containers io-limits resources limits memory", "4Gi"},

		{scheduler, "spec replicas", "5"},
		{scheduler, "spec template spec priorityClassName", "first"},
		{scheduler, "spec template spec imagePullSecrets", "[{name: pull}]"},
		{scheduler, "spec template spec containers carve-scheduler image", "r.example.com/s:v2"},
		{scheduler, "spec template spec containers carve-scheduler imagePullPolicy", "Always"},
		{scheduler, "spec template spec containers carve-scheduler resources limits memory", "6Gi"},

		{class, "metadata annotations", `{storageclass.kubernetes.io/is-default-class: "true", note: class}`},
		{class, "reclaimPolicy", "Retain"},
		{class, "volumeBindingMode", "Immediate"},
		{class, "allowVolumeExpansion", "false"},
		{class, "parameters", "{a: b}"},
		{class, "mountOptions", "[noatime]"},
		{class, "allowedTopologies", "[{matchLabelExpressions: [{key: a, values: [b]}]}]"},

		{monitor, "metadata labels release", "stack"},
		{monitor, "spec podMetricsEndpoints * interval", "15s"},
		{rules, "metadata labels release", "rules"},
		{dashboard + "fleet", "metadata labels for", "grafana"},
		{dashboard + "fleet", "metadata annotations", "{grafana_folder: Storage}"},
		{dashboard + "node", "metadata labels for", "grafana"},
		{dashboard + "node", "metadata annotations", "{grafana_folder: Storage}"},
		{dashboard + "volumes", "metadata labels for", "grafana"},
		{dashboard + "volumes", "metadata annotations", "{grafana_folder: Storage}"},
		{dashboard + "creation", "metadata labels for", "grafana"},
		{dashboard + "creation", "metadata annotations", "{grafana_folder: Storage}"},
	} {
		object, ok := want[c.object]
		if !ok {
			t.Fatalf("there is no %s in %q", c.object, keys(want))
		}
		var value any
		if err := yaml.Unmarshal([]byte(c.value), &value); err != nil {
			t.Fatalf("%s: %v", c.value, err)
		}
		put(t, object.Object, strings.Fields(c.path), value)
	}
	given := values(t, enabled)
	for key, value := range values(t, changed) {
		of, ok := value.(map[string]any)
		if !ok {
			given[key] = value
			continue
		}
		for name, one := range of {
			given = put(t, given, []string{key, name}, one).(map[string]any)
		}
	}
	got, err := chart.Render(load(t), namespace, given)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(plain(t, want), plain(t, got)); diff != "" {
		t.Errorf("what the values change (- want, + got):\n%s", diff)
	}
}

// TestListsAndMapsMayBeEmpty renders the chart with each list and each map of its values empty, or
// removed, which is what Helm does with null.
func TestListsAndMapsMayBeEmpty(t *testing.T) {
	for name, of := range load(t).Values {
		fields, _ := of.(map[string]any)
		for field, value := range fields {
			given := []any{nil}
			switch value.(type) {
			case map[string]any:
			case []any:
				given = append(given, []any{})
			default:
				continue
			}
			for _, empty := range given {
				v := put(t, values(t, enabled), []string{name, field}, empty).(map[string]any)
				set, err := chart.Render(load(t), namespace, v)
				if field == "image" {
					if err == nil || !strings.Contains(err.Error(), "missing property 'image'") {
						t.Errorf("%s.%s: %v: %v, want an error that names it: there is no container without it", name, field, empty, err)
					}
				} else if err != nil {
					t.Errorf("%s.%s: %v: %v", name, field, empty, err)
				} else if got := podTemplates(t, set)["Deployment.apps/carve-system/carve-controller"].Spec.Tolerations; len(got) < 3 {
					t.Errorf("%s.%s: %v: the controller does not tolerate the start-up taint: %v", name, field, empty, got)
				}
			}
		}
	}
}

// put sets a field of an object, and returns the object. In a list, a step of the path is the name
// of an element, + adds one, and * is each.
func put(t *testing.T, in any, path []string, value any) any {
	t.Helper()
	if len(path) == 0 {
		return value
	}
	step, rest := path[0], path[1:]
	switch in := in.(type) {
	case nil:
		return map[string]any{step: put(t, nil, rest, value)}
	case map[string]any:
		in[step] = put(t, in[step], rest, value)
		return in
	case []any:
		if step == "+" {
			return append(in, value)
		}
		if step == "*" {
			for i, element := range in {
				in[i] = put(t, element, rest, value)
			}
			return in
		}
		for i, element := range in {
			if named, ok := element.(map[string]any); ok && named["name"] == step {
				in[i] = put(t, element, rest, value)
				return in
			}
		}
	}
	t.Fatalf("there is no %q in %v", path, in)
	return nil
}

// plain returns the objects as JSON has them.
func plain(t *testing.T, set manifests.Set) map[string]any {
	t.Helper()
	result := map[string]any{}
	for key, object := range set {
		text, err := json.Marshal(object.Object)
		if err != nil {
			t.Fatal(err)
		}
		var content any
		if err := json.Unmarshal(text, &content); err != nil {
			t.Fatal(err)
		}
		result[key] = content
	}
	return result
}

// TestSchedulerImageFollowsCluster renders the chart for clusters of several versions.
func TestSchedulerImageFollowsCluster(t *testing.T) {
	const name = "registry.example.com/carve-scheduler:"
	for _, test := range []struct{ kubernetes, values, image, err string }{
		{kubernetes: "v1.37.2", image: name + "v0.1.0-k8s1.37"},
		{kubernetes: "v1.36.3-gke.100+build", image: name + "v0.1.0-k8s1.36"},
		{kubernetes: "v1.35.0", image: name + "v0.1.0-k8s1.35"},
		{kubernetes: "v1.35.0", values: "image: {tag: v2}", image: name + "v2-k8s1.35"},
		{kubernetes: "v1.34.9", values: "scheduler: {image: {tag: own}}", image: name + "own"},
		{kubernetes: "v1.34.9", err: "supports Kubernetes 1.35, 1.36 and 1.37; the cluster has v1.34.9"},
		{kubernetes: "v1.38.0", err: "supports Kubernetes 1.35, 1.36 and 1.37; the cluster has v1.38.0"},
	} {
		t.Run(test.kubernetes+test.values, func(t *testing.T) {
			v := put(t, values(t, test.values), []string{"scheduler", "enabled"}, true).(map[string]any)
			set, err := chart.RenderFor(load(t), test.kubernetes, namespace, v)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("error: got %v, want one with %q", err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := podTemplates(t, set)["Deployment.apps/carve-system/carve-scheduler"].Spec.Containers[0].Image; got != test.image {
				t.Errorf("image: got %s, want %s", got, test.image)
			}
			_, got := set["MutatingAdmissionPolicy.admissionregistration.k8s.io//carve-scheduler-by-namespace"]
			if want := test.kubernetes >= "v1.36"; got != want {
				t.Errorf("policy for namespaces: got %v, want %v", got, want)
			}
		})
	}
}

// TestSchedulerImageExistsForEveryModule compares the chart's versions of Kubernetes with those that carve-scheduler is
// built for.
func TestSchedulerImageExistsForEveryModule(t *testing.T) {
	minors, err := version.Minors(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, minor := range minors {
		if _, err := chart.RenderFor(load(t), "v"+minor+".0", namespace, values(t, "scheduler: {enabled: true}")); err != nil {
			t.Errorf("Kubernetes %s: %v", minor, err)
		}
	}
	if newest := "v" + minors[len(minors)-1] + ".0"; newest != chart.KubeVersion {
		t.Errorf("newest version: got %s, want %s", newest, chart.KubeVersion)
	}
}
