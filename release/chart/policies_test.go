package chart_test

import (
	"maps"
	"regexp"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// onAccount is what the condition of a policy may ask of the requester's name.
var onAccount = regexp.MustCompile(`^request\.userInfo\.username\.(startsWith|endsWith|matches)\('(.*)'\)$`)

// TestPoliciesHoldForAccountsThatAreRenamed has the accounts that policies limit renamed, as an
// overlay may.
func TestPoliciesHoldForAccountsThatAreRenamed(t *testing.T) {
	for _, change := range []string{"", "namePrefix: acme-\n", "nameSuffix: -acme\n", "namePrefix: acme\nnameSuffix: \"2\"\n"} {
		set := kustomization(t, change+"resources: [../base]\ncomponents: [../components/startup-taint, ../components/node-conditions, ../components/scheduler]\n")
		limited, bound := map[string]int{}, map[string]bool{}
		for _, object := range set {
			if object.GetKind() == "ValidatingAdmissionPolicyBinding" {
				name, _, _ := unstructured.NestedString(object.Object, "spec", "policyName")
				bound[name] = true
			}
		}
		for _, account := range set {
			if account.GetKind() != "ServiceAccount" {
				continue
			}
			user := "system:serviceaccount:" + account.GetNamespace() + ":" + account.GetName()
			for _, policy := range set {
				if policy.GetKind() != "ValidatingAdmissionPolicy" || !isLimited(t, policy, user) {
					continue
				}
				for _, name := range []string{"carve-controller", "carve-scheduler"} {
					if strings.Contains(account.GetName(), name) {
						limited[name]++
					}
				}
				if !bound[policy.GetName()] {
					t.Errorf("%q: the policy %s is not bound", change, policy.GetName())
				}
			}
		}
		if want := map[string]int{"carve-controller": 7, "carve-scheduler": 6}; !maps.Equal(limited, want) {
			t.Errorf("%q: so many policies limit the accounts: %v, want %v", change, limited, want)
		}
	}
}

// isLimited reports whether a policy, which is about certain accounts, is about a user.
func isLimited(t *testing.T, policy *unstructured.Unstructured, user string) bool {
	t.Helper()
	conditions, _, err := unstructured.NestedSlice(policy.Object, "spec", "matchConditions")
	if err == nil && len(conditions) == 0 {
		return true // it is about everybody
	}
	if err != nil || len(conditions) != 1 {
		t.Fatalf("policy %s: want one condition, got %v, %v", policy.GetName(), conditions, err)
	}
	expression, _ := conditions[0].(map[string]any)["expression"].(string)
	for part := range strings.SplitSeq(expression, "&&") {
		call := onAccount.FindStringSubmatch(strings.TrimSpace(part))
		if call == nil {
			t.Fatalf("policy %s: the condition %q", policy.GetName(), part)
		}
		if call[1] == "startsWith" && !strings.HasPrefix(user, call[2]) || call[1] == "endsWith" && !strings.HasSuffix(user, call[2]) ||
			call[1] == "matches" && !regexp.MustCompile(call[2]).MatchString(user) {
			return false
		}
	}
	return true
}
