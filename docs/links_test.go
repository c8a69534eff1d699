package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/carve-csi/carve/pkg/must"
)

func TestEveryLinkLeadsSomewhere(t *testing.T) {
	all := pages(t)
	checked := 0
	for _, p := range all {
		for _, link := range p.links {
			if strings.Contains(link, "://") {
				continue
			}
			checked++
			checkLink(t, all, p.path, filepath.Dir(p.path), link)
		}
	}
	if checked < 100 {
		t.Errorf("only %d links were found", checked)
	}
	runbooks := regexp.MustCompile(`runbook_url: `+regexp.QuoteMeta(home(t))+`/blob/main/(\S+)`).FindAllStringSubmatch(string(must.Get(os.ReadFile(filepath.Join(root, alertRules)))(t)), -1)
	if rules := strings.Count(string(must.Get(os.ReadFile(filepath.Join(root, alertRules)))(t)), "- alert: "); len(runbooks) != rules || rules == 0 {
		t.Errorf("want a page for each of %d rules, got %d", rules, len(runbooks))
	}
	for _, m := range runbooks {
		checkLink(t, all, alertRules, ".", m[1])
	}
}

const alertRules = "deploy/monitoring/alerts.yaml"

func checkLink(t *testing.T, all map[string]*page, from, dir, link string) {
	t.Helper()
	path, anchor, hasAnchor := strings.Cut(link, "#")
	target := from
	if path != "" {
		target = filepath.Join(dir, path)
	}
	if _, err := os.Stat(filepath.Join(root, target)); err != nil {
		t.Errorf("%s: link to %s: there is no such file", from, link)
		return
	}
	if !hasAnchor {
		return
	}
	if to := all[target]; to == nil || !to.anchors[anchor] {
		t.Errorf("%s: link to %s: there is no such heading", from, link)
	}
}

// TestPathsInCommentsExist looks at the pages that code, manifests and scripts name.
func TestPathsInCommentsExist(t *testing.T) {
	named := regexp.MustCompile(`\bdocs/[\w/-]+\.md`)
	found := 0
	walkSources(t, func(path string, content []byte) {
		for _, name := range named.FindAllString(string(content), -1) {
			found++
			if _, err := os.Stat(filepath.Join(root, name)); err != nil {
				t.Errorf("%s names %s, which does not exist", path, name)
			}
		}
	})
	if found < 10 {
		t.Errorf("only %d names of pages were found", found)
	}
}
