package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/carve-csi/carve/pkg/must"
)

var (
	// destroys are commands that make or remove what LVM may merely not show; "wipefs: …" is an error of one that ran.
	destroys = regexp.MustCompile(`\b(vgcreate|pvcreate|lvremove|vgremove|pvremove|vgreduce|wipefs|blkdiscard|dmsetup remove)(?:[^:\w]|$)`)
	// looks are commands that show what is there.
	looks = regexp.MustCompile(`\b(vgs|pvs|lvs|lsblk|pvck|hexdump)\b|looking for`)
)

// blind returns the first command in a text that destroys and that no look precedes.
func blind(text string) string {
	at := destroys.FindStringSubmatchIndex(text)
	if at == nil || looks.MatchString(text[:at[0]]) {
		return ""
	}
	return text[at[2]:at[3]]
}

// A group, disk or volume that is not seen may be exported, foreign, filtered or away: who makes or removes one on
// the advice of a message loses data. So a look comes before it in each message, and in each section of the page.
func TestAdviceLooksBeforeItDestroys(t *testing.T) {
	found := 0
	check := func(where, text string) {
		if destroys.MatchString(text) {
			found++
		}
		if command := blind(text); command != "" {
			t.Errorf("%s advises %s without naming first what shows whether it is right (vgs, pvs, lvs, lsblk): %q", where, command, text)
		}
	}
	walkSources(t, func(path string, content []byte) {
		folder, _, _ := strings.Cut(path, "/")
		if folder != "api" && folder != "cmd" && folder != "pkg" || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return
		}
		files := token.NewFileSet()
		file := must.Get(parser.ParseFile(files, path, content, parser.SkipObjectResolution))(t)
		if strings.HasSuffix(file.Name.Name, "fake") || strings.HasSuffix(file.Name.Name, "test") {
			return
		}
		ast.Inspect(file, func(n ast.Node) bool {
			expression, ok := n.(ast.Expr)
			if !ok {
				return true
			}
			text, whole := literal(expression)
			if strings.Contains(text, " ") {
				check(files.Position(n.Pos()).String(), text)
			}
			return !whole
		})
	})
	const page = "docs/how-to/troubleshooting.md"
	for _, section := range regexp.MustCompile(`(?m)^##+ .*$`).Split(string(pages(t)[page].source), -1) {
		check(page, section)
	}
	if found < 15 {
		t.Errorf("only %d texts have such a command", found)
	}
}

// literal returns the text of a string, and of strings that are added up; what they are added to is left out. It
// reports whether the expression is one of these.
func literal(e ast.Expr) (text string, ok bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(e.Value)
		return text, e.Kind == token.STRING && err == nil
	case *ast.BinaryExpr:
		left, leftOK := literal(e.X)
		right, rightOK := literal(e.Y)
		return left + right, e.Op == token.ADD && (leftOK || rightOK)
	}
	return "", false
}
