package dashboards_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/util/teststorage"

	"github.com/carve-csi/carve/monitoring/dashboards"
	"github.com/carve-csi/carve/monitoring/query"
	"github.com/carve-csi/carve/monitoring/reference"
)

const root = "../.."

var update = flag.Bool("update", false, "write the dashboards")

// TestTheFilesAreWhatIsMade is what make generate runs, too.
func TestTheFilesAreWhatIsMade(t *testing.T) {
	for _, d := range dashboards.All() {
		want, err := d.JSON()
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Join(root, dashboards.Dir, d.Name+".json")
		if *update {
			if err := os.WriteFile(name, want, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not current; run make generate", name)
		}
	}
}

// variables takes the place of what Grafana puts in.
var variables = strings.NewReplacer("$__rate_interval", "5m", "$node", ".*", "$namespace", ".*")

func metrics(t *testing.T) map[string][]reference.Metric {
	t.Helper()
	found, err := reference.Read(filepath.Join(root, reference.Page))
	if err != nil {
		t.Fatal(err)
	}
	if len(found) < 40 {
		t.Fatalf("only %d metrics were found", len(found))
	}
	return found
}

func TestPanelsAskForWhatThereIs(t *testing.T) {
	known := metrics(t)
	for _, d := range dashboards.All() {
		for _, v := range d.Variables {
			if err := query.Check(known, fmt.Sprintf("sum by (%s) (%s)", v.Key, v.Of)); err != nil {
				t.Errorf("%s: the variable %s: %v", d.Name, v.Name, err)
			}
		}
		for _, r := range d.Rows {
			for _, p := range r.Panels {
				for _, q := range p.Queries {
					if err := query.Check(known, variables.Replace(q.Expr)); err != nil {
						t.Errorf("%s: %s: %v", d.Name, p.Title, err)
					}
				}
			}
		}
	}
}

// values are those that questions ask for by name; other labels have one value, their name.
var values = map[string][]string{
	"driver_name": {"carve.csi.local"}, "node": {"n1"}, "device": {"dm-3"}, "namespace": {"shop"}, "owner_namespace": {"shop"},
	"persistentvolumeclaim": {"cart"}, "state": {"ready"}, "standing": {"orphan"}, "command": {"lvcreate"}, "method": {"CreateVolume"},
	"method_name": {"/csi.v1.Controller/CreateVolume", "/csi.v1.Node/NodeStageVolume", "/csi.v1.Node/NodePublishVolume"},
	"inline_pod":  {""},
	"alertname":   {"CarveOrphans"}, "alertstate": {"firing"},
}

// world holds one series of every metric for each of the values: counters that grow, gauges
// that stay. Beside them, the node has two inline volumes without a device, as while a disk is missing.
func world(t *testing.T) *teststorage.TestStorage {
	t.Helper()
	var input strings.Builder
	input.WriteString("load 1m\n")
	add := func(m reference.Metric) {
		sets := [][]string{{fmt.Sprintf("container=%q,node=%q,namespace=%q", m.Container, "n1", values["namespace"][0])}}
		for _, label := range m.Labels {
			choices := values[label]
			if choices == nil {
				choices = []string{label}
			}
			var more [][]string
			for _, set := range sets {
				for _, choice := range choices {
					more = append(more, append(slices.Clone(set), fmt.Sprintf("%s=%q", label, choice)))
				}
			}
			sets = more
		}
		for _, set := range sets {
			at := strings.Join(set, ",")
			switch m.Kind {
			case reference.Histogram:
				for i, bound := range []string{"0.01", "1", "+Inf"} {
					fmt.Fprintf(&input, "  %s_bucket{%s,le=%q} 0+%dx120\n", m.Name, at, bound, i+1)
				}
				fmt.Fprintf(&input, "  %s_count{%s} 0+3x120\n  %s_sum{%s} 0+2x120\n", m.Name, at, m.Name, at)
			case reference.Counter:
				fmt.Fprintf(&input, "  %s{%s} 0+3x120\n", m.Name, at)
			default:
				fmt.Fprintf(&input, "  %s{%s} 5x120\n", m.Name, at)
			}
		}
	}
	for _, found := range metrics(t) {
		for _, m := range found {
			add(m)
		}
	}
	for _, m := range query.Foreign {
		add(m)
	}
	for _, v := range []string{"v1", "v2"} {
		fmt.Fprintf(&input, "  carve_lvmd_volume_info{container=\"lvmd\",node=\"n1\",namespace=\"carve-system\",volume=%[1]q,owner_namespace=\"shop\",inline_pod=%[1]q,class=\"class\",group=\"group\"} 1x120\n", v)
	}
	return promqltest.LoadedStorage(t, input.String())
}

var inLegend = regexp.MustCompile(`{{(\w+)}}`)

// TestEveryPanelShowsSomething asks every question of a world in which every metric is there,
// and wants a number, and the labels that the legend names.
func TestEveryPanelShowsSomething(t *testing.T) {
	storage := world(t)
	engine := promqltest.NewTestEngine(t, false, 0, 1_000_000)
	asked := 0
	for _, d := range dashboards.All() {
		for _, r := range d.Rows {
			for _, p := range r.Panels {
				for _, q := range p.Queries {
					asked++
					run, err := engine.NewInstantQuery(t.Context(), storage, nil, variables.Replace(q.Expr), time.Unix(0, 0).Add(time.Hour))
					if err != nil {
						t.Fatalf("%s: %s: %v", d.Name, p.Title, err)
					}
					series, err := run.Exec(t.Context()).Vector()
					if err != nil || len(series) == 0 {
						t.Errorf("%s: %s: want series, got %v, %v", d.Name, p.Title, series, err)
					}
					for _, sample := range series {
						if math.IsNaN(sample.F) {
							t.Errorf("%s: %s: want a number, got %v", d.Name, p.Title, sample)
						}
					}
					checkLegend(t, d.Name+": "+p.Title, q.Legend, p.Kind, series)
					run.Close()
				}
			}
		}
	}
	if asked < 60 {
		t.Errorf("only %d questions were found", asked)
	}
}

// TestTheQuestionsOfThePageHaveAnswers asks what the page of monitoring asks.
func TestTheQuestionsOfThePageHaveAnswers(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs/how-to/monitoring.md"))
	if err != nil {
		t.Fatal(err)
	}
	questions := regexp.MustCompile("(?s)```promql\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	if len(questions) < 2 {
		t.Fatalf("questions: want two or more, got %q", questions)
	}
	storage, known := world(t), metrics(t)
	engine := promqltest.NewTestEngine(t, false, 0, 1_000_000)
	for _, q := range questions {
		if err := query.Check(known, q[1]); err != nil {
			t.Error(err)
		}
		run, err := engine.NewInstantQuery(t.Context(), storage, nil, q[1], time.Unix(0, 0).Add(time.Hour))
		if err != nil {
			t.Fatalf("%s: %v", q[1], err)
		}
		series, err := run.Exec(t.Context()).Vector()
		if err != nil || len(series) != 1 {
			t.Errorf("%s\nwant one series, got %v, %v", q[1], series, err)
		}
		for _, sample := range series {
			for _, label := range []string{"node", "device", "owner_namespace", "persistentvolumeclaim"} {
				if !slices.Contains(values[label], sample.Metric.Get(label)) {
					t.Errorf("%s\nwant one of %q as %s, got %v", q[1], values[label], label, sample.Metric)
				}
			}
		}
		run.Close()
	}
}

// checkLegend wants each label that a legend names, and different names for the series of a graph.
func checkLegend(t *testing.T, panel, legend string, kind dashboards.Kind, series promql.Vector) {
	t.Helper()
	names := map[string]bool{}
	for _, sample := range series {
		name := inLegend.ReplaceAllStringFunc(legend, func(label string) string { return sample.Metric.Get(strings.Trim(label, "{}")) })
		if names[name] && kind == dashboards.Graph {
			t.Errorf("%s: two series are named %q", panel, name)
		}
		names[name] = true
		for _, m := range inLegend.FindAllStringSubmatch(legend, -1) {
			if !sample.Metric.Has(m[1]) && m[1] != "inline_pod" {
				t.Errorf("%s: the legend names %s, which %v does not have", panel, m[1], sample.Metric)
			}
		}
		if legend == "" && kind == dashboards.Graph && sample.Metric.Len() > 0 {
			t.Errorf("%s: a graph without a legend has series %v", panel, labels.New())
		}
	}
}

// TestPanelsStandBesideEachOther reads the files as Grafana does and wants every panel on the
// grid, none over another, no gap below a row's heading, and ids that differ.
func TestPanelsStandBesideEachOther(t *testing.T) {
	for _, d := range dashboards.All() {
		text, err := os.ReadFile(filepath.Join(root, dashboards.Dir, d.Name+".json"))
		if err != nil {
			t.Fatal(err)
		}
		var read dashboard.Dashboard //nolint:staticcheck // SA1019: its successor is read by Grafana 12 and later only
		if err := json.Unmarshal(text, &read); err != nil {
			t.Fatal(err)
		}
		if *read.Uid != "carve-"+d.Name || *read.Title != d.Title {
			t.Errorf("%s: uid %s, title %s", d.Name, *read.Uid, *read.Title)
		}
		taken, ids, lowest := map[[2]uint32]string{}, map[uint32]bool{}, uint32(0)
		place := func(title string, id uint32, at dashboard.GridPos) {
			if at.W == 0 || at.H == 0 || at.X+at.W > dashboards.Width || ids[id] {
				t.Errorf("%s: %s is at %+v with the id %d", d.Name, title, at, id)
			}
			ids[id] = true
			for x := at.X; x < at.X+at.W; x++ {
				for y := at.Y; y < at.Y+at.H; y++ {
					if other := taken[[2]uint32{x, y}]; other != "" {
						t.Fatalf("%s: %s is over %s", d.Name, title, other)
					}
					taken[[2]uint32{x, y}] = title
				}
			}
			lowest = max(lowest, at.Y+at.H)
		}
		for _, p := range read.Panels {
			if p.RowPanel != nil {
				place(*p.RowPanel.Title, p.RowPanel.Id, *p.RowPanel.GridPos)
			} else {
				place(*p.Panel.Title, *p.Panel.Id, *p.Panel.GridPos)
			}
		}
		for x := range uint32(dashboards.Width) {
			for y := range lowest {
				if taken[[2]uint32{x, y}] == "" {
					t.Fatalf("%s: nothing is at column %d, line %d", d.Name, x, y)
				}
			}
		}
	}
}
