package docs

import (
	"bytes"
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"
	"go.yaml.in/yaml/v3"

	"github.com/carve-csi/carve/api/conditions"
	"github.com/carve-csi/carve/api/config"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller"
	"github.com/carve-csi/carve/pkg/controller/audit"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/controller/spec"
	"github.com/carve-csi/carve/pkg/driver"
	"github.com/carve-csi/carve/pkg/lvmd"
	"github.com/carve-csi/carve/pkg/must"
)

// root is the folder of the repository.
const root = ".."

// page is a Markdown file.
type page struct {
	path    string // below root
	source  []byte
	anchors map[string]bool
	links   []string
	// blocks are the fenced blocks, code is what stands in code spans outside of them.
	blocks []block
	code   []string
}

// block is a fenced block with its language.
type block struct{ language, text string }

func (p *page) generated() bool { return bytes.HasPrefix(p.source, []byte("<!-- Generated")) }

// githubIDs makes the anchors of headings as GitHub does.
type githubIDs struct{ seen map[string]int }

func (g *githubIDs) Generate(heading []byte, _ ast.NodeKind) []byte {
	var id strings.Builder
	for _, r := range strings.ToLower(string(heading)) {
		switch {
		case r == ' ':
			id.WriteByte('-')
		case r == '-' || r == '_' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r > 127:
			id.WriteRune(r)
		}
	}
	n := g.seen[id.String()]
	g.seen[id.String()]++
	if n > 0 {
		fmt.Fprintf(&id, "-%d", n)
	}
	return []byte(id.String())
}

func (g *githubIDs) Put([]byte) {}

func pages(t *testing.T) map[string]*page {
	t.Helper()
	all := map[string]*page{}
	var files []string
	must.Succeed(t, filepath.WalkDir(filepath.Join(root, "docs"), func(path string, _ fs.DirEntry, err error) error {
		if filepath.Ext(path) == ".md" {
			files = append(files, path)
		}
		return err
	}))
	files = append(files, must.Get(filepath.Glob(filepath.Join(root, "*.md")))(t)...)
	for _, file := range files {
		p := &page{path: must.Get(filepath.Rel(root, file))(t), source: must.Get(os.ReadFile(file))(t), anchors: map[string]bool{}}
		p.parse(t)
		all[p.path] = p
	}
	if len(all) < 40 {
		t.Fatalf("only %d pages were found", len(all))
	}
	return all
}

func (p *page) parse(t *testing.T) {
	t.Helper()
	markdown := goldmark.New(goldmark.WithExtensions(extension.Table), goldmark.WithParserOptions(parser.WithAutoHeadingID()))
	document := markdown.Parser().Parse(text.NewReader(p.source), parser.WithContext(parser.NewContext(parser.WithIDs(&githubIDs{map[string]int{}}))))
	must.Succeed(t, ast.Walk(document, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.Heading:
			if id, ok := n.AttributeString("id"); ok {
				p.anchors[string(id.([]byte))] = true
			}
		case *ast.Link:
			p.links = append(p.links, string(n.Destination))
		case *ast.FencedCodeBlock:
			p.blocks = append(p.blocks, block{string(n.Language(p.source)), string(n.Lines().Value(p.source))})
		case *ast.CodeSpan:
			var span []byte
			for c := n.FirstChild(); c != nil; c = c.NextSibling() {
				if segment, ok := c.(*ast.Text); ok {
					span = append(span, segment.Value(p.source)...)
				}
			}
			p.code = append(p.code, string(span))
		}
		return ast.WalkContinue, nil
	}))
}

// home is the address of the repository, as the chart has it.
func home(t *testing.T) string {
	t.Helper()
	m := regexp.MustCompile(`(?m)^home: (\S+)$`).FindSubmatch(must.Get(os.ReadFile(filepath.Join(root, "deploy/chart/carve/Chart.yaml")))(t))
	if m == nil {
		t.Fatal("the chart names no home")
	}
	return string(m[1])
}

func walkSources(t *testing.T, look func(path string, content []byte)) {
	t.Helper()
	must.Succeed(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		if entry.IsDir() {
			if path != root && (strings.HasPrefix(name, ".") && name != ".ci" || name == "bin") {
				return filepath.SkipDir
			}
			return nil
		}
		if slices.Contains([]string{".go", ".yaml", ".proto", ".service", ".yml"}, filepath.Ext(name)) || name == "Makefile" || name == "Dockerfile" {
			relative, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			look(relative, content)
		}
		return nil
	}))
}

func TestEveryYAMLBlockIsValid(t *testing.T) {
	configurations, parameters := 0, map[string]bool{}
	for _, p := range spec.Parameters() {
		parameters[p.Key] = true
	}
	check := func(path, content string) {
		decoder := yaml.NewDecoder(strings.NewReader(content))
		for {
			var document map[string]any
			err := decoder.Decode(&document)
			if err != nil {
				if err.Error() != "EOF" {
					t.Errorf("%s: %v in\n%s", path, err, content)
				}
				return
			}
			_, classes := document["deviceClasses"]
			_, groups := document["volumeGroups"]
			_, devices := document["devices"]
			if classes || groups || devices {
				configurations++
				if _, err := config.Parse(path, []byte(wholeConfiguration(document, content))); err != nil {
					t.Errorf("%s: %v", path, err)
				}
			}
			values, _ := document["parameters"].(map[string]any)
			for key := range values {
				if document["kind"] != "VolumeSnapshotClass" && !parameters[key] {
					t.Errorf("%s: there is no StorageClass parameter %s", path, key)
				}
			}
		}
	}
	for _, p := range pages(t) {
		for _, b := range p.blocks {
			if b.language == "yaml" {
				check(p.path, b.text)
			}
		}
	}
	must.Succeed(t, filepath.WalkDir(filepath.Join(root, "deploy"), func(path string, _ fs.DirEntry, err error) error {
		if err == nil && filepath.Ext(path) == ".yaml" && filepath.Base(filepath.Dir(path)) != "templates" {
			var content []byte
			content, err = os.ReadFile(path)
			check(path, string(content))
		}
		return err
	}))
	if configurations < 8 {
		t.Errorf("only %d configurations were found", configurations)
	}
}

// wholeConfiguration adds to a part of a configuration what every one must have.
func wholeConfiguration(document map[string]any, content string) string {
	if document["kind"] == nil {
		content = fmt.Sprintf("apiVersion: %s\nkind: %s\n%s", config.APIVersion, config.Kind, content)
	}
	if document["deviceClasses"] == nil {
		content += "\ndeviceClasses: [{name: local, volumeGroup: carve}]\n"
	}
	return content
}

func TestEveryMetricExists(t *testing.T) {
	exist := map[string]bool{}
	for _, rows := range [][][]string{describe(lvmd.NewMetrics().Registry.Describe), describe(driver.NewMetrics().Registry.Describe), describe(controller.DescribeMetrics)} {
		for _, row := range rows {
			exist[strings.Trim(row[0], "`")] = true
		}
	}
	named := regexp.MustCompile(`\b(?:carve_(?:lvmd|node|controller|ops)|csi_(?:plugin|sidecar))_[a-z_]*[a-z]\b`)
	found := 0
	check := func(path string, content []byte) {
		for _, name := range named.FindAllString(string(content), -1) {
			found++
			series := name
			for _, suffix := range []string{"_count", "_sum", "_bucket"} {
				series = strings.TrimSuffix(series, suffix)
			}
			if !exist[series] {
				t.Errorf("%s names the metric %s, which does not exist", path, name)
			}
		}
	}
	for _, p := range pages(t) {
		check(p.path, p.source)
	}
	check(alertRules, must.Get(os.ReadFile(filepath.Join(root, alertRules)))(t))
	dashboards := must.Get(filepath.Glob(filepath.Join(root, "deploy/components/grafana-dashboards/*.json")))(t)
	if len(dashboards) < 4 {
		t.Errorf("only the dashboards %q were found", dashboards)
	}
	for _, dashboard := range dashboards {
		check(dashboard, must.Get(os.ReadFile(dashboard))(t))
	}
	if found < 180 {
		t.Errorf("only %d names of metrics were found", found)
	}
}

// foreignWords are words in camel case that pages name of Kubernetes and others.
var foreignWords = []string{
	"LogicalVolume", "StorageCapacityScoring", "SELinuxMount", "MostAllocated", "WaitForFirstConsumer", "ReadWriteOnce", "ReadWriteOncePod", "FailedMount", "FailedMapVolume", "ContainerCreating", "FailedScheduling", "OutOfcpu", "OutOfmemory", "VolumeResizeFailed",
	"SnapshotCreationFailed", "SnapshotDeleteError", "VolumeBinding", "NoExecute", "NoSchedule", "RuntimeDefault", "ResourceExhausted", "DeadlineExceeded",
	"InvalidArgument", "NotFound", "AlreadyExists", "OutOfRange", "FailedPrecondition", "NodeGetVolumeHealth", "NodeGetStorageHealth",
	"CreateVolume", "DeleteVolume", "ControllerExpandVolume", "ControllerModifyVolume", "VolumeAttributesClass", "ControllerGetVolume", "ListVolumes", "ValidateVolumeCapabilities",
	"GetCapacity", "CreateSnapshot", "DeleteSnapshot", "GetSnapshot", "ListSnapshots", "ReadWritePaths", "IPAddressAllow", "RandomScenario", "LvmdConfig",
	"IsCorruptedMnt", "ReleaseLeaderElectionOnExit", "DisruptionBlocked", "MutablePVNodeAffinity", "DeletionCandidateOfClusterAutoscaler",
}

// TestEveryConditionAndEventExists looks at code spans that are one word in camel case.
func TestEveryConditionAndEventExists(t *testing.T) {
	known := append(slices.Clone(foreignWords), audit.ReasonNodeAway)
	for _, c := range conditions.All {
		known = append(known, c.Type)
	}
	for _, e := range cluster.EventReasons {
		known = append(known, e.Reason)
	}
	for _, e := range names.ErrorReasons {
		known = append(known, e.Code)
	}
	for _, m := range regexp.MustCompile(`alert: (\w+)`).FindAllStringSubmatch(string(must.Get(os.ReadFile(filepath.Join(root, alertRules)))(t)), -1) {
		known = append(known, m[1])
	}
	camel := regexp.MustCompile(`^[A-Z][a-z]+(?:[A-Z]+[a-z]*)+$`)
	found := 0
	for _, p := range pages(t) {
		for _, code := range p.code {
			if !camel.MatchString(strings.TrimSuffix(code, "=")) {
				continue
			}
			found++
			if !slices.Contains(known, strings.TrimSuffix(code, "=")) {
				t.Errorf("%s: %s is no condition, Event or known word", p.path, code)
			}
		}
	}
	if found < 40 {
		t.Errorf("only %d words were found", found)
	}
}

// TestErrorsHaveTheCodesOfTheTable holds the places where lvmd makes errors against
// names.ErrorReasons.
func TestErrorsHaveTheCodesOfTheTable(t *testing.T) {
	made := regexp.MustCompile(`codes\.(\w+),\s+(?:reason: )?names\.(Reason\w+)`)
	constant := regexp.MustCompile(`(Reason\w+)\s+= "(\w+)"`)
	reasons := map[string]string{}
	for _, m := range constant.FindAllStringSubmatch(string(must.Get(os.ReadFile(filepath.Join(root, "api/names/names.go")))(t)), -1) {
		reasons[m[1]] = m[2]
	}
	if len(reasons) != len(names.ErrorReasons) {
		t.Errorf("%d reasons are declared and %d are in the table", len(reasons), len(names.ErrorReasons))
	}
	table := map[string]string{}
	for _, e := range names.ErrorReasons {
		table[e.Reason] = e.Code
	}
	used := map[string]bool{}
	walkSources(t, func(path string, content []byte) {
		if !strings.HasPrefix(path, "pkg/lvmd/") || strings.HasPrefix(path, "pkg/lvmd/lvmdfake/") || strings.HasSuffix(path, "_test.go") {
			return
		}
		for _, m := range made.FindAllStringSubmatch(string(content), -1) {
			used[m[2]] = true
			if table[reasons[m[2]]] != m[1] {
				t.Errorf("%s: %s comes with %s; the table says %s", path, m[2], m[1], table[reasons[m[2]]])
			}
		}
	})
	if len(used) < len(reasons)-1 {
		t.Errorf("only %d of %d reasons were found", len(used), len(reasons))
	}
}

// TestConditionsComeFromTheTable looks for types of conditions that lvmd and the node plugin
// write by hand.
func TestConditionsComeFromTheTable(t *testing.T) {
	literal := regexp.MustCompile(`\b(?:condition\(|add\(|finding\{)"([A-Z]\w+)"`)
	constants := regexp.MustCompile(`\bconditions\.[A-Z]\w+`)
	used := map[string]bool{}
	walkSources(t, func(path string, content []byte) {
		if strings.HasSuffix(path, "_test.go") || !strings.HasPrefix(path, "pkg/lvmd/") && !strings.HasPrefix(path, "pkg/driver/") {
			return
		}
		for _, m := range literal.FindAllStringSubmatch(string(content), -1) {
			t.Errorf("%s: %s is not taken from api/conditions", path, m[1])
		}
		for _, name := range constants.FindAllString(string(content), -1) {
			used[strings.TrimPrefix(name, "conditions.")] = true
		}
	})
	for _, c := range conditions.All {
		if !used[c.Type] {
			t.Errorf("nothing reports the condition %s", c.Type)
		}
	}
}

// TestTheMapNamesEveryPackage holds the table of ARCHITECTURE.md against the packages of the
// product. That what it names exists is looked at by TestEveryCommandExists.
func TestTheMapNamesEveryPackage(t *testing.T) {
	named := string(pages(t)["ARCHITECTURE.md"].source)
	forTests := regexp.MustCompile(`(?:fake\w*|test|^must|/conformance)$`)
	packages := map[string]bool{}
	walkSources(t, func(path string, _ []byte) {
		folder := filepath.Dir(path)
		product := strings.HasPrefix(path, "pkg/") || strings.HasPrefix(path, "cmd/") || strings.HasPrefix(path, "api/")
		if product && strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
			packages[folder] = true
		}
	})
	for folder := range packages {
		if !forTests.MatchString(strings.TrimPrefix(folder, "pkg/")) && !strings.Contains(named, "`"+folder+"`") {
			t.Errorf("ARCHITECTURE.md does not say what %s is for", folder)
		}
	}
	if len(packages) < 40 {
		t.Errorf("only %d packages were found", len(packages))
	}
}

// TestTheREADMEShowsTheShippedStorageClass compares the two.
func TestTheREADMEShowsTheShippedStorageClass(t *testing.T) {
	var shipped map[string]any
	must.Succeed(t, yaml.Unmarshal(must.Get(os.ReadFile(filepath.Join(root, "deploy/base/storageclass.yaml")))(t), &shipped))
	for _, b := range pages(t)["README.md"].blocks {
		var shown map[string]any
		if b.language != "yaml" {
			continue
		}
		must.Succeed(t, yaml.Unmarshal([]byte(b.text), &shown))
		if shown["kind"] == "StorageClass" {
			if !reflect.DeepEqual(shown, shipped) {
				t.Errorf("the README shows\n%v\nand shipped is\n%v", shown, shipped)
			}
			return
		}
	}
	t.Error("the README shows no StorageClass")
}

// asks is how often the kubelet asks for a node's number of volumes, as pages say it.
var asks = regexp.MustCompile(`kubelet asks (?:for the number )?(?:every (\d+) seconds|once a minute)`)

// TestPagesSayHowOftenTheKubeletAsks compares them with the shipped CSIDriver.
func TestPagesSayHowOftenTheKubeletAsks(t *testing.T) {
	var driver struct {
		Spec struct {
			Period string `yaml:"nodeAllocatableUpdatePeriodSeconds"`
		}
	}
	must.Succeed(t, yaml.Unmarshal(must.Get(os.ReadFile(filepath.Join(root, "deploy/base/csidriver.yaml")))(t), &driver))
	seen := 0
	for name, p := range pages(t) {
		for _, found := range asks.FindAllSubmatch(p.source, -1) {
			seen++
			if got := cmp.Or(string(found[1]), "60"); got != driver.Spec.Period {
				t.Errorf("%s: %q, but the CSIDriver says %s seconds", name, found[0], driver.Spec.Period)
			}
		}
	}
	if seen < 2 {
		t.Errorf("%d pages say how often the kubelet asks, want 2", seen)
	}
}
