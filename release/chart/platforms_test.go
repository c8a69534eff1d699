package chart_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/carve-csi/carve/release/chart"
	"github.com/carve-csi/carve/release/manifests"
)

// platforms are the values in deploy/platforms, by name.
func platforms(t *testing.T) map[string]map[string]any {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, "deploy/platforms/*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	result := map[string]map[string]any{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		result[strings.TrimSuffix(filepath.Base(file), ".yaml")] = values(t, string(text))
	}
	if len(result) < 12 {
		t.Fatalf("got %d platforms, want 12", len(result))
	}
	return result
}

// kubeletDirs are the platforms' directories of the kubelet that are not the usual one.
var kubeletDirs = map[string]string{"k0s": "/var/lib/k0s/kubelet", "microk8s": "/var/snap/microk8s/common/var/lib/kubelet"}

// groups are what becomes the volume group, in lvmd's configuration, where one is made; instance
// store ends with its machine.
var groups = map[string]string{
	"aks": "instanceStore: true", "eks": "instanceStore: true", "gke": "instanceStore: true", "bottlerocket": "instanceStore: true",
	"flatcar": "rotational: false", "talos": "rotational: false", "kind": "loopFile:", "minikube": "path: /dev/vdb",
}

// replaced are the platforms that replace machines whose disks end with them, and the label of
// those that have such disks.
var replaced = map[string]string{
	"aks": "kubernetes.azure.com/agentpool", "eks": "carve.csi.local/instance-store", "gke": "cloud.google.com/gke-local-nvme-ssd",
}

// checkDisks checks what becomes the volume group, on which nodes, and that claims of disks that
// end with their machine are made again.
func checkDisks(t *testing.T, name string, set manifests.Set) {
	t.Helper()
	config, _, _ := unstructured.NestedString(set["ConfigMap/"+namespace+"/carve-lvmd"].Object, "data", "lvmd.yaml")
	if want := groups[name]; !strings.Contains(config, want) || (want == "") == strings.Contains(config, "volumeGroups:") {
		t.Errorf("lvmd's configuration: want a volume group of %q, got\n%s", want, config)
	}
	label, ends := replaced[name]
	nodes, _, _ := unstructured.NestedStringMap(set["DaemonSet.apps/"+namespace+"/carve-node"].Object, "spec", "template", "spec", "nodeSelector")
	if _, chosen := nodes[label]; chosen != ends {
		t.Errorf("nodes of the agents: want the label %q, got %v", label, nodes)
	}
	loss, _, _ := unstructured.NestedString(set["StorageClass.storage.k8s.io//carve"].Object, "parameters", "carve.csi.local/on-node-loss")
	if (loss == "recreate") != ends {
		t.Errorf("on-node-loss is %q, disks that end with their machine: %v", loss, ends)
	}
	if _, removed := set["ValidatingAdmissionPolicy.admissionregistration.k8s.io//carve-controller-startup-taint"]; removed != ends {
		t.Errorf("the start-up taint is removed: %v, want %v", removed, ends)
	}
}

// TestEveryPlatformsValuesFit renders the chart for each platform, has Helm look at it, and
// checks what makes the platform different.
func TestEveryPlatformsValuesFit(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs/how-to/platforms.md"))
	if err != nil {
		t.Fatal(err)
	}
	for name, v := range platforms(t) {
		t.Run(name, func(t *testing.T) {
			if !strings.Contains(string(page), "deploy/platforms/"+name+".yaml") {
				t.Error("docs/how-to/platforms.md does not name its values")
			}
			set, err := chart.Render(load(t), namespace, v)
			if err != nil {
				t.Fatal(err)
			}
			for _, message := range lint.RunAll(filepath.Join(root, chart.Dir), v, namespace).Messages {
				if message.Severity == support.ErrorSev || message.Severity == support.WarningSev {
					t.Errorf("%v", message)
				}
			}
			checkDirectories(t, set, kubeletDirs[name])
			checkDisks(t, name, set)
			has := func(kind string) bool {
				return slices.ContainsFunc(keys(set), func(key string) bool { return strings.HasPrefix(key, kind+".") || strings.HasPrefix(key, kind+"/") })
			}
			if got, want := has("SecurityContextConstraints"), name == "openshift"; got != want {
				t.Errorf("SecurityContextConstraints: got %v, want %v", got, want)
			}
			if got, want := has("ResourceQuota"), name == "gke"; got != want {
				t.Errorf("ResourceQuota: got %v, want %v", got, want)
			}
		})
	}
}

func keys(set manifests.Set) []string {
	var all []string
	for key := range set {
		all = append(all, key)
	}
	return all
}

// checkDirectories checks that the agents mount the platform's directories of the kubelet, and
// none of another.
func checkDirectories(t *testing.T, set manifests.Set, want string) {
	t.Helper()
	if want == "" {
		want = "/var/lib/kubelet"
	}
	agent := set["DaemonSet.apps/"+namespace+"/carve-node"]
	if agent == nil {
		t.Fatalf("there is no DaemonSet in %q", keys(set))
	}
	text, err := json.Marshal(agent.Object)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/pods", "/plugins/kubernetes.io/csi", "/plugins/carve.csi.local", "/plugins_registry"} {
		if !strings.Contains(string(text), `"path":"`+want+path+`"`) {
			t.Errorf("%s%s is not mounted", want, path)
		}
	}
	if rest := strings.ReplaceAll(string(text), want+"/", ""); strings.Contains(rest, "/var/lib/kubelet/") {
		t.Error("a path of the usual directory is left")
	}
}
