//go:build !kernel

package lvmd

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// samples are the metrics at this moment, as "name{label=value,…}" without the
// prefix that all have; of histograms, how much they counted.
func samples(t testing.TB, s *Service) map[string]float64 {
	t.Helper()
	families := must.Get(s.metrics.Registry.Gather())(t)
	found := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			name := strings.TrimPrefix(f.GetName(), "carve_lvmd_")
			if len(labels) > 0 {
				name += "{" + strings.Join(labels, ",") + "}"
			}
			found[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return found
}

// wantSamples compares some of the metrics with what they should be.
func wantSamples(t testing.TB, s *Service, want map[string]float64) {
	t.Helper()
	found := samples(t, s)
	for name, value := range want {
		if got, ok := found[name]; !ok || got != value {
			t.Errorf("%s is %v (present: %v), want %v", name, got, ok, value)
		}
	}
}

func TestMetricsTellOfSizesVolumesAndTheJournal(t *testing.T) {
	m := newMachine(t)
	m.fake.SetMetadataLimit(testGroup, 1<<20)
	m.config = "- {name: local, default: true, volumeGroup: carve, reserve: 8Mi}\n"
	d := m.start(t)
	d.create(request("one", 3))
	d.create(fsRequest("two", 5, "ext4"))
	left := float64((testTotal - 8) * testExtent)
	wantSamples(t, d.Service, map[string]float64{
		"class_total_bytes{class=local,group=carve}":          float64(testTotal * testExtent),
		"class_available_bytes{class=local,group=carve}":      left - 8<<20,
		"class_maximum_volume_bytes{class=local,group=carve}": left - 8<<20,
		"group_total_bytes{group=carve}":                      float64(testTotal * testExtent),
		"group_free_bytes{group=carve}":                       left,
		"group_missing_devices{group=carve}":                  0,
		"group_metadata_limit_bytes{group=carve}":             1 << 20,
		"volumes{class=local,state=ready}":                    2,
		"volumes{class=local,state=creating}":                 0,
		"volumes{class=local,state=deleting}":                 0,
		"volumes{class=local,state=unfinished}":               0,
		"wipe_backlog_bytes{group=carve}":                     0,
		"queue_depth{group=carve}":                            0,
		"queue_callers{group=carve}":                          0,
		"queue_refused_total{group=carve}":                    0,
		"lvm_responding{group=carve}":                         1,
		"config_current":                                      1,
		"rpc_seconds{code=OK,method=CreateVolume}":            2,
	})
	found := samples(t, d.Service)
	if found["journal_bytes"] <= 0 || found["group_metadata_bytes{group=carve}"] <= 0 || found["cleared_bytes_total"] < 3*float64(testExtent) {
		t.Errorf("journal_bytes %v, group_metadata_bytes %v, cleared_bytes_total %v",
			found["journal_bytes"], found["group_metadata_bytes{group=carve}"], found["cleared_bytes_total"])
	}
	for name := range found {
		if strings.HasPrefix(name, "unhealthy_volumes") || strings.HasPrefix(name, "class_condition") {
			t.Errorf("%s is there, and all is well", name)
		}
	}
	m.fake.SetMissing(testGroup, true)
	const missing = "group_missing_devices{group=carve}"
	waittest.Until(t, missing, func() bool { return samples(t, d.Service)[missing] == 1 })
	const condition = "class_condition{class=local,condition=MissingDevice}"
	waittest.Until(t, condition, func() bool { return samples(t, d.Service)[condition] == 1 })
}

func TestMetricsTellHowLVMsCommandsEnd(t *testing.T) {
	m := NewMetrics()
	m.ObserveCommand(forClass(t.Context(), "fast"), lvm.Result{Command: "lvcreate"})
	for _, r := range []lvm.Result{
		{Command: "lvcreate", Duration: time.Second},
		{Command: "lvcreate", Duration: time.Second},
		{Command: "lvcreate", Err: &lvm.CommandError{ExitCode: 5, Err: lvm.ErrNoSpace}},
		{Command: "lvremove", Err: &lvm.CommandError{ExitCode: -1, Err: lvm.ErrTimedOut}},
		{Command: "lvremove", Err: &lvm.CommandError{ExitCode: 3}},
	} {
		m.ObserveCommand(t.Context(), r)
	}
	for _, r := range []ReloadResult{ReloadApplied, ReloadApplied, ReloadRefused} {
		m.ObserveReload(r)
	}
	wantSamples(t, &Service{metrics: m}, map[string]float64{
		"lvm_command_seconds{class=,command=lvcreate,result=ok}":        2,
		"lvm_command_seconds{class=fast,command=lvcreate,result=ok}":    1,
		"lvm_command_seconds{class=,command=lvcreate,result=no_space}":  1,
		"lvm_command_seconds{class=,command=lvremove,result=timed_out}": 1,
		"lvm_command_seconds{class=,command=lvremove,result=failed}":    1,
		"lvm_command_exits_total{class=,command=lvcreate,exit=0}":       2,
		"lvm_command_exits_total{class=fast,command=lvcreate,exit=0}":   1,
		"lvm_command_exits_total{class=,command=lvcreate,exit=5}":       1,
		"lvm_command_exits_total{class=,command=lvremove,exit=-1}":      1,
		"lvm_command_exits_total{class=,command=lvremove,exit=3}":       1,
		"config_reloads_total{result=applied}":                          2,
		"config_reloads_total{result=refused}":                          1,
		"config_reloads_total{result=invalid}":                          0,
	})
}

func TestMetricsTellOfThinPools(t *testing.T) {
	m := snapshotMachine(t) // 20 extents
	d := m.start(t)
	v := d.create(request("v", 4))
	d.snapshot("s", v.GetId())
	d.fill(v.GetId(), 0x11)
	m.fake.SetPool(testGroup, "pool", lvm.PoolStatus{MetadataUsed: 256}) // of 1,024 blocks
	waittest.Until(t, "the pool's use is seen", func() bool {
		told := samples(t, d.Service)
		return told["thin_data_percent{group=carve,pool=pool}"] == 20 && told["thin_metadata_percent{group=carve,pool=pool}"] == 25
	})
	wantSamples(t, d.Service, map[string]float64{
		"thin_data_bytes{group=carve,pool=pool}":    float64(20 * testExtent),
		"thin_virtual_bytes{group=carve,pool=pool}": float64(8 * testExtent),
		"snapshots{class=thin}":                     1,
		"volumes{class=thin,state=ready}":           1,
	})
}

// TestEveryMetricIsDocumented holds the registry against the page that lists
// the metrics, both ways.
func TestEveryMetricIsDocumented(t *testing.T) {
	page := must.Get(os.ReadFile("../../docs/operations.md"))(t)
	documented := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| (`carve_lvmd_.*?) \\|").FindAllStringSubmatch(string(page), -1) {
		for _, name := range regexp.MustCompile("`(carve_lvmd_[a-z_]+)`").FindAllStringSubmatch(row[1], -1) {
			documented[name[1]] = true
		}
	}
	descs := make(chan *prometheus.Desc)
	go func() {
		NewMetrics().Registry.Describe(descs)
		close(descs)
	}()
	name := regexp.MustCompile(`fqName: "([a-z_]+)"`)
	exist := map[string]bool{}
	for d := range descs {
		exist[name.FindStringSubmatch(d.String())[1]] = true
	}
	for n := range exist {
		if !documented[n] {
			t.Errorf("%s is in no row of docs/operations.md", n)
		}
	}
	for n := range documented {
		if !exist[n] {
			t.Errorf("docs/operations.md has %s, which does not exist", n)
		}
	}
}
