package docs

import (
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/carve-csi/carve/api/conditions"
	"github.com/carve-csi/carve/api/config"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/docs/pagetest"
	"github.com/carve-csi/carve/pkg/controller"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/controller/spec"
	"github.com/carve-csi/carve/pkg/driver"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/lvmd"
	"github.com/carve-csi/carve/pkg/must"
)

func TestReferenceOfConditionsIsCurrent(t *testing.T) {
	var rows [][]string
	for _, c := range conditions.All {
		rows = append(rows, []string{pagetest.Code(c.Type), subjects(c.Of), subjects(c.Unusable), c.Meaning, c.Remedy})
	}
	pagetest.Current(t, "reference/conditions.md", `# Conditions

A healthy volume or device class has no condition. Conditions are shown by `+"`carve-lvmd volumes` and `carve-lvmd classes`"+` on
the node, by the metrics `+"`carve_lvmd_unhealthy_volumes`, `carve_lvmd_class_condition` and `carve_node_volume_conditions`"+`, and by
[Events](events.md), which come within two minutes: `+"`VolumeUnhealthy` for a volume, `DeviceClassUnhealthy`"+` on the
node for a class. `+"`OutOfSync`"+`, which is ordinary, has none. In commands, VG, VOLUME and POOL stand for names in LVM.

`+pagetest.Table([]string{"condition", "of", "cannot be used", "meaning", "remedy"}, rows)+`
A claim has the condition `+"`"+names.ConditionVolumeMissing+"`"+` while its node does not have its volume
([what to do](../how-to/troubleshooting.md#volumemissing)).
`)
}

func subjects(of []conditions.Subject) string {
	words := make([]string, len(of))
	for i, s := range of {
		words[i] = string(s)
	}
	return strings.Join(words, ", ")
}

func TestReferenceOfEventsIsCurrent(t *testing.T) {
	var rows [][]string
	for _, e := range cluster.EventReasons {
		rows = append(rows, []string{pagetest.Code(e.Reason), e.Type, e.On, e.Meaning, e.Remedy})
	}
	pagetest.Current(t, "reference/events.md", `# Events

Events of the component `+"`carve-controller`"+`. Those on nodes are in the namespace `+"`default`"+`; `+"`kubectl describe node`"+` shows them.

`+pagetest.Table([]string{"reason", "type", "on", "when", "remedy"}, rows)+`
The upstream libraries that run in the controller add Events of their own: `+"`VolumeResizeFailed`"+` on a claim that could not grow,
`+"`SnapshotCreationFailed` and `SnapshotDeleteError`"+` on snapshot contents. The kubelet puts what the node plugin answers
into `+"`FailedMount`"+` on the Pod.
`)
}

func TestReferenceOfErrorsIsCurrent(t *testing.T) {
	var rows [][]string
	for _, e := range names.ErrorReasons {
		rows = append(rows, []string{pagetest.Code(e.Reason), pagetest.Code(e.Code), e.Meaning, strings.ToUpper(e.Remedy[:1]) + e.Remedy[1:] + "."})
	}
	pagetest.Current(t, "reference/errors.md", `# Errors

Errors of lvmd are gRPC status codes. Each has a `+"`google.rpc.ErrorInfo`"+` of the domain `+"`"+names.ErrorDomain+"`"+` with one of these
reasons. Users read them in Events: the message says what failed, on which node, and what to do.

`+pagetest.Table([]string{"reason", "code", "meaning", "remedy"}, rows)+`
Three codes come without a reason: `+"`Unavailable`"+` while lvmd stops or [cannot write its journal](../how-to/troubleshooting.md#the-journal-cannot-be-written),
`+"`Canceled` and `DeadlineExceeded`"+` where the caller ended the call.
`)
}

func TestReferenceOfStorageClassesIsCurrent(t *testing.T) {
	var rows, sizes [][]string
	for _, p := range spec.Parameters() {
		rows = append(rows, []string{pagetest.Code(p.Key), p.Allowed, p.Default, p.Meaning})
	}
	for _, f := range filesystem.Types() {
		sizes = append(sizes, []string{string(f), fmt.Sprintf("%d MiB", filesystem.MinimumSize(f, false)>>20)})
	}
	options := [][]string{{"all", words(filesystem.DescribeMountOptions(""))}}
	for _, f := range filesystem.Types() {
		options = append(options, []string{string(f), words(filesystem.DescribeMountOptions(f))})
	}
	options = append(options, []string{"on persistent memory", pagetest.Code(filesystem.DescribeDAXOptions())})
	pagetest.Current(t, "reference/storageclass.md", `# StorageClass

## Parameters

Any other parameter is refused, with an Event on the claim. Sizes are in bytes, or with a suffix such as `+"`4Ki`"+`.

`+pagetest.Table([]string{"parameter", "allowed", "default", "meaning"}, rows)+`
## Other fields

| field | meaning |
|---|---|
| `+"`volumeBindingMode: WaitForFirstConsumer`"+` | kube-scheduler chooses the node, of those with enough free space |
| `+"`volumeBindingMode: Immediate`"+` | Carve chooses the node, by the placement, of those that are connected, not cordoned and have enough free space |
| `+"`allowVolumeExpansion`"+` | [claims can grow](../how-to/grow.md) |
| `+"`reclaimPolicy`, `allowedTopologies`"+` | as everywhere |
| `+"`mountOptions`"+` | [see below](#mount-options) |

| `+"`carve.csi.local/placement`"+` | prefers |
|---|---|
| `+"`most-free`"+` | the node with the most free space in the device class: spreads bytes |
| `+"`least-free`"+` | the node with the least free space that suffices: keeps whole nodes free for large volumes |
| `+"`fewest-volumes`"+` | the node with the fewest volumes, of any class: spreads I/O |

## Smallest volumes

A smaller claim gets the smallest volume. Sizes are rounded up to whole extents of the volume group (4 MiB by default), and
to one extent on each stripe. A raw block volume has at least one such unit.

`+pagetest.Table([]string{"file system", "smallest volume"}, sizes)+`
## Mount options

Options and their values are checked when the claim is provisioned. Options that let a volume disturb others or reach other
devices, and those that the kernel would refuse, are not allowed. The profile `+"`scratch`"+` allows none about the journal.

`+pagetest.Table([]string{"file system", "allowed"}, options))
}

func words(list []string) string { return "`" + strings.Join(list, "`, `") + "`" }

// schema is what the page needs of a JSON Schema.
type schema struct {
	Type        any
	Description string
	Default     any
	Enum        []any
	Minimum     *float64
	Maximum     *float64
	Properties  map[string]*schema
	Required    []string
	Items       *schema
}

func TestReferenceOfTheConfigurationIsCurrent(t *testing.T) {
	var root schema
	must.Succeed(t, json.Unmarshal(config.Schema(), &root))
	section := func(s *schema, nested ...string) string {
		var rows [][]string
		var add func(s *schema, prefix string)
		add = func(s *schema, prefix string) {
			for _, key := range slices.Sorted(propertiesOf(s)) {
				p := s.Properties[key]
				fallback := ""
				switch {
				case slices.Contains(s.Required, key):
					fallback = "required"
				case p.Default != nil:
					fallback = pagetest.Code(fmt.Sprint(p.Default))
				}
				rows = append(rows, []string{pagetest.Code(prefix + key), p.allowed(), fallback, p.Description})
				if len(p.Properties) > 0 && slices.Contains(nested, key) {
					add(p, prefix+key+".")
				}
			}
		}
		add(s, "")
		return pagetest.Table([]string{"key", "value", "default", "meaning"}, rows)
	}
	at := func(path ...string) *schema {
		s := &root
		for _, key := range path {
			s = s.Properties[key]
			if s.Items != nil {
				s = s.Items
			}
		}
		return s
	}
	pagetest.Current(t, "reference/configuration.md", `# Configuration of lvmd

Each agent reads one YAML file, `+"`/etc/carve/lvmd.yaml`"+`; in a cluster it comes from the ConfigMap `+"`carve-lvmd`"+`. Every unknown key is an
error. Check a file before you apply it; `+"`carve-lvmd config-schema`"+` prints the JSON Schema for editors, and `+"`check-config`"+` knows
rules beyond it.

`+"```console\n$ carve-lvmd check-config lvmd.yaml\n```"+`

## The file

`+section(&root)+`
## `+"`deviceClasses[]`"+`

`+section(at("deviceClasses"))+`
See [layouts](../how-to/device-classes.md#layouts) for `+"`type`"+`, and [thin pools](../how-to/thin.md).

### `+"`deviceClasses[].thin`"+`

`+section(at("deviceClasses", "thin"), "layout", "autoExtend")+`
## `+"`volumeGroups[]`"+`

`+section(at("volumeGroups"), "loopFile")+`
Which disks are never taken, whatever the selectors say: [device classes](../how-to/device-classes.md#let-carve-make-the-volume-group).

## `+"`devices`"+`

`+section(at("devices"))+`
## Selectors

Entries of `+"`volumeGroups[].devices`, `devices.allow` and `devices.deny`"+`. All conditions of a selector must hold.

`+section(at("volumeGroups", "devices"), "size")+`
## Changes

lvmd reads a changed file within five seconds, and at once on SIGHUP. It refuses a file with a mistake, one that does not fit the
node, and one that would orphan volumes: a class with volumes must keep its volume groups, type, medium and thin pool. The
configuration before stays in force, and every class has the condition `+"`ConfigurationRefused`"+`. At a start lvmd refuses a file
with a mistake, and one that would orphan volumes, and ends with the reason; where the journal was lost, only a class with volumes that is gone, or not in its group any more. A class that does not fit
its volume group is then a [condition](conditions.md) of that class, and the others are served. Other keys concern volumes to come: those that exist keep and grow in their layout. A missing group or disk
refuses nothing, nor does a thin pool that cannot be made or used.
`)
}

func propertiesOf(s *schema) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for key := range s.Properties {
			if !yield(key) {
				return
			}
		}
	}
}

// allowed says in words what a value may be.
func (s *schema) allowed() string {
	switch {
	case len(s.Enum) > 0:
		values := make([]string, len(s.Enum))
		for i, v := range s.Enum {
			values[i] = fmt.Sprint(v)
		}
		return words(values)
	case s.Minimum != nil && s.Maximum != nil:
		return fmt.Sprintf("%v to %v", *s.Minimum, *s.Maximum)
	case s.Items != nil && s.Items.Properties != nil:
		return "a list of mappings"
	case s.Items != nil:
		return "a list"
	case s.Properties != nil:
		return "a mapping"
	case s.Type == "boolean":
		return "`true`, `false`"
	case s.Type == "string":
		return "text"
	default:
		return "a size or number"
	}
}

func TestReferenceOfMetricsIsCurrent(t *testing.T) {
	page := `# Metrics

Each program serves ` + "`/metrics`" + ` over HTTPS, to requests with the bearer token of the Secret ` + "`carve-metrics-token`" + `
([how to scrape](../how-to/monitoring.md)): the controller and lvmd on port 9808, the node plugin on 9809.
`
	for _, program := range []struct {
		name     string
		describe func(chan<- *prometheus.Desc)
	}{
		{"lvmd, on each node", lvmd.NewMetrics().Registry.Describe},
		{"The node plugin, on each node", driver.NewMetrics().Registry.Describe},
		{"The controller, two replicas", controller.DescribeMetrics},
	} {
		page += "\n## " + program.name + "\n\n" + pagetest.Table([]string{"metric", "kind", "labels", "meaning"}, describe(program.describe))
	}
	pagetest.Current(t, "reference/metrics.md", page)
}

var descOf = regexp.MustCompile(`fqName: "(\w+)", help: "((?:[^"\\]|\\.)*)",(?: unit: "\w*",)? constLabels: \{(?:(\w+)=[^}]*)?\}, variableLabels: \{([^}]*)\}`)

// describe lists the metrics that a function sends, by name: one row each.
func describe(send func(chan<- *prometheus.Desc)) [][]string {
	descs := make(chan *prometheus.Desc)
	go func() {
		defer close(descs)
		send(descs)
	}()
	var rows [][]string
	for d := range descs {
		m := descOf.FindStringSubmatch(d.String())
		if m == nil {
			panic("a metric's description has another form: " + d.String())
		}
		kind := "gauge"
		switch {
		case strings.HasSuffix(m[1], "_total"):
			kind = "counter"
		case strings.HasSuffix(m[1], "_seconds") && !strings.HasSuffix(m[1], "_timestamp_seconds"):
			kind = "histogram"
		}
		labels := strings.ReplaceAll(cmp.Or(m[4], m[3]), ",", ", ")
		rows = append(rows, []string{pagetest.Code(m[1]), kind, labels, strings.ReplaceAll(m[2], `\"`, `"`)})
	}
	slices.SortFunc(rows, func(a, b []string) int { return strings.Compare(a[0], b[0]) })
	return slices.CompactFunc(rows, func(a, b []string) bool { return a[0] == b[0] })
}
