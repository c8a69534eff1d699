package chart_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/carve-csi/carve/release/chart"
)

// TestTheOverlayForNodePoolsAddsAgentsWithAConfigurationOfTheirOwn compares it with the base.
func TestTheOverlayForNodePoolsAddsAgentsWithAConfigurationOfTheirOwn(t *testing.T) {
	const daemons, config = "DaemonSet.apps/carve-system/carve-node", "ConfigMap/carve-system/carve-lvmd"
	base := comparable(t, kustomization(t, "resources: [../base]"))
	pools := comparable(t, kustomization(t, "resources: [../overlays/node-pools]"))
	added, differ := []string{}, []string{}
	for _, name := range slices.Sorted(maps.Keys(pools)) {
		switch object, ok := base[name]; {
		case !ok:
			added = append(added, name)
		case !cmp.Equal(object, pools[name]):
			differ = append(differ, name)
		}
	}
	if want := []string{config + "-nvme", daemons + "-nvme"}; !slices.Equal(added, want) || len(pools) != len(base)+len(want) {
		t.Errorf("objects that the base lacks: want %q, got %q", want, added)
	}
	if want := []string{daemons}; !slices.Equal(differ, want) {
		t.Errorf("objects of the base that differ: want %q, got %q", want, differ)
	}
	for name, want := range map[string]string{daemons: "carve-lvmd", daemons + "-nvme": "carve-lvmd-nvme"} {
		object, _ := pools[name].(map[string]any)
		volumes, _, err := unstructured.NestedSlice(object, "spec", "template", "spec", "volumes")
		if err != nil || !slices.ContainsFunc(volumes, func(volume any) bool {
			source, _ := volume.(map[string]any)["configMap"].(map[string]any)
			return source["name"] == want
		}) {
			t.Errorf("%s: no volume is of the ConfigMap %s: %v, %v", name, want, volumes, err)
		}
	}
}

// TestComponentsFitOverlays: components name the DaemonSet carve-node, which is what those of the
// overlay's pools were called, too; and an overlay for OpenShift sets no namespace.
func TestComponentsFitOverlays(t *testing.T) {
	dirs, err := filepath.Glob(filepath.Join(root, "deploy/components/*"))
	if err != nil || len(dirs) < 10 {
		t.Fatalf("components: want 10 or more, got %q, %v", dirs, err)
	}
	for _, dir := range dirs {
		name := filepath.Base(dir)
		t.Run(name, func(t *testing.T) {
			const daemons = "DaemonSet.apps/carve-system/carve-node"
			component := "\ncomponents: [../components/" + name + "]\n"
			base := kustomization(t, "resources: [../base]"+component)
			pools := kustomization(t, "resources: [../overlays/node-pools]"+component)
			for key := range kustomization(t, "# for openshift\nresources: [../base]"+component) {
				if base[key] == nil {
					t.Errorf("without a namespace in the overlay there is %s", key)
				}
			}
			want := podTemplates(t, base)[daemons].Spec
			for _, key := range []string{daemons, daemons + "-nvme"} {
				template, ok := podTemplates(t, pools)[key]
				if !ok {
					t.Fatalf("there is no %s in %q", key, keys(pools))
				}
				got := template.Spec
				// Pools differ in their nodes and in their configuration.
				got.Affinity, got.NodeSelector, got.Volumes[0].ConfigMap = want.Affinity, want.NodeSelector, want.Volumes[0].ConfigMap
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("the Pods of %s (- with the base, + with the overlay):\n%s", key, diff)
				}
			}
		})
	}
}

// yamlOf returns the block of a how-to page that begins with these words.
func yamlOf(t *testing.T, page, begins string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../docs/how-to", page))
	if err != nil {
		t.Fatal(err)
	}
	_, block, found := strings.Cut(string(text), "```yaml\n"+begins)
	block, _, ended := strings.Cut(block, "```")
	if !found || !ended {
		t.Fatalf("%s has no block that begins with %q", page, begins)
	}
	return begins + block
}

// TestNodePoolsHaveDaemonSetsOfTheirOwn proves that no Pod belongs to two DaemonSets, and
// that a pool is the base's DaemonSet but for its name, its nodes and its configuration.
func TestNodePoolsHaveDaemonSetsOfTheirOwn(t *testing.T) {
	set, err := chart.Render(load(t), namespace, values(t, `
node: {affinity: {nodeAffinity: {of: others}}}
nodePools:
  - name: fast
    nodeSelector: {disks: nvme}
    affinity: {nodeAffinity: {of: fast}}
    tolerations: [{key: nvme, operator: Exists}]
    config: {apiVersion: carve.csi.local/v1, kind: LvmdConfig, deviceClasses: [{name: fast, default: true, volumeGroup: nvme, type: striped, stripes: all}]}
  - name: slow
    nodeSelector: {disks: hdd}
  - name: bare
    nodeSelector: {disks: ssd}
    tolerations: []
`))
	if err != nil {
		t.Fatal(err)
	}
	base, err := chart.Render(load(t), namespace, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := set["DaemonSet.apps/carve-system/carve-node"]; ok {
		t.Error("with pools there is the DaemonSet carve-node too, whose Pods would run beside the pools'")
	}
	// What node.affinity says is added to the default.
	merged, _, _ := unstructured.NestedMap(base["DaemonSet.apps/carve-system/carve-node"].Object, "spec", "template", "spec", "affinity")
	put(t, merged, []string{"nodeAffinity", "of"}, "others")
	for _, pool := range []struct {
		name, nodes, group string
		tolerations        []any
		affinity           any
	}{
		{"fast", "nvme", "nvme", []any{map[string]any{"key": "nvme", "operator": "Exists"}}, values(t, "nodeAffinity: {of: fast}")},
		{"slow", "hdd", "carve", []any{map[string]any{"operator": "Exists"}}, merged},
		{"bare", "ssd", "carve", []any{}, merged},
	} {
		daemons, ok := set["DaemonSet.apps/carve-system/carve-node-"+pool.name]
		if !ok {
			t.Fatalf("the pool %s: want a DaemonSet, got %q", pool.name, slices.Sorted(maps.Keys(set)))
		}
		labels := map[string]any{"app.kubernetes.io/name": "carve-node", "carve.csi.local/node-pool": pool.name}
		want := base["DaemonSet.apps/carve-system/carve-node"].DeepCopy()
		want.SetName("carve-node-" + pool.name)
		for _, field := range []struct {
			value any
			path  []string
		}{
			{labels, []string{"spec", "selector", "matchLabels"}},
			{labels, []string{"spec", "template", "metadata", "labels"}},
			{map[string]any{"kubernetes.io/os": "linux", "disks": pool.nodes}, []string{"spec", "template", "spec", "nodeSelector"}},
			{pool.tolerations, []string{"spec", "template", "spec", "tolerations"}},
			{pool.affinity, []string{"spec", "template", "spec", "affinity"}},
		} {
			if err := unstructured.SetNestedField(want.Object, field.value, field.path...); err != nil {
				t.Fatal(err)
			}
		}
		volumes, _, _ := unstructured.NestedSlice(want.Object, "spec", "template", "spec", "volumes")
		config := volumes[0].(map[string]any)["configMap"].(map[string]any)
		got, _, _ := unstructured.NestedSlice(daemons.Object, "spec", "template", "spec", "volumes")
		mounted := got[0].(map[string]any)["configMap"].(map[string]any)["name"].(string)
		config["name"] = mounted
		if err := unstructured.SetNestedSlice(want.Object, volumes, "spec", "template", "spec", "volumes"); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want.Object, daemons.Object); diff != "" {
			t.Errorf("the DaemonSet of the pool %s (- want, + got):\n%s", pool.name, diff)
		}
		object, ok := set["ConfigMap/carve-system/carve-lvmd-"+pool.name]
		if !ok || object.GetName() != mounted {
			t.Fatalf("the configuration of the pool %s: want %s, got %q", pool.name, mounted, slices.Sorted(maps.Keys(set)))
		}
		text, _, _ := unstructured.NestedString(object.Object, "data", "lvmd.yaml")
		if group, _, _ := unstructured.NestedString(values(t, text)["deviceClasses"].([]any)[0].(map[string]any), "volumeGroup"); group != pool.group {
			t.Errorf("volume group of the pool %s: want %s, got %s", pool.name, pool.group, group)
		}
	}
}
