package lvmd

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvmd/inventory"
	"github.com/carve-csi/carve/pkg/lvmd/volumegroup"
)

// Metrics are lvmd's, in a registry of their own.
type Metrics struct {
	// Registry has all of them.
	Registry *prometheus.Registry

	commands  *prometheus.HistogramVec
	calls     *prometheus.HistogramVec
	exits     *prometheus.CounterVec
	cleared   prometheus.Counter
	reformats prometheus.Counter
	reloads   *prometheus.CounterVec
	service   atomic.Pointer[Service]
	stuck     atomic.Pointer[func() int]
}

var (
	descTotal     = desc("class_total_bytes", "Size of the device class: of its volume group, or of its thin pool's data times the overprovisioning.", "class", "group")
	descAvailable = desc("class_available_bytes", "Size that further volumes of the device class can have in sum.", "class", "group")
	descMaximum   = desc("class_maximum_volume_bytes", "Size of the largest volume that can be created in the device class now.", "class", "group")
	descVolumes   = desc("volumes", "Volumes by device class and state: creating, ready, deleting, unfinished (kept, as what should be on it is not found).", "class", "state")
	descBacklog   = desc("wipe_backlog_bytes", "Deleted space that is still to be wiped before it is free.", "group")
	descQueue     = desc("queue_depth", "Operations that wait for the volume group's exclusive slot.", "group")
	descCallers   = desc("queue_callers", "Namespaces, and lvmd itself, whose operations wait for the volume group.", "group")
	descRejected  = desc("queue_refused_total", "Operations rejected because too many waited for the volume group, or because they waited ten minutes.", "group")
	descAnswers   = desc("lvm_responding", "1 while LVM answers for the volume group, 0 while its commands time out.", "group")
	descRefused   = desc("device_refused", "1 for each device that is selected for the volume group and not used, by reason: signature, partitioned, in_use, other_group, read_only, too_small, not_dax, waiting (for the disks of a group that was here before), unreadable, gone, on_volume (its contents are a user's), failed.", "group", "device", "reason")
	descZeroed    = desc("clean_bytes", "Free space that is known to hold zeroes: raw volumes made there need no clearing.", "group")
	descConfig    = desc("config_current", "1 while what the configuration file says is in force.")
	descCondition = desc("class_condition", "1 for each condition of the device class.", "class", "condition")
	descVolume    = desc("volume_info", "1 for each volume: its PersistentVolume and claim, or the Pod of an inline one, and the kernel's name of its device, as node_exporter has it.",
		"volume", "persistentvolume", "owner_namespace", "persistentvolumeclaim", "inline_pod", "class", "group", "device")
	descSize      = desc("volume_bytes", "Size of the volume.", "volume")
	descUnhealthy = desc("unhealthy_volumes", "Volumes with a condition, by class and condition.", "class", "condition")

	descGroupTotal    = desc("group_total_bytes", "Size of the volume group.", "group")
	descGroupFree     = desc("group_free_bytes", "Free space of the volume group, reserves included.", "group")
	descGroupMissing  = desc("group_missing_devices", "Devices of the volume group that are missing.", "group")
	descMetadata      = desc("group_metadata_bytes", "Size of LVM's metadata of the volume group.", "group")
	descMetadataLimit = desc("group_metadata_limit_bytes", "Size that LVM's metadata of the volume group can grow to.", "group")

	descThinData     = desc("thin_data_percent", "How much of the thin pool's data is used.", "group", "pool")
	descThinMetadata = desc("thin_metadata_percent", "How much of the thin pool's metadata is used.", "group", "pool")
	descThinSize     = desc("thin_data_bytes", "Size of the thin pool's data.", "group", "pool")
	descSnapshots    = desc("snapshots", "Snapshots by device class.", "class")
	descThinVirtual  = desc("thin_virtual_bytes", "What the thin pool's volumes and snapshots have in sum.", "group", "pool")

	descJournal = desc("journal_bytes", "Size of the journal's file.")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("carve_lvmd_"+name, help, labels, nil)
}

// NewMetrics makes the metrics. Before a Service has them, only those of LVM
// commands exist.
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
	m.cleared = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "carve_lvmd_cleared_bytes_total", Help: "Bytes zeroed on new volumes and on the space that they grew by.",
	})
	m.reformats = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "carve_lvmd_volumes_emptied_total", Help: "Encrypted volumes that were reformatted, empty, because their key was gone.",
	})
	m.exits = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "carve_lvmd_lvm_command_exits_total", Help: "LVM commands by exit code (-1 when killed or not started) and by device class.",
	}, []string{"command", "class", "exit"})
	m.reloads = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "carve_lvmd_config_reloads_total", Help: "Changes of the configuration file, by result: applied, refused (it does not fit the node), invalid.",
	}, []string{"result"})
	for _, result := range []ReloadResult{ReloadApplied, ReloadRefused, ReloadInvalid} {
		m.reloads.WithLabelValues(string(result))
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
	m.Registry.MustRegister(stuck, m.exits, m.reloads, m.commands, m.calls, m.cleared, m.reformats, m)
	return m
}

func (m *Metrics) attach(s *Service) { m.service.Store(s) }

// ObserveStuck has the metrics ask stuck, at each collection, how many commands, reads and
// flushes were given up and still wait in the kernel for a device; lvm.Host.Stuck fits.
func (m *Metrics) ObserveStuck(stuck func() int) { m.stuck.Store(&stuck) }

// ObserveCommand records an LVM command; it fits lvm.Runner.Observe.
func (m *Metrics) ObserveCommand(ctx context.Context, r lvm.Result) {
	class := volumegroup.ClassOf(ctx)
	m.commands.WithLabelValues(r.Command, class, resultLabel(r.Err)).Observe(r.Duration.Seconds())
	exit := 0
	var failed *lvm.CommandError
	if errors.As(r.Err, &failed) {
		exit = failed.ExitCode
	}
	m.exits.WithLabelValues(r.Command, class, strconv.Itoa(exit)).Inc()
}

func (m *Metrics) observeCall(method, code string, d time.Duration) {
	m.calls.WithLabelValues(method, code).Observe(d.Seconds())
}

// ReloadResult is what became of a changed configuration file.
type ReloadResult string

// Results of reloads.
const (
	ReloadApplied ReloadResult = "applied"
	// ReloadRefused is valid but does not fit what there is on the node.
	ReloadRefused ReloadResult = "refused"
	ReloadInvalid ReloadResult = "invalid"
)

// ObserveReload counts a change of the configuration file.
func (m *Metrics) ObserveReload(r ReloadResult) { m.reloads.WithLabelValues(string(r)).Inc() }

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
		descZeroed, descConfig, descUnhealthy, descCondition, descGroupTotal, descGroupFree, descGroupMissing, descMetadata, descMetadataLimit,
		descVolume, descSize, descTotal, descAvailable, descMaximum, descVolumes, descBacklog, descQueue, descCallers, descRejected, descAnswers, descJournal, descRefused,
		descThinData, descThinMetadata, descThinSize, descThinVirtual, descSnapshots,
	} {
		ch <- d
	}
}

// collectVolume reports which volume this is.
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

// Collect implements prometheus.Collector: it reads the inventory at this moment.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	s := m.service.Load()
	if s == nil {
		return
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(descJournal, float64(s.journal.Size()))
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
	for class, n := range now.Snapshots {
		gauge(descSnapshots, float64(n), class)
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
		gauge(descCallers, float64(slot.Callers), name)
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
	gauge(descZeroed, float64(g.Zeroed), name)
	gauge(descGroupTotal, float64(g.Total), name)
	gauge(descGroupFree, float64(g.Free), name)
	gauge(descGroupMissing, float64(g.MissingDevices), name)
	gauge(descMetadata, float64(g.Metadata), name)
	gauge(descMetadataLimit, float64(g.MetadataLimit), name)
	for _, p := range g.Pools {
		gauge(descThinSize, float64(p.Size), name, p.Name)
		gauge(descThinVirtual, float64(p.Virtual), name, p.Name)
		if !p.Known || p.Status.Failed {
			continue // A pool that does not answer has no percentages.
		}
		gauge(descThinData, 100*float64(p.Status.DataUsed)/float64(p.Status.DataTotal), name, p.Name)
		gauge(descThinMetadata, 100*float64(p.Status.MetadataUsed)/float64(p.Status.MetadataTotal), name, p.Name)
	}
}
