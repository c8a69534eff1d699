package lvmd

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/carve-csi/carve/pkg/lvm"
)

// Metrics are lvmd's, in a registry of their own.
type Metrics struct {
	// Registry has all of them.
	Registry *prometheus.Registry

	commands *prometheus.HistogramVec
	calls    *prometheus.HistogramVec
	exits    *prometheus.CounterVec
	cleared  prometheus.Counter
	emptied  prometheus.Counter
	reloads  *prometheus.CounterVec
	service  atomic.Pointer[Service]
	stuck    atomic.Pointer[func() int]
}

var (
	descTotal     = desc("class_total_bytes", "Size of the device class' volume group.", "class", "group")
	descAvailable = desc("class_available_bytes", "What volumes of the device class can take in sum.", "class", "group")
	descMaximum   = desc("class_maximum_volume_bytes", "The largest volume that can be created in the device class.", "class", "group")
	descVolumes   = desc("volumes", "Volumes by device class and state.", "class", "state")
	descBacklog   = desc("wipe_backlog_bytes", "What is still to be wiped before it is free.", "group")
	descQueue     = desc("queue_depth", "Operations waiting for their turn at the volume group.", "group")
	descCallers   = desc("queue_callers", "Namespaces, and lvmd itself, whose operations wait for the volume group.", "group")
	descTurnedOff = desc("queue_refused_total", "Operations turned away because too many waited for the volume group.", "group")
	descWedged    = desc("lvm_responding", "1 while LVM answers for the volume group, 0 while its commands time out.", "group")
	descRefused   = desc("device_refused", "1 for each device that is selected for the volume group and not used, by why.", "group", "device", "reason")
	descClean     = desc("clean_bytes", "Free space that is known to hold zeroes.", "group")
	descConfig    = desc("config_current", "1 while what the configuration file says is in force.")
	descCondition = desc("class_condition", "1 for each condition of the device class.", "class", "condition")
	descUnhealthy = desc("unhealthy_volumes", "Volumes with a condition, by class and condition.", "class", "condition")

	descGroupTotal    = desc("group_total_bytes", "Size of the volume group.", "group")
	descGroupFree     = desc("group_free_bytes", "What can be allocated in the volume group, reserves included.", "group")
	descGroupMissing  = desc("group_missing_devices", "Devices of the volume group that cannot be found.", "group")
	descMetadata      = desc("group_metadata_bytes", "Size of the volume group's metadata.", "group")
	descMetadataLimit = desc("group_metadata_limit_bytes", "What the volume group's metadata may take at most.", "group")

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
			Name: "carve_lvmd_lvm_command_seconds", Help: "Duration of LVM commands by how they ended, and by the device class that they were for, empty for several or none.",
			Buckets: prometheus.ExponentialBuckets(0.01, 2, 12),
		}, []string{"command", "class", "result"}),
		calls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "carve_lvmd_rpc_seconds", Help: "Duration of calls by method and gRPC code.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 4, 10),
		}, []string{"method", "code"}),
	}
	m.cleared = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "carve_lvmd_cleared_bytes_total", Help: "What was zeroed of new volumes and of what they grew by.",
	})
	m.emptied = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "carve_lvmd_volumes_emptied_total", Help: "Encrypted volumes that were made anew because their key was gone.",
	})
	m.exits = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "carve_lvmd_lvm_command_exits_total", Help: "LVM commands by their exit code, -1 for those that were killed or not started, and by device class.",
	}, []string{"command", "class", "exit"})
	m.reloads = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "carve_lvmd_config_reloads_total", Help: "Changes of the configuration file by what became of them.",
	}, []string{"result"})
	for _, result := range []ReloadResult{ReloadApplied, ReloadRefused, ReloadInvalid} {
		m.reloads.WithLabelValues(string(result))
	}
	stuck := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "carve_lvmd_stuck", Help: "LVM commands, reads and flushes that were given up and still wait in the kernel for a device that does not answer.",
	}, func() float64 {
		if count := m.stuck.Load(); count != nil {
			return float64((*count)())
		}
		return 0
	})
	m.Registry.MustRegister(stuck, m.exits, m.reloads, m.commands, m.calls, m.cleared, m.emptied, m)
	return m
}

func (m *Metrics) attach(s *Service) { m.service.Store(s) }

// ObserveStuck has the metrics ask stuck, at each collection, how many commands, reads and
// flushes were given up and still wait in the kernel for a device; lvm.Host.Stuck fits.
func (m *Metrics) ObserveStuck(stuck func() int) { m.stuck.Store(&stuck) }

type classKey struct{}

// forClass is a context in which LVM commands count for a device class.
func forClass(ctx context.Context, class string) context.Context {
	return context.WithValue(ctx, classKey{}, class)
}

// forClassOf is forClass for volumes; those of several classes count for none.
func forClassOf(ctx context.Context, volumes ...*volume) context.Context {
	class := volumes[0].rec.Ident.Class
	for _, v := range volumes {
		if v.rec.Ident.Class != class {
			return ctx
		}
	}
	return forClass(ctx, class)
}

// ObserveCommand records an LVM command; it fits lvm.Runner.Observe.
func (m *Metrics) ObserveCommand(ctx context.Context, r lvm.Result) {
	class, _ := ctx.Value(classKey{}).(string)
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
		descClean, descConfig, descUnhealthy, descCondition, descGroupTotal, descGroupFree, descGroupMissing, descMetadata, descMetadataLimit,
		descTotal, descAvailable, descMaximum, descVolumes, descBacklog, descQueue, descCallers, descTurnedOff, descWedged, descJournal, descRefused,
		descThinData, descThinMetadata, descThinSize, descThinVirtual, descSnapshots,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector: it reads the model at this moment.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	s := m.service.Load()
	if s == nil {
		return
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(descJournal, float64(s.journal.size()))
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	current := 1.0
	if s.model.refused != "" {
		current = 0
	}
	gauge(descConfig, current)
	for _, c := range s.model.classes {
		for _, r := range c.reported.GetGroups() {
			gauge(descTotal, float64(r.TotalBytes), c.Name, r.VgName)
			gauge(descAvailable, float64(r.AvailableBytes), c.Name, r.VgName)
			gauge(descMaximum, float64(r.MaximumVolumeSizeBytes), c.Name, r.VgName)
		}
		// Several groups of a class may have the same one.
		conditions := map[string]bool{}
		for _, condition := range c.reported.GetConditions() {
			conditions[condition.GetType()] = true
		}
		for kind := range conditions {
			gauge(descCondition, 1, c.Name, kind)
		}
	}
	type key struct {
		class string
		phase phase
	}
	volumes := map[key]int{}
	for _, c := range s.model.classes {
		for _, p := range []phase{creating, ready, deleting, unfinished} {
			volumes[key{c.Name, p}] = 0
		}
	}
	backlog := map[string]int64{}
	unhealthy := map[[2]string]int{}
	for _, v := range s.model.volumes {
		if v.rec.Ident.Snapshot {
			continue
		}
		volumes[key{v.rec.Ident.Class, v.rec.Phase}]++
		for _, c := range v.allConditions() {
			unhealthy[[2]string{v.rec.Ident.Class, c.GetType()}]++
		}
		if v.rec.Phase == deleting && !v.wiped {
			backlog[v.group.name] += v.extents*v.group.info.ExtentSize - v.rec.Wiped
		}
	}
	for k, n := range unhealthy {
		gauge(descUnhealthy, float64(n), k[0], k[1])
	}
	for k, n := range volumes {
		gauge(descVolumes, float64(n), k.class, string(k.phase))
	}
	s.model.collectThin(gauge)
	for name, g := range s.model.groups {
		responding := 1.0
		if !g.wedged.IsZero() {
			responding = 0
		}
		gauge(descWedged, responding, name)
		turns := g.turns.state()
		gauge(descQueue, float64(turns.waiting), name)
		gauge(descCallers, float64(turns.callers), name)
		ch <- prometheus.MustNewConstMetric(descTurnedOff, prometheus.CounterValue, float64(turns.refused), name)
		for device, why := range g.provided.refusals() {
			gauge(descRefused, 1, name, device, why.kind)
		}
		gauge(descBacklog, float64(backlog[name]), name)
		gauge(descClean, float64(g.clean.size()), name)
		gauge(descGroupTotal, float64(g.info.Extents*g.info.ExtentSize), name)
		gauge(descGroupFree, float64(g.allocatable*g.info.ExtentSize), name)
		gauge(descGroupMissing, float64(g.info.MissingDevices), name)
		gauge(descMetadata, float64(g.metadata.Size), name)
		gauge(descMetadataLimit, float64(g.metadata.Limit), name)
	}
}
