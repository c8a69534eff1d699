package lvmd

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvmd/inventory"
	"github.com/carve-csi/carve/pkg/lvmd/volumegroup"
)

// Metrics holds lvmd's metrics in a registry of their own.
type Metrics struct {
	Registry *prometheus.Registry

	commands *prometheus.HistogramVec
	calls    *prometheus.HistogramVec
	service  atomic.Pointer[Service]
	stuck    atomic.Pointer[func() int]
}

var (
	descTotal     = desc("class_total_bytes", "Size of the device class: of its volume group, or of its thin pool's data times the overprovisioning.", "class", "group")
	descAvailable = desc("class_available_bytes", "Size that further volumes of the device class can have in sum.", "class", "group")
	descMaximum   = desc("class_maximum_volume_bytes", "Size of the largest volume that can be created in the device class now.", "class", "group")
	descVolumes   = desc("volumes", "Volumes by device class and state: creating, ready, deleting, unfinished (kept, as what should be on it is not found).", "class", "state")
	descBacklog   = desc("wipe_backlog_bytes", "Deleted space that is still to be wiped before it is free.", "group")
	descQueue     = desc("queue_depth", "Operations that wait for the volume group's exclusive slot.", "group")
	descRejected  = desc("queue_refused_total", "Operations rejected because too many waited for the volume group, or because they waited ten minutes.", "group")
	descAnswers   = desc("lvm_responding", "1 while LVM answers for the volume group, 0 while its commands time out.", "group")
	descRefused   = desc("device_refused", "1 for each device that is selected for the volume group and not used, by reason: signature, partitioned, in_use, other_group, read_only, too_small, not_dax, sectors (of another size than the group's), waiting (for the disks of a group that was here before), unreadable, gone, on_volume (its contents are a user's), failed.", "group", "device", "reason")
	descConfig    = desc("config_current", "1 while what the configuration file says is in force.")
	descCondition = desc("class_condition", "1 for each condition of the device class.", "class", "condition")
	descVolume    = desc("volume_info", "1 for each volume: its PersistentVolume and claim, or the Pod of an inline one, and the kernel's name of its device, as node_exporter has it.",
		"volume", "persistentvolume", "owner_namespace", "persistentvolumeclaim", "inline_pod", "class", "group", "device")
	descSize      = desc("volume_bytes", "Size of the volume.", "volume")
	descUnhealthy = desc("unhealthy_volumes", "Volumes with a condition, by class and condition.", "class", "condition")

	descGroupTotal    = desc("group_total_bytes", "Size of the volume group.", "group")
	descGroupFree     = desc("group_free_bytes", "Free space of the volume group, reserves included.", "group")
	descMetadata      = desc("group_metadata_bytes", "Size of LVM's metadata of the volume group.", "group")
	descMetadataLimit = desc("group_metadata_limit_bytes", "Size that LVM's metadata of the volume group can grow to.", "group")

	descThinData     = desc("thin_data_percent", "How much of the thin pool's data is used.", "group", "pool")
	descThinMetadata = desc("thin_metadata_percent", "How much of the thin pool's metadata is used.", "group", "pool")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("carve_lvmd_"+name, help, labels, nil)
}

// NewMetrics returns metrics that cover only LVM commands and stuck programs until a Service
// attaches.
func NewMetrics() *Metrics {
	m := &Metrics{
		Registry: prometheus.NewRegistry(),
		commands: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "carve_lvmd_lvm_command_seconds", Help: "Duration of LVM commands, by command, by device class (empty for several or none) and by result: ok, no_space, not_found, exists, busy, device_missing, timed_out, unavailable, failed.",
			Buckets: prometheus.ExponentialBuckets(0.01, 2, 12),
		}, []string{"command", "class", "result"}),
		calls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "carve_lvmd_rpc_seconds", Help: "Duration of calls by method and gRPC code.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 4, 10),
		}, []string{"method", "code"}),
	}
	stuck := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "carve_lvmd_stuck", Help: "Programs that were killed, and reads, writes and flushes that were given up, and still wait in the kernel for a device.",
	}, func() float64 {
		n := 0
		if count := m.stuck.Load(); count != nil {
			n = (*count)()
		}
		if s := m.service.Load(); s != nil {
			n += s.creator.answering.Stuck()
		}
		return float64(n)
	})
	m.Registry.MustRegister(stuck, m.commands, m.calls, m)
	return m
}

func (m *Metrics) attach(s *Service) { m.service.Store(s) }

// ObserveStuck sets the function that counts commands, reads and flushes that were given up but
// still wait in the kernel; lvm.Host.Stuck fits.
func (m *Metrics) ObserveStuck(stuck func() int) { m.stuck.Store(&stuck) }

// ObserveCommand records an LVM command; it fits lvm.Runner.Observe.
func (m *Metrics) ObserveCommand(ctx context.Context, r lvm.Result) {
	m.commands.WithLabelValues(r.Command, volumegroup.ClassOf(ctx), resultLabel(r.Err)).Observe(r.Duration.Seconds())
}

func (m *Metrics) observeCall(method, code string, d time.Duration) {
	m.calls.WithLabelValues(method, code).Observe(d.Seconds())
}

func resultLabel(err error) string {
	if err == nil {
		return "ok"
	}
	for _, c := range []struct {
		err   error
		label string
	}{
		{lvm.ErrNoSpace, "no_space"}, {lvm.ErrNotFound, "not_found"}, {lvm.ErrExists, "exists"},
		{lvm.ErrBusy, "busy"}, {lvm.ErrDeviceMissing, "device_missing"}, {lvm.ErrTimedOut, "timed_out"},
		{lvm.ErrUnavailable, "unavailable"},
	} {
		if errors.Is(err, c.err) {
			return c.label
		}
	}
	return "failed"
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descConfig, descUnhealthy, descCondition, descGroupTotal, descGroupFree, descMetadata, descMetadataLimit,
		descVolume, descSize, descTotal, descAvailable, descMaximum, descVolumes, descBacklog, descQueue, descRejected, descAnswers, descRefused,
		descThinData, descThinMetadata,
	} {
		ch <- d
	}
}

func collectVolume(v inventory.VolumeStatistics, gauge func(d *prometheus.Desc, value float64, labels ...string)) {
	device := ""
	if v.Device.Path != "" {
		device = fmt.Sprintf("dm-%d", v.Device.Minor)
	}
	name, namespace := v.Ident.Name, v.Ident.Owner.Namespace
	if v.Ident.Owner.Pod != "" {
		name, namespace = "", v.Ident.Owner.PodNamespace
	}
	gauge(descVolume, 1, v.ID, name, namespace, v.Ident.Owner.Claim, v.Ident.Owner.Pod, v.Ident.Class, v.Group, device)
	gauge(descSize, float64(v.Size), v.ID)
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	s := m.service.Load()
	if s == nil {
		return
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	now := s.inventory.Statistics()
	gauge(descConfig, oneUnless(now.Refused))
	for _, c := range now.Classes {
		collectClass(c, gauge)
	}
	for k, n := range now.Unhealthy {
		gauge(descUnhealthy, float64(n), k.Class, k.Condition)
	}
	for k, n := range now.Volumes {
		gauge(descVolumes, float64(n), k.Class, string(k.Phase))
	}
	for _, v := range now.Present {
		collectVolume(v, gauge)
	}
	for name, g := range now.Groups {
		collectGroup(name, g, gauge)
		for device, why := range s.provisioned.refusals(name) {
			gauge(descRefused, 1, name, device, why.Kind)
		}
		slot := s.groups.Named(name).Queue()
		gauge(descQueue, float64(slot.Waiting), name)
		ch <- prometheus.MustNewConstMetric(descRejected, prometheus.CounterValue, float64(slot.Rejected), name)
	}
}

func oneUnless(b bool) float64 {
	if b {
		return 0
	}
	return 1
}

func collectClass(c inventory.ClassStatistics, gauge func(d *prometheus.Desc, v float64, labels ...string)) {
	for _, r := range c.Reported.GetGroups() {
		gauge(descTotal, float64(r.TotalBytes), c.Name, r.VgName)
		gauge(descAvailable, float64(r.AvailableBytes), c.Name, r.VgName)
		gauge(descMaximum, float64(r.MaximumVolumeSizeBytes), c.Name, r.VgName)
	}
	// Several groups of a class may have the same condition.
	kinds := map[string]bool{}
	for _, condition := range c.Reported.GetConditions() {
		kinds[condition.GetType()] = true
	}
	for kind := range kinds {
		gauge(descCondition, 1, c.Name, kind)
	}
}

func collectGroup(name string, g inventory.GroupStatistics, gauge func(d *prometheus.Desc, v float64, labels ...string)) {
	gauge(descAnswers, oneUnless(!g.Responding), name)
	gauge(descBacklog, float64(g.Backlog), name)
	gauge(descGroupTotal, float64(g.Total), name)
	gauge(descGroupFree, float64(g.Free), name)
	gauge(descMetadata, float64(g.Metadata), name)
	gauge(descMetadataLimit, float64(g.MetadataLimit), name)
	for _, p := range g.Pools {
		if !p.Known || p.Status.Failed {
			continue // A failed pool has no percentages.
		}
		gauge(descThinData, 100*float64(p.Status.DataUsed)/float64(p.Status.DataTotal), name, p.Name)
		gauge(descThinMetadata, 100*float64(p.Status.MetadataUsed)/float64(p.Status.MetadataTotal), name, p.Name)
	}
}
