//go:build !kernel

package lvmd

import (
	"fmt"
	"strings"
	"testing"
	"time"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvmd/volumegroup"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// samples uses names like "name{label=value,…}" without the common prefix; histograms become
// counts.
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

func wantSamples(t testing.TB, s *Service, want map[string]float64) {
	t.Helper()
	found := samples(t, s)
	for name, value := range want {
		if got, ok := found[name]; !ok || got != value {
			t.Errorf("%s is %v (present: %v), want %v", name, got, ok, value)
		}
	}
}

func TestMetricsReportSizesAndVolumes(t *testing.T) {
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
		"group_metadata_limit_bytes{group=carve}":             1 << 20,
		"volumes{class=local,state=ready}":                    2,
		"volumes{class=local,state=creating}":                 0,
		"volumes{class=local,state=deleting}":                 0,
		"volumes{class=local,state=unfinished}":               0,
		"wipe_backlog_bytes{group=carve}":                     0,
		"queue_depth{group=carve}":                            0,
		"queue_refused_total{group=carve}":                    0,
		"lvm_responding{group=carve}":                         1,
		"config_current":                                      1,
		"rpc_seconds{code=OK,method=CreateVolume}":            2,
	})
	found := samples(t, d.Service)
	if size := found["group_metadata_bytes{group=carve}"]; size <= 0 {
		t.Errorf("group_metadata_bytes is %v", size)
	}
	for name := range found {
		if strings.HasPrefix(name, "unhealthy_volumes") || strings.HasPrefix(name, "class_condition") {
			t.Errorf("%s is there, and all is well", name)
		}
	}
	m.fake.SetMissing(testGroup, true)
	const condition = "class_condition{class=local,condition=MissingDevice}"
	waittest.Until(t, condition, func() bool { return samples(t, d.Service)[condition] == 1 })
}

func TestMetricsNameVolumesTheirOwnersAndDevices(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	of := func(r *lvmdv1.CreateVolumeRequest, o *lvmdv1.Owner) *lvmdv1.Volume {
		r.Owner = o
		return d.create(r)
	}
	claim := of(request("pvc-1", 3), &lvmdv1.Owner{ClaimNamespace: "shop", ClaimName: "cart", ClaimUid: "1"})
	inline := of(request("csi-2", 2), &lvmdv1.Owner{PodNamespace: "shop", PodName: "till", PodUid: "2"})
	want := map[string]float64{"volume_bytes{volume=" + claim.GetId() + "}": float64(3 * testExtent), "volume_bytes{volume=" + inline.GetId() + "}": float64(2 * testExtent)}
	for _, v := range []struct {
		volume                   *lvmdv1.Volume
		claim, pod, persistentOf string
	}{{claim, "cart", "", "pvc-1"}, {inline, "", "till", ""}} {
		want[fmt.Sprintf("volume_info{class=local,device=dm-%d,group=carve,inline_pod=%s,owner_namespace=shop,persistentvolume=%s,persistentvolumeclaim=%s,volume=%s}",
			v.volume.GetDeviceMinor(), v.pod, v.persistentOf, v.claim, v.volume.GetId())] = 1
	}
	wantSamples(t, d.Service, want)
	d.delete(claim.GetId())
	found := samples(t, d.Service)
	for name := range found {
		if strings.Contains(name, claim.GetId()) {
			t.Errorf("%s is there, and the volume is deleted", name)
		}
	}
}

func TestMetricsReportHowLVMsCommandsEnd(t *testing.T) {
	m := NewMetrics()
	m.ObserveCommand(volumegroup.ForClass(t.Context(), "fast"), lvm.Result{Command: "lvcreate"})
	for _, r := range []lvm.Result{
		{Command: "lvcreate", Duration: time.Second},
		{Command: "lvcreate", Duration: time.Second},
		{Command: "lvcreate", Err: &lvm.CommandError{ExitCode: 5, Err: lvm.ErrNoSpace}},
		{Command: "lvremove", Err: &lvm.CommandError{ExitCode: -1, Err: lvm.ErrTimedOut}},
		{Command: "lvremove", Err: &lvm.CommandError{ExitCode: 3}},
	} {
		m.ObserveCommand(t.Context(), r)
	}
	wantSamples(t, &Service{core: &core{metrics: m}}, map[string]float64{
		"lvm_command_seconds{class=,command=lvcreate,result=ok}":        2,
		"lvm_command_seconds{class=fast,command=lvcreate,result=ok}":    1,
		"lvm_command_seconds{class=,command=lvcreate,result=no_space}":  1,
		"lvm_command_seconds{class=,command=lvremove,result=timed_out}": 1,
		"lvm_command_seconds{class=,command=lvremove,result=failed}":    1,
	})
}

func TestMetricsReportThinPools(t *testing.T) {
	m := snapshotMachine(t) // 20 extents
	d := m.start(t)
	v := d.create(request("v", 4))
	d.snapshot("s", v.GetId())
	d.fill(v.GetId(), 0x11)
	m.fake.SetPool(testGroup, "pool", lvm.PoolStatus{MetadataUsed: 256}) // of 1,024 blocks
	waittest.Until(t, "the pool's use is seen", func() bool {
		reported := samples(t, d.Service)
		return reported["thin_data_percent{group=carve,pool=pool}"] == 20 && reported["thin_metadata_percent{group=carve,pool=pool}"] == 25
	})
	wantSamples(t, d.Service, map[string]float64{
		"volumes{class=thin,state=ready}": 1,
	})
}
