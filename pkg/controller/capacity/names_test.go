package capacity_test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/carve-csi/carve/pkg/controller/capacity"
)

// The names must be readable, valid and distinct.
func TestObjectsAreNamedAfterNodeAndClass(t *testing.T) {
	long := strings.Repeat("a", 115) + "." + strings.Repeat("b", 137)
	seen := map[string]capacity.Key{}
	for _, test := range []struct{ node, class, want string }{
		{"worker-1", "carve", "worker-1--carve--"},
		{"ip-10-0-0-1.ec2.internal", "carve-thin", "ip-10-0-0-1.ec2.internal--carve-thin--"},
		{"a--b", "c", "a--b--c--"},
		{"a", "b--c", "a--b--c--"},
		{long, "carve", strings.Repeat("a", 115) + "--carve--"}, // cut at the dot
		{long, long, strings.Repeat("a", 115) + "--" + strings.Repeat("a", 115) + "--"},
		{long, long[:252], strings.Repeat("a", 115) + "--" + strings.Repeat("a", 115) + "--"},
	} {
		key := capacity.Key{Node: test.node, Class: test.class}
		name := key.ObjectName()
		if !strings.HasPrefix(name, test.want) || len(name) != len(test.want)+16 {
			t.Errorf("name for %s and %s: want %s and 16 letters, got %s", test.node, test.class, test.want, name)
		}
		if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
			t.Errorf("name %s: %v", name, problems)
		}
		if other, taken := seen[name]; taken {
			t.Errorf("%v and %v have the name %s", key, other, name)
		}
		seen[name] = key
	}
}
