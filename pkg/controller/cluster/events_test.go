package cluster

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/carve-csi/carve/pkg/must"
)

// The test compares the reasons and types in calls of the recorder with EventReasons.
func TestEveryEventIsInTheTable(t *testing.T) {
	declared := regexp.MustCompile(`(?m)^\s+(Reason[A-Z]\w*)\s+= "(\w+)"$`)
	used := regexp.MustCompile(`v1\.EventType(\w+), (?:cluster\.)?(Reason\w+)`)
	named := map[string]string{}
	for _, m := range declared.FindAllStringSubmatch(string(must.Get(os.ReadFile("events.go"))(t)), -1) {
		named[m[1]] = m[2]
	}
	find := func(reason string) int {
		return slices.IndexFunc(EventReasons, func(e EventReason) bool { return e.Reason == reason })
	}
	for name, reason := range named {
		if find(reason) < 0 {
			t.Errorf("%s (%s) is not in EventReasons", name, reason)
		}
	}
	if len(named) != len(EventReasons) {
		t.Errorf("%d reasons are declared and %d are in the table", len(named), len(EventReasons))
	}
	calls := 0
	var files []string
	must.Succeed(t, filepath.WalkDir("..", func(path string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") && filepath.Base(path) != "events.go" {
			files = append(files, path)
		}
		return err
	}))
	for _, file := range files {
		for _, m := range used.FindAllStringSubmatch(string(must.Get(os.ReadFile(file))(t)), -1) {
			calls++
			if i := find(named[m[2]]); i < 0 || EventReasons[i].Type != m[1] {
				t.Errorf("%s: an Event %s with %s, which the table does not say", file, m[1], m[2])
			}
		}
	}
	if calls < len(EventReasons)/2 {
		t.Errorf("only %d calls were found: the test looks at nothing", calls)
	}
}
