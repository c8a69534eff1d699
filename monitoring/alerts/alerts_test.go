package alerts_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/rules"

	"github.com/carve-csi/carve/monitoring/alerts"
	"github.com/carve-csi/carve/monitoring/query"
	"github.com/carve-csi/carve/monitoring/reference"
)

const root = "../.."

var update = flag.Bool("update", false, "write the file that is made")

func read(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestTheObjectIsMadeOfThePlainRules is what make generate runs, too.
func TestTheObjectIsMadeOfThePlainRules(t *testing.T) {
	want, err := alerts.ToObject(read(t, alerts.Plain))
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(filepath.Join(root, alerts.Object), want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(read(t, alerts.Object), want) {
		t.Errorf("%s is not what is made of %s; run make generate", alerts.Object, alerts.Plain)
	}
	if _, err := alerts.ToObject([]byte("a: b\n")); err == nil {
		t.Error("a file without groups makes an object")
	}
}

func plainRules(t *testing.T) []rulefmt.Rule {
	t.Helper()
	groups, errs := rulefmt.Parse(read(t, alerts.Plain), false, model.LegacyValidation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
	if errs != nil {
		t.Fatal(errs)
	}
	var all []rulefmt.Rule
	for _, g := range groups.Groups {
		all = append(all, g.Rules...)
	}
	return all
}

func TestRulesAskForWhatThereIsAndSayWhatToDo(t *testing.T) {
	metrics, err := reference.Read(filepath.Join(root, reference.Page))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range plainRules(t) {
		if err := query.Check(metrics, r.Expr); err != nil {
			t.Errorf("%s: %v", r.Alert, err)
		}
		if severity := r.Labels["severity"]; severity != "critical" && severity != "warning" {
			t.Errorf("%s: severity: want critical or warning, got %q", r.Alert, severity)
		}
		if r.Annotations["summary"] == "" || r.Annotations["runbook_url"] == "" {
			t.Errorf("%s: want a summary and a runbook_url, got %v", r.Alert, r.Annotations)
		}
	}
}

// healthy is a cluster of two nodes and two controllers in which all is well: values by
// series, a minute apart, in Prometheus' notation for tests. A change comes at minute 60.
var healthy = map[string]string{
	`up{job="carve-system/carve",container="controller",node="n1",instance="a"}`: "1x300",
	`up{job="carve-system/carve",container="controller",node="n2",instance="b"}`: "1x300",
	`up{job="carve-system/carve",container="lvmd",node="n1",instance="c"}`:       "1x300",
	`up{job="carve-system/carve",container="lvmd",node="n2",instance="d"}`:       "1x300",
	`up{job="carve-system/carve",container="node",node="n1",instance="e"}`:       "1x300",
	`up{job="carve-system/carve",container="node",node="n2",instance="f"}`:       "1x300",
	`up{job="other",container="lvmd",node="n3",instance="g"}`:                    "0x300",

	`carve_controller_leading{instance="a"}`:                           "1x300",
	`carve_controller_leading{instance="b"}`:                           "0x300",
	`carve_controller_connected_nodes{instance="a"}`:                   "2x300",
	`carve_controller_connected_nodes{instance="b"}`:                   "2x300",
	`carve_controller_held_back_nodes{instance="a",cause="away"}`:      "0x300",
	`carve_controller_held_back_nodes{instance="a",cause="failing"}`:   "0x300",
	`carve_controller_refused_nodes{instance="a"}`:                     "0x300",
	`carve_controller_nodes_without_label{instance="a"}`:               "0x300",
	`carve_controller_missing_volumes{instance="a",cause="removed"}`:   "0x300",
	`carve_controller_audited_volumes{instance="a",standing="known"}`:  "7x300",
	`carve_controller_audited_volumes{instance="a",standing="orphan"}`: "0x300",
	`carve_controller_tainted_since_timestamp_seconds{instance="a"}`:   "0x300",
	`carve_controller_claims_total{instance="a",result="provisioned"}`: "0+3x300",
	`carve_controller_claims_total{instance="a",result="failed"}`:      "2x300",
	`carve_controller_deletes_total{instance="a",result="deleted"}`:    "0+3x300",
	`carve_controller_deletes_total{instance="a",result="failed"}`:     "1x300",
	`csi_plugin_operations_seconds_count{driver_name="carve.csi.local",node="n1",method_name="/csi.v1.Node/NodeStageVolume",grpc_status_code="OK"}`:         "0+9x300",
	`csi_plugin_operations_seconds_count{driver_name="carve.csi.local",node="n1",method_name="/csi.v1.Node/NodeStageVolume",grpc_status_code="Internal"}`:   "3x300",
	`csi_plugin_operations_seconds_count{driver_name="other.example.com",node="n1",method_name="/csi.v1.Node/NodeStageVolume",grpc_status_code="Internal"}`: "0+9x300",

	`carve_node_registered{node="n1"}`: "1x300",
	`carve_node_stuck{node="n1"}`:      "0x300",

	`carve_lvmd_lvm_responding{node="n1",group="vg"}`:                         "1x300",
	`carve_lvmd_stuck{node="n1"}`:                                             "0x300",
	`carve_lvmd_queue_refused_total{node="n1",group="vg"}`:                    "4x300",
	`carve_lvmd_rpc_seconds_count{node="n1",method="CreateVolume",code="OK"}`: "0+3x300",
	`carve_lvmd_rpc_seconds_count{node="n1",method="X",code="Unavailable"}`:   "2x300",
	`carve_lvmd_class_available_bytes{node="n1",class="local",group="vg"}`:    "50x300",
	`carve_lvmd_class_total_bytes{node="n1",class="local",group="vg"}`:        "100x300",
	`carve_lvmd_class_available_bytes{node="n2",class="local",group="vg"}`:    "0x300", // no group there yet
	`carve_lvmd_class_total_bytes{node="n2",class="local",group="vg"}`:        "0x300",
	`carve_lvmd_thin_data_percent{node="n1",pool="p"}`:                        "80x300",
	`carve_lvmd_thin_metadata_percent{node="n1",pool="p"}`:                    "80x300",
	`carve_lvmd_group_metadata_bytes{node="n1",group="vg"}`:                   "80x300",
	`carve_lvmd_group_metadata_limit_bytes{node="n1",group="vg"}`:             "100x300",
	`carve_lvmd_config_current{node="n1"}`:                                    "1x300",
	`carve_lvmd_wipe_backlog_bytes{node="n1",group="vg"}`:                     "0x30 1000-10x100 0x300",
}

// scenarios are what goes wrong, and which alerts fire then. None of them fires before, or
// before the trouble has lasted as long as the rule says.
var scenarios = map[string]struct {
	// changes are series that are otherwise; one with no values is not there.
	changes map[string]string
	// after is how long after the change the alerts fire, and quiet how long they do not.
	quiet, after time.Duration
	want         []string
}{
	"both replicas of the controller are down": {
		map[string]string{
			`up{job="carve-system/carve",container="controller",node="n1",instance="a"}`: "1x59 0x240",
			`up{job="carve-system/carve",container="controller",node="n2",instance="b"}`: "1x59 0x240",
			`carve_controller_leading{instance="a"}`:                                     "1x59 stale",
			`carve_controller_leading{instance="b"}`:                                     "0x59 stale",
			`carve_controller_connected_nodes{instance="a"}`:                             "2x59 stale",
			`carve_controller_connected_nodes{instance="b"}`:                             "2x59 stale",
		}, time.Minute, 6 * time.Minute,
		[]string{"CarveControllerDown critical", "CarveTargetDown warning n1", "CarveTargetDown warning n2"},
	},
	"the Deployment of the controller is gone, and nothing is scraped": {
		map[string]string{
			`up{job="carve-system/carve",container="controller",node="n1",instance="a"}`: "1x59 stale",
			`up{job="carve-system/carve",container="controller",node="n2",instance="b"}`: "1x59 stale",
			`carve_controller_leading{instance="a"}`:                                     "1x59 stale",
			`carve_controller_leading{instance="b"}`:                                     "0x59 stale",
			`carve_controller_connected_nodes{instance="a"}`:                             "2x59 stale",
			`carve_controller_connected_nodes{instance="b"}`:                             "2x59 stale",
		}, time.Minute, 6 * time.Minute, []string{"CarveControllerDown critical"},
	},
	"two controllers lead": {
		map[string]string{`carve_controller_leading{instance="b"}`: "0x59 1x240"}, time.Minute, 2 * time.Minute, []string{"CarveControllerDown critical"},
	},
	"the controller changes its leader": {
		map[string]string{
			`carve_controller_leading{instance="a"}`: "1x59 0x240", `carve_controller_leading{instance="b"}`: "0x60 1x240",
		}, time.Hour, time.Hour, nil,
	},
	"an agent does not answer": {
		map[string]string{`up{job="carve-system/carve",container="lvmd",node="n2",instance="d"}`: "1x59 0x240"},
		4 * time.Minute, 5 * time.Minute, []string{"CarveTargetDown warning n2"},
	},
	"the Pod of an agent is gone, and its targets with it": {
		map[string]string{
			`up{job="carve-system/carve",container="lvmd",node="n2",instance="d"}`: "1x59 stale",
			`up{job="carve-system/carve",container="node",node="n2",instance="f"}`: "1x59 stale",
			`carve_controller_connected_nodes{instance="a"}`:                       "2x59 1x240",
			`carve_controller_connected_nodes{instance="b"}`:                       "2x59 1x240",
			`carve_controller_held_back_nodes{instance="a",cause="away"}`:          "0x59 1x240",
			`carve_lvmd_class_available_bytes{node="n2",class="local",group="vg"}`: "0x59 stale",
			`carve_lvmd_class_total_bytes{node="n2",class="local",group="vg"}`:     "0x59 stale",
		}, 4 * time.Minute, 5 * time.Minute, []string{"CarveNodeCutOff warning"},
	},
	"an agent runs that never came to the controller": {
		map[string]string{`carve_controller_connected_nodes{instance="a"}`: "2x59 1x240", `carve_controller_connected_nodes{instance="b"}`: "2x59 1x240"},
		4 * time.Minute, 5 * time.Minute, []string{"CarveNodeCutOff warning"},
	},
	"the stand-by has fewer nodes for a while": {
		map[string]string{`carve_controller_connected_nodes{instance="b"}`: "2x59 0x240"}, time.Hour, time.Hour, nil,
	},
	"the kubelet forgot the plugin": {
		map[string]string{`carve_node_registered{node="n1"}`: "1x59 0x240"}, 4 * time.Minute, 5 * time.Minute, []string{"CarveNodeNotRegistered warning n1"},
	},
	"a node has another node's label": {
		map[string]string{`carve_controller_nodes_without_label{instance="a"}`: "0x59 1x240"}, 4 * time.Minute, 5 * time.Minute, []string{"CarveNodeNotLabelled warning"},
	},
	"mounts fail": {
		map[string]string{
			`csi_plugin_operations_seconds_count{driver_name="carve.csi.local",node="n1",method_name="/csi.v1.Node/NodeStageVolume",grpc_status_code="Internal"}`: "3x59 3+1x240",
		}, 5 * time.Minute, 14 * time.Minute, []string{"CarveMountsFail warning n1"},
	},
	"a mount fails once": {
		map[string]string{
			`csi_plugin_operations_seconds_count{driver_name="carve.csi.local",node="n1",method_name="/csi.v1.Node/NodeStageVolume",grpc_status_code="Internal"}`: "3x59 4x240",
		}, time.Hour, time.Hour, nil,
	},
	"claims fail": {
		map[string]string{`carve_controller_claims_total{instance="a",result="failed"}`: "2x59 2+1x240"},
		14 * time.Minute, 16 * time.Minute, []string{"CarveProvisioningFails warning"},
	},
	"a claim failed once": {
		map[string]string{`carve_controller_claims_total{instance="a",result="failed"}`: "2x59 3x240"}, 2 * time.Hour, 2 * time.Hour, nil,
	},
	"creating fails on a node": {
		map[string]string{`carve_controller_held_back_nodes{instance="a",cause="failing"}`: "0x59 1x240"},
		9 * time.Minute, 10 * time.Minute, []string{"CarveCreatingFails warning"},
	},
	"a node reports too much": {
		map[string]string{`carve_controller_refused_nodes{instance="a"}`: "0x59 1x240"}, 0, 0, []string{"CarveReportRefused warning"},
	},
	"a volume is missing": {
		map[string]string{`carve_controller_missing_volumes{instance="a",cause="removed"}`: "0x59 1x240"},
		time.Minute, 2 * time.Minute, []string{"CarveVolumeMissing critical"},
	},
	"lvmd finds a volume unhealthy": {
		map[string]string{`carve_lvmd_unhealthy_volumes{node="n1",class="local",condition="Degraded"}`: "_x60 1x240"},
		4 * time.Minute, 5 * time.Minute, []string{"CarveVolumeUnhealthy critical n1 Degraded"},
	},
	"the node plugin finds a volume unhealthy": {
		map[string]string{`carve_node_volume_conditions{node="n1",reason="ReadOnly"}`: "_x60 1x240"},
		4 * time.Minute, 5 * time.Minute, []string{"CarveVolumeUnhealthy critical n1 ReadOnly"},
	},
	"a class has a condition": {
		map[string]string{`carve_lvmd_class_condition{node="n2",class="local",condition="MissingDevice"}`: "_x60 1x240"},
		4 * time.Minute, 5 * time.Minute, []string{"CarveClassCondition warning n2 MissingDevice"},
	},
	"LVM does not answer": {
		map[string]string{`carve_lvmd_lvm_responding{node="n1",group="vg"}`: "1x59 0x240"}, 4 * time.Minute, 5 * time.Minute, []string{"CarveLVMHangs critical n1"},
	},
	"lvmd has commands that do not end": {
		map[string]string{`carve_lvmd_stuck{node="n1"}`: "0x59 1x240"}, 4 * time.Minute, 5 * time.Minute, []string{"CarveLVMHangs critical n1"},
	},
	"the node plugin has programs that do not end": {
		map[string]string{`carve_node_stuck{node="n1"}`: "0x59 1x240"}, 4 * time.Minute, 5 * time.Minute, []string{"CarveLVMHangs critical n1"},
	},
	"too much waits for a group": {
		map[string]string{`carve_lvmd_queue_refused_total{node="n1",group="vg"}`: "4x59 5x240"}, 0, 0, []string{"CarveQueueFull warning n1"},
	},
	"calls of lvmd fail again and again": {
		map[string]string{`carve_lvmd_rpc_seconds_count{node="n1",method="X",code="Unavailable"}`: "2x59 2+1x240"},
		9 * time.Minute, 12 * time.Minute, []string{"CarveDiskFailsSometimes warning n1"},
	},
	"a call of lvmd fails once": {
		map[string]string{`carve_lvmd_rpc_seconds_count{node="n1",method="X",code="Unavailable"}`: "2x59 3x240"}, time.Hour, time.Hour, nil,
	},
	"a class is nearly full": {
		map[string]string{`carve_lvmd_class_available_bytes{node="n1",class="local",group="vg"}`: "50x59 4x240"},
		14 * time.Minute, 15 * time.Minute, []string{"CarveClassNearlyFull warning n1"},
	},
	"a thin pool's data fills up": {
		map[string]string{`carve_lvmd_thin_data_percent{node="n1",pool="p"}`: "80x59 86x240"}, 4 * time.Minute, 5 * time.Minute, []string{"CarveThinPoolFills critical n1"},
	},
	"a thin pool's metadata fills up": {
		map[string]string{`carve_lvmd_thin_metadata_percent{node="n1",pool="p"}`: "80x59 86x240"}, 4 * time.Minute, 5 * time.Minute, []string{"CarveThinPoolFills critical n1"},
	},
	"a metadata area fills up": {
		map[string]string{`carve_lvmd_group_metadata_bytes{node="n1",group="vg"}`: "80x59 91x240"}, 0, 0, []string{"CarveMetadataNearlyFull warning n1"},
	},
	"a configuration is refused": {
		map[string]string{`carve_lvmd_config_current{node="n1"}`: "1x59 0x240"}, 0, 0, []string{"CarveConfigurationRefused warning n1"},
	},
	"wiping falls behind": {
		map[string]string{`carve_lvmd_wipe_backlog_bytes{node="n1",group="vg"}`: "0x59 1000+10x240"},
		time.Hour, 125 * time.Minute, []string{"CarveWipingFallsBehind warning n1"},
	},
	"wiping is slow, and catches up": {
		map[string]string{`carve_lvmd_wipe_backlog_bytes{node="n1",group="vg"}`: "0x59 5000-10x240"}, 150 * time.Minute, 150 * time.Minute, nil,
	},
	"volumes are not deleted": {
		map[string]string{`carve_controller_deletes_total{instance="a",result="failed"}`: "1x59 1+1x240"},
		14 * time.Minute, 17 * time.Minute, []string{"CarveVolumesNotDeleted warning"},
	},
	"there are orphans": {
		map[string]string{`carve_controller_audited_volumes{instance="a",standing="orphan"}`: "0x59 1x240"},
		59 * time.Minute, time.Hour, []string{"CarveOrphans warning"},
	},
	"a new node does not become ready": {
		map[string]string{`carve_controller_tainted_since_timestamp_seconds{instance="a"}`: "0x59 3600x240"}, 10 * time.Minute, 11 * time.Minute, []string{"CarveStartupTaintStays warning"},
	},
	"a new node becomes ready": {
		map[string]string{`carve_controller_tainted_since_timestamp_seconds{instance="a"}`: "0x59 3600x5 0x240"}, time.Hour, time.Hour, nil,
	},
	"nodes come for hours, and each becomes ready": {
		map[string]string{`carve_controller_tainted_since_timestamp_seconds{instance="a"}`: "0x59 3300+60x240"}, time.Hour, 3 * time.Hour, nil,
	},
}

// change is when the trouble begins.
const change = time.Hour

func TestAlertsFireInTroubleAndNotBefore(t *testing.T) {
	fired := map[string]bool{}
	for name, s := range scenarios {
		t.Run(name, func(t *testing.T) {
			series := maps.Clone(healthy)
			maps.Copy(series, s.changes)
			got := firing(t, series, change-time.Minute, change+s.quiet, change+s.after)
			if len(got[0]) != 0 {
				t.Errorf("before the change: want no alert, got %q", got[0])
			}
			if s.quiet != s.after && len(got[1]) != 0 {
				t.Errorf("%v after the change: want no alert yet, got %q", s.quiet, got[1])
			}
			if !slices.Equal(got[2], s.want) {
				t.Errorf("%v after the change: want %q, got %q", s.after, s.want, got[2])
			}
			for _, alert := range got[2] {
				fired[strings.Fields(alert)[0]] = true
			}
		})
	}
	for _, r := range plainRules(t) {
		if !fired[r.Alert] {
			t.Errorf("%s fires in no scenario", r.Alert)
		}
	}
}

func TestNoAlertFiresWhileAllIsWell(t *testing.T) {
	var times []time.Duration
	for at := time.Duration(0); at <= 5*time.Hour; at += time.Minute {
		times = append(times, at)
	}
	for i, alerts := range firing(t, healthy, times...) {
		if len(alerts) != 0 {
			t.Errorf("after %v: %q", times[i], alerts)
		}
	}
}

// firing runs the rules each minute, as Prometheus does, and returns the alerts that fire at
// each of the times: their names, severities, nodes and conditions.
func firing(t *testing.T, series map[string]string, times ...time.Duration) [][]string {
	t.Helper()
	var input strings.Builder
	input.WriteString("load 1m\n")
	for _, name := range slices.Sorted(maps.Keys(series)) {
		fmt.Fprintf(&input, "  %s %s\n", name, series[name])
	}
	p := parser.NewParser(parser.Options{})
	world, err := promqltest.NewLazyLoader(input.String(), promqltest.LazyLoaderOpts{EnableAtModifier: true, EnableNegativeOffset: true, Parser: p})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := world.Close(); err != nil {
			t.Error(err)
		}
	}()
	manager := rules.NewManager(&rules.ManagerOptions{
		QueryFunc: rules.EngineQueryFunc(world.QueryEngine(), world.Storage()), AppendableV2: world.Storage(), Context: t.Context(),
		NotifyFunc: func(context.Context, string, ...*rules.Alert) {}, Logger: promslog.NewNopLogger(), Parser: p,
	})
	groups, errs := manager.LoadGroups(time.Minute, labels.EmptyLabels(), "", nil, false, filepath.Join(root, alerts.Plain))
	if errs != nil {
		t.Fatal(errs)
	}
	found := make([][]string, len(times))
	for minute := time.Duration(0); minute <= slices.Max(times); minute += time.Minute {
		now := time.Unix(0, 0).UTC().Add(minute)
		world.WithSamplesTill(now, func(err error) {
			if err != nil {
				t.Fatal(err)
			}
			for _, g := range groups {
				g.Eval(t.Context(), now)
			}
		})
		for i, at := range times {
			if at == minute {
				found[i] = describe(t, groups)
			}
		}
	}
	return found
}

// describe returns the alerts that fire, sorted.
func describe(t *testing.T, groups map[string]*rules.Group) []string {
	t.Helper()
	var found []string
	for _, g := range groups {
		for _, r := range g.Rules() {
			if err := r.LastError(); err != nil {
				t.Fatalf("%s: %v", r.Name(), err)
			}
			for _, a := range r.(*rules.AlertingRule).ActiveAlerts() {
				if a.State != rules.StateFiring {
					continue
				}
				if summary := a.Annotations.Get("summary"); summary == "" || strings.Contains(summary, "  ") || strings.HasSuffix(summary, " ") {
					t.Errorf("%s: a label that the summary names is not there: %q", r.Name(), summary)
				}
				words := []string{r.Name(), a.Labels.Get("severity"), a.Labels.Get("node"), a.Labels.Get("condition") + a.Labels.Get("reason")}
				found = append(found, strings.Join(slices.DeleteFunc(words, func(w string) bool { return w == "" }), " "))
			}
		}
	}
	slices.Sort(found)
	return found
}
