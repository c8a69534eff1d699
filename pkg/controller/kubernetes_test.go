package controller

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/carve-csi/carve/pkg/must"
)

// stableSince has the minor version of Kubernetes that first serves each API, in the form
// used, of shipped objects and requests.
var stableSince = map[string]int{
	"admissionregistration.k8s.io/v1 ValidatingAdmissionPolicies":       30,
	"admissionregistration.k8s.io/v1 ValidatingAdmissionPolicyBindings": 30,
	"admissionregistration.k8s.io/v1 MutatingAdmissionPolicies":         36,
	"admissionregistration.k8s.io/v1 MutatingAdmissionPolicyBindings":   36,
	"apps/v1 DaemonSets":                               9,
	"apps/v1 Deployments":                              9,
	"authentication.k8s.io/v1 TokenReviews":            6,
	"coordination.k8s.io/v1 Leases":                    14,
	"networking.k8s.io/v1 NetworkPolicies":             7,
	"policy/v1 PodDisruptionBudgets":                   21,
	"rbac.authorization.k8s.io/v1 ClusterRoleBindings": 8,
	"rbac.authorization.k8s.io/v1 ClusterRoles":        8,
	"rbac.authorization.k8s.io/v1 RoleBindings":        8,
	"rbac.authorization.k8s.io/v1 Roles":               8,
	"storage.k8s.io/v1 CSIDrivers":                     18,
	"storage.k8s.io/v1 CSINodes":                       17,
	"storage.k8s.io/v1 CSIStorageCapacities":           24,
	"storage.k8s.io/v1 StorageClasses":                 6,
	"storage.k8s.io/v1 VolumeAttributesClasses":        34,
}

// oldest is the oldest supported minor version of Kubernetes. Younger APIs are used only where
// served, and docs/how-to/upgrade.md lists the consequences.
const oldest = 33

// optional has the kinds of younger APIs as named on that page.
var optional = map[string]string{
	"storage.k8s.io/v1 VolumeAttributesClasses":                       "VolumeAttributesClass",
	"admissionregistration.k8s.io/v1 MutatingAdmissionPolicies":       "MutatingAdmissionPolicy",
	"admissionregistration.k8s.io/v1 MutatingAdmissionPolicyBindings": "MutatingAdmissionPolicy",
}

var (
	// apiGroups are groups whose client name is not their first word.
	apiGroups = map[string]string{
		"Admissionregistration": "admissionregistration.k8s.io", "Apps": "apps", "Authentication": "authentication.k8s.io",
		"Coordination": "coordination.k8s.io", "Networking": "networking.k8s.io",
		"Policy": "policy", "Rbac": "rbac.authorization.k8s.io", "Storage": "storage.k8s.io",
	}
	apiCall     = regexp.MustCompile(`\.([A-Z][a-z]+)(?:\(\)\.)?V([0-9][a-z0-9]*)\(\)\.([A-Z][A-Za-z]+)\(`)
	apiVersion  = regexp.MustCompile(`(?m)^apiVersion: *(\S+)$`)
	objectKind  = regexp.MustCompile(`(?m)^kind: *(\S+)$`)
	newerAPIRow = regexp.MustCompile(`(?m)^\| ([A-Za-z]+) \| 1\.(\d+) \| \[?[a-z]`)
)

func usedAPIs(t *testing.T, f func(where, api string)) {
	t.Helper()
	read := func(folder, extension string, each func(path, content string)) {
		must.Succeed(t, filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || filepath.Ext(path) != extension || strings.HasSuffix(path, "_test.go") {
				return err
			}
			content, err := os.ReadFile(path)
			each(path, string(content))
			return err
		}))
	}
	for _, folder := range []string{"../../pkg", "../../cmd"} {
		read(folder, ".go", func(path, content string) {
			for _, call := range apiCall.FindAllStringSubmatch(content, -1) {
				// The core and the snapshots' group do not follow Kubernetes' versions.
				if call[1] != "Core" && call[1] != "Snapshot" {
					f(path, apiGroups[call[1]]+"/v"+call[2]+" "+call[3])
				}
			}
		})
	}
	for _, folder := range []string{"../../deploy/base", "../../deploy/components", "../../deploy/overlays"} {
		read(folder, ".yaml", func(path, content string) {
			for document := range strings.SplitSeq(content, "\n---\n") {
				version, kind := apiVersion.FindStringSubmatch(document), objectKind.FindStringSubmatch(document)
				if version == nil || kind == nil {
					continue
				}
				group, _, grouped := strings.Cut(version[1], "/")
				if builtin := strings.HasSuffix(group, ".k8s.io") && group != "snapshot.storage.k8s.io"; !grouped || !builtin && strings.Contains(group, ".") {
					continue
				}
				plural := kind[1] + "s"
				switch {
				case strings.HasSuffix(kind[1], "s"):
					plural = kind[1] + "es"
				case strings.HasSuffix(kind[1], "y"):
					plural = strings.TrimSuffix(kind[1], "y") + "ies"
				}
				if kind[1] != "Kustomization" && kind[1] != "Component" {
					f(path, version[1]+" "+plural)
				}
			}
		})
	}
}

func TestEveryAPIThatIsUsedIsServedByTheOldestKubernetesOrIsDocumented(t *testing.T) {
	page := must.Get(os.ReadFile("../../docs/how-to/upgrade.md"))(t)
	documented, seen := map[string]bool{}, map[string]bool{}
	for _, row := range newerAPIRow.FindAllStringSubmatch(string(page), -1) {
		documented[row[1]+" 1."+row[2]] = true
	}
	usedAPIs(t, func(where, api string) {
		seen[api] = true
		since, known := stableSince[api]
		switch {
		case !known:
			t.Errorf("%s: %s is used, and since which version of Kubernetes it is served is not known", where, api)
		case since > oldest && !documented[fmt.Sprintf("%s 1.%d", optional[api], since)]:
			t.Errorf("%s: %s is used, which Kubernetes 1.%d lacks, and docs/how-to/upgrade.md has no row for it", where, api, oldest)
		}
	})
	if !seen["storage.k8s.io/v1 VolumeAttributesClasses"] || !seen["storage.k8s.io/v1 CSIStorageCapacities"] || !seen["apps/v1 DaemonSets"] {
		t.Errorf("found only %v", seen)
	}
	for api := range stableSince {
		if !seen[api] {
			t.Errorf("%s is listed and not used", api)
		}
	}
}
