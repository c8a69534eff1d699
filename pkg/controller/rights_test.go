package controller

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/yaml"

	"github.com/carve-csi/carve/pkg/must"
)

type manifest struct {
	Kind     string
	Metadata struct{ Name string }
	Rules    []rbacv1.PolicyRule
	Subjects []rbacv1.Subject
	// AutomountServiceAccountToken is a ServiceAccount's; Spec has a Pod's.
	AutomountServiceAccountToken *bool
	Spec                         struct {
		Template struct {
			Spec v1.PodSpec
		}
	}
}

func shipped(t *testing.T, folder string, f func(path string, m *manifest)) {
	t.Helper()
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".yaml" {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for document := range strings.SplitSeq(string(content), "\n---\n") {
			m := &manifest{}
			// Skip documents that are not Kubernetes objects, or have other types in these
			// fields.
			if yaml.Unmarshal([]byte(document), m) == nil {
				f(path, m)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestTheNodeAgentsHaveNoRightsInTheAPI(t *testing.T) {
	bindings, accounts, pods := 0, 0, 0
	shipped(t, "../../deploy", func(path string, m *manifest) {
		switch m.Kind {
		case "RoleBinding", "ClusterRoleBinding":
			bindings++
			for _, s := range m.Subjects {
				if s.Kind != "ServiceAccount" || s.Name != "carve-controller" && s.Name != "carve-scheduler" {
					t.Errorf("%s: %s %s gives rights to %s %s", path, m.Kind, m.Metadata.Name, s.Kind, s.Name)
				}
			}
		case "ServiceAccount":
			if m.Metadata.Name != "carve-node" {
				return
			}
			accounts++
			if m.AutomountServiceAccountToken == nil || *m.AutomountServiceAccountToken {
				t.Errorf("%s: the token of %s for the API is mounted", path, m.Metadata.Name)
			}
		case "DaemonSet":
			if m.Metadata.Name != "carve-node" {
				return
			}
			pods++
			spec := m.Spec.Template.Spec
			if spec.ServiceAccountName != "carve-node" || spec.AutomountServiceAccountToken != nil && *spec.AutomountServiceAccountToken {
				t.Errorf("%s: the agents act as %q", path, spec.ServiceAccountName)
			}
		}
	})
	if bindings < 2 || accounts != 1 || pods != 1 {
		t.Errorf("read %d bindings, %d accounts and %d DaemonSets", bindings, accounts, pods)
	}
}

type right struct{ resource, verb string }

var (
	documentedRow  = regexp.MustCompile(`(?m)^\| (.*?) \| (.*?) \|`)
	documentedName = regexp.MustCompile("`([a-z/]+)`")
	documentedVerb = regexp.MustCompile(`\b(get|list|watch|create|update|patch|delete)\b`)
)

// documentedRights are listed in docs/explanation/security.md; a row without a resource
// continues the previous one.
func documentedRights(t *testing.T) map[right]bool {
	t.Helper()
	content := must.Get(os.ReadFile("../../docs/explanation/security.md"))(t)
	_, section, ok := strings.Cut(string(content), "### The controller's rights, line by line\n")
	section, _, end := strings.Cut(section, "\n### ")
	if !ok || !end {
		t.Fatal("docs/explanation/security.md has no such section")
	}
	out := map[right]bool{}
	var resources []string
	for _, row := range documentedRow.FindAllStringSubmatch(strings.ReplaceAll(section, "| |", "|  |"), -1) {
		if row[1] != "" {
			resources = resources[:0]
			for _, name := range documentedName.FindAllStringSubmatch(row[1], -1) {
				resources = append(resources, name[1])
			}
		}
		for _, verb := range documentedVerb.FindAllString(row[2], -1) {
			for _, resource := range resources {
				out[right{resource, verb}] = true
			}
		}
	}
	return out
}

func TestEveryRightOfTheControllerIsDocumentedAndNoOther(t *testing.T) {
	documented, given := documentedRights(t), map[right]bool{}
	shipped(t, "../../deploy/base", func(path string, m *manifest) {
		for _, rule := range m.Rules {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					given[right{resource, verb}] = true
					if resource == "*" || verb == "*" || slices.Contains(rule.APIGroups, "*") {
						t.Errorf("%s: %s %s allows %s of %s", path, m.Kind, m.Metadata.Name, verb, resource)
					}
					if !documented[right{resource, verb}] {
						t.Errorf("%s: %s of %s is not in docs/explanation/security.md", path, verb, resource)
					}
				}
			}
		}
	})
	if len(given) < 20 {
		t.Errorf("read %d rights", len(given))
	}
	for r := range documented {
		if !given[r] {
			t.Errorf("docs/explanation/security.md lists %s of %s, which the account does not have", r.verb, r.resource)
		}
	}
}

// With wider rights, a holder of the controller's token reads the Secrets of a namespace or of
// the cluster, or holds up other components by their leases.
func TestRightsOnWhatOthersHaveTooAreNoWider(t *testing.T) {
	// Anything but create is limited to these names. All but namespaces are in the
	// controller's own namespace; an empty list means all of it.
	narrow := map[string][]string{
		"secrets": {"carve-uplink-ca", "carve-metrics-token"}, "configmaps": {"carve-uplink-ca"}, "leases": {"carve-controller"},
		"deployments": {"carve-controller"}, "csistoragecapacities": nil, "namespaces": {"kube-system"},
	}
	rules := 0
	shipped(t, "../../deploy/base", func(path string, m *manifest) {
		for _, rule := range m.Rules {
			for _, resource := range rule.Resources {
				names, ok := narrow[resource]
				if !ok {
					continue
				}
				rules++
				if (m.Kind == "Role") != (resource != "namespaces") {
					t.Errorf("%s: %s %s has rights on %s", path, m.Kind, m.Metadata.Name, resource)
				}
				createsOnly := slices.Equal(rule.Verbs, []string{"create"})
				if len(names) > 0 && !createsOnly && len(rule.ResourceNames) == 0 {
					t.Errorf("%s: %s %s allows %s of all %s", path, m.Kind, m.Metadata.Name, rule.Verbs, resource)
				}
				for _, name := range rule.ResourceNames {
					if !slices.Contains(names, name) {
						t.Errorf("%s: %s %s allows %s of %s %s", path, m.Kind, m.Metadata.Name, rule.Verbs, resource, name)
					}
				}
			}
		}
	})
	if rules < 9 {
		t.Errorf("read %d rules", rules)
	}
}

func TestTheKubeletMayMountVolumesWithTheLabelOfSELinux(t *testing.T) {
	content := must.Get(os.ReadFile("../../deploy/base/csidriver.yaml"))(t)
	driver := storagev1.CSIDriver{}
	must.Succeed(t, yaml.UnmarshalStrict(content, &driver))
	if given := driver.Spec.SELinuxMount; given == nil || !*given {
		t.Errorf("spec.seLinuxMount of %s: got %v, want true", driver.Name, given)
	}
}

func TestTheKubeletAsksForTheNumberOfVolumesAgain(t *testing.T) {
	content := must.Get(os.ReadFile("../../deploy/base/csidriver.yaml"))(t)
	driver := storagev1.CSIDriver{}
	must.Succeed(t, yaml.UnmarshalStrict(content, &driver))
	// The API server rejects less than ten seconds.
	if given := driver.Spec.NodeAllocatableUpdatePeriodSeconds; given == nil || *given < 10 {
		t.Errorf("spec.nodeAllocatableUpdatePeriodSeconds of %s: got %v, want 10 or more", driver.Name, given)
	}
}
