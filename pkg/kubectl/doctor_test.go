package kubectl

import (
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/carve-csi/carve/api/names"
)

func nothingOn(node string) func(runtime.Object) bool {
	return func(o runtime.Object) bool {
		if c, ok := o.(*storagev1.CSIStorageCapacity); ok && c.Name == node {
			c.Capacity, c.MaximumVolumeSize = nil, nil
		}
		return false
	}
}

// onNode returns Events on a node, a minute apart, the newest last; each is a reason and a message.
func onNode(node string, reported ...[2]string) []runtime.Object {
	var list []runtime.Object
	for i, r := range reported {
		at := metav1.Time{Time: today.Add(time.Duration(i-len(reported)) * time.Minute)}
		list = append(list, &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: node + "." + r[0] + strconv.Itoa(i)}, Reason: r[0], Message: r[1],
			LastTimestamp: at, InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: node},
		})
	}
	return list
}

const (
	noGroup   = `no volume can be made in device class local: VolumeGroupMissing: volume group "carve" does not exist on this node`
	noPool    = `no volume can be made in device class thin: PoolFailed: the thin pool "carve/pool" failed`
	usable    = "device class thin recovered from: PoolFailed"
	unhealthy = "DeviceClassUnhealthy"
	recovered = "DeviceClassRecovered"
)

// One of two nodes offers nothing.
func TestDoctorNotesNodesWithoutSpaceAndFindsFaults(t *testing.T) {
	for name, test := range map[string]struct {
		node   string
		events [][2]string
		held   bool
		// waiting gives the node a claim without a volume.
		waiting bool
		level   string
		want    []string
	}{
		"a node that is full": {node: "n1", level: "note",
			want: []string{"it offers no space", "its volumes take 10.0Gi", "kubectl carve capacity", "kubectl carve volumes --node n1"}},
		"a full node for whose space a claim waits": {node: "n1", waiting: true, level: "note",
			want: []string{"its volumes take 10.0Gi, and claims whose volumes are being made asked for 2.0Gi"}},
		"a node without volumes": {node: "n2", level: "note", want: []string{"it offers no space", "has no volume", "kubectl carve doctor --agents"}},
		"a node without the group": {node: "n2", events: [][2]string{{unhealthy, noGroup}}, level: "note",
			want: []string{"device class local", "VolumeGroupMissing", `"carve" does not exist`, "vgs --foreign", "Only if none shows it", "vgcreate", "optional: true"}},
		"a node that lost the group": {node: "n1", events: [][2]string{{unhealthy, noGroup}}, level: "WRONG",
			want: []string{"VolumeGroupMissing", "holds PersistentVolumes", "docs/reference/conditions.md"}},
		"a full node without the group of another class": {node: "n1", events: [][2]string{{unhealthy, strings.ReplaceAll(noGroup, `"carve"`, `"more"`)}}, level: "note",
			want: []string{`"more" does not exist`, "its volumes take 10.0Gi", "vgcreate", "kubectl carve volumes --node n1"}},
		"a pool that failed": {node: "n2", events: [][2]string{{unhealthy, noPool}}, level: "WRONG", want: []string{"PoolFailed"}},
		"a pool that failed, and no group": {node: "n2", events: [][2]string{{unhealthy, noPool}, {unhealthy, noGroup}}, level: "WRONG",
			want: []string{"PoolFailed", "VolumeGroupMissing"}},
		"a pool that had failed":             {node: "n1", events: [][2]string{{unhealthy, noPool}, {recovered, usable}}, level: "note", want: []string{"its volumes take 10.0Gi"}},
		"a node whose capacity is held back": {node: "n2", held: true, level: "WRONG", want: []string{"creating volumes fails", "kubectl describe node n2"}},
	} {
		t.Run(name, func(t *testing.T) {
			list := append(without(nothingOn(test.node)), onNode(test.node, test.events...)...)
			for _, o := range list {
				if c, ok := o.(*corev1.PersistentVolumeClaim); ok && test.waiting {
					c.Annotations = map[string]string{"volume.kubernetes.io/selected-node": test.node}
					class := "carve"
					c.Spec.StorageClassName = &class
					c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")}
				}
				if c, ok := o.(*storagev1.CSIStorageCapacity); ok && test.held && c.Name == test.node {
					c.Annotations = map[string]string{names.AnnotationHeldBack: "2026-05-01T12:10:00Z"}
				}
			}
			got, err := call(t, list, nil, "doctor")
			if words := strings.Join(strings.Fields(got), " "); !strings.Contains(words, test.level+" node "+test.node+": ") || !containsAll(words, test.want) {
				t.Errorf("want %s with %q, got\n%s", test.level, test.want, got)
			}
			if wrong := test.level == "WRONG"; errors.Is(err, ErrUnhealthy) != wrong || (err != nil) != wrong {
				t.Errorf("got the error %v", err)
			}
			text, _ := call(t, list, nil, "doctor", "-o", "json")
			var checks []struct {
				Name, Level string
				OK          bool
			}
			if err := json.Unmarshal([]byte(text), &checks); err != nil {
				t.Fatal(err)
			}
			for _, c := range checks {
				want := "ok"
				if c.Name == "node "+test.node {
					want = strings.ToLower(test.level)
				}
				if c.Level != want || c.OK != (want != "wrong") {
					t.Errorf("for programs: want the level %s, got %+v", want, c)
				}
			}
		})
	}
}

// A node with space reports conditions of its classes.
func TestDoctorFindsWhatOneOfSeveralClassesHas(t *testing.T) {
	high := "device class thin: PoolDataHigh: the pool is full to 90%"
	both := `no volume can be made in device class fast, thin: NotResponding: LVM does not answer`
	for name, test := range map[string]struct {
		events [][2]string
		level  string
		want   []string
		// unnamed means that no StorageClass names a device class, and space that those which do
		// have space.
		unnamed, space bool
	}{
		"a class with space, of which no end was reported":           {events: [][2]string{{unhealthy, noPool}}, space: true, level: "ok"},
		"the default class with space, of which no end was reported": {events: [][2]string{{unhealthy, noPool}}, unnamed: true, level: "ok"},
		"a class with space that is unhealthy":                       {events: [][2]string{{unhealthy, high}}, space: true, level: "WRONG", want: []string{"PoolDataHigh"}},
		"an unusable class beside one with space":                    {events: [][2]string{{unhealthy, noPool}}, level: "WRONG", want: []string{"PoolFailed", "docs/reference/conditions.md", "--agents"}},
		"an unhealthy class":                                         {events: [][2]string{{unhealthy, high}}, level: "WRONG", want: []string{"PoolDataHigh"}},
		"a message that client-go combined":                          {events: [][2]string{{unhealthy, "(combined from similar events): " + high}}, level: "WRONG", want: []string{"PoolDataHigh"}},
		"a class without its group yet":                              {events: [][2]string{{unhealthy, strings.ReplaceAll(noGroup, `"carve"`, `"more"`)}}, level: "note", want: []string{"VolumeGroupMissing", "vgcreate"}},
		"another class that is usable again": {events: [][2]string{{unhealthy, noPool}, {recovered, "device class local recovered from: PoolFailed"}},
			level: "WRONG", want: []string{"PoolFailed"}},
		"one of two classes that is usable again": {events: [][2]string{{unhealthy, both}, {recovered, "device class thin recovered from: NotResponding"}}, level: "WRONG", want: []string{"fast, thin: NotResponding"}},
		"both that are": {events: [][2]string{{unhealthy, both}, {recovered, "device class thin recovered from: NotResponding"}, {recovered, "device class fast recovered from: NotResponding"}}, level: "ok"},
		"a class that is usable again, and unhealthy":       {events: [][2]string{{unhealthy, high}, {unhealthy, noPool}, {recovered, usable}}, level: "WRONG", want: []string{"PoolDataHigh"}},
		"a class that recovered":                            {events: [][2]string{{unhealthy, high}, {recovered, "device class thin recovered from: PoolDataHigh, PoolFull"}}, level: "ok"},
		"a class that recovered from something else":        {events: [][2]string{{unhealthy, high}, {recovered, "device class thin recovered from: PoolFull"}}, level: "WRONG", want: []string{"PoolDataHigh"}},
		"an unhealthy class that was unusable, and is well": {events: [][2]string{{unhealthy, "device class thin: PoolFailed: m"}, {unhealthy, noPool}, {recovered, usable}}, level: "ok"},
		"a class that gets space while its condition stays": {events: [][2]string{{unhealthy, noPool}, {unhealthy, "device class thin: PoolFailed: m"}}, space: true, level: "WRONG",
			want: []string{"PoolFailed"}},
		"a class that is offered again, and unhealthy": {events: [][2]string{{unhealthy, high}, {recovered, "device class thin recovered from: CapacityHeldBack"}}, level: "WRONG",
			want: []string{"PoolDataHigh"}},
		"a class that is unusable once more": {events: [][2]string{{unhealthy, noPool}, {recovered, usable}, {unhealthy, noPool}}, level: "WRONG", want: []string{"PoolFailed"}},
	} {
		t.Run(name, func(t *testing.T) {
			list := append(objects(), onNode("n1", test.events...)...)
			for _, class := range []string{"local", "fast", "thin"} {
				if !test.unnamed {
					list = append(list, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: class}, Provisioner: names.Driver,
						Parameters: map[string]string{names.ParamDeviceClass: class}})
				}
				if test.space {
					list = append(list, capacityOf("n1", class))
				}
			}
			got, err := call(t, list, nil, "doctor")
			words := strings.Join(strings.Fields(got), " ")
			if !strings.Contains(words, test.level+" node n1") || !containsAll(words, test.want) || errors.Is(err, ErrUnhealthy) != (test.level == "WRONG") {
				t.Errorf("want %s with %q, got %v\n%s", test.level, test.want, err, got)
			}
		})
	}
}

// The test compares allocations for full nodes: four times the nodes may cost four times as much,
// plus some margin.
func TestDoctorTakesEachNodeAsLongInALargeCluster(t *testing.T) {
	taken := func(nodes int) float64 {
		s := &snapshot{agents: map[string]corev1.Pod{}, registered: map[string]bool{}}
		for i := range nodes {
			name := "node-" + strconv.Itoa(i)
			at := map[string]string{names.TopologyNode: name}
			s.nodes = append(s.nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: at},
				Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
					NodeInfo: corev1.NodeSystemInfo{KernelVersion: "6.12"}}})
			s.registered[name], s.agents[name] = true, *pod("carve-system", "agent-"+name, nameAgent, name)
			s.capacities = append(s.capacities, storagev1.CSIStorageCapacity{StorageClassName: "carve", Capacity: &resource.Quantity{},
				NodeTopology: &metav1.LabelSelector{MatchLabels: at}})
		}
		p, client := &plugin{}, fake.NewClientset()
		return testing.AllocsPerRun(1, func() {
			if err := s.index(); err != nil {
				t.Fatal(err)
			}
			checks, err := p.checkNodes(t.Context(), client, s)
			if err != nil || len(checks) != nodes || checks[0].Level != LevelNote {
				t.Errorf("want a note for each of %d nodes, got %d, %v", nodes, len(checks), err)
			}
		})
	}
	if few, many := taken(25), taken(100); many > 8*few {
		t.Errorf("25 nodes take %.0f allocations, and 100 take %.0f", few, many)
	}
}

func containsAll(text string, words []string) bool {
	for _, word := range words {
		if !strings.Contains(text, word) {
			return false
		}
	}
	return true
}

// The agent of n1, which has a volume in the group carve, answers with one class.
func TestDoctorNotesWhatAgentsReportAndFindsFaults(t *testing.T) {
	missing := func(group string) string {
		return `{"type":"VolumeGroupMissing","message":"volume group \"` + group + `\" does not exist on this node"}`
	}
	for name, test := range map[string]struct {
		class string
		level string
		want  []string
	}{
		"healthy": {`"totalBytes":"20","availableBytes":"10","maximumVolumeSizeBytes":"10"`, "ok", nil},
		"full": {`"totalBytes":"21474836480","availableBytes":"0","maximumVolumeSizeBytes":"0"`, "note",
			[]string{"it is full: 20.0Gi of 20.0Gi are used", "kubectl carve volumes --node n1"}},
		"without its group":   {`"conditions":[` + missing("more") + `]`, "note", []string{"VolumeGroupMissing", "vgcreate"}},
		"that lost its group": {`"conditions":[` + missing("carve") + `]`, "WRONG", []string{"VolumeGroupMissing", "holds PersistentVolumes"}},
		"that synchronises":   {`"conditions":[{"type":"OutOfSync","message":"m"}]`, "note", []string{"OutOfSync: m"}},
		"without its group, and with a fault": {`"conditions":[` + missing("more") + `,{"type":"NotResponding","message":"m"}]`, "WRONG",
			[]string{"VolumeGroupMissing", "NotResponding: m", "docs/reference/conditions.md"}},
		"whose pool failed":      {`"conditions":[{"type":"PoolFailed","message":"m"}]`, "WRONG", []string{"PoolFailed: m"}},
		"whose group is refused": {`"conditions":[{"type":"VolumeGroupReplaced","message":"m"}]`, "WRONG", []string{"VolumeGroupReplaced: m"}},
	} {
		t.Run(name, func(t *testing.T) {
			answers := scripted(map[string]string{
				"carve-lvmd classes --json": `{"name":"c","type":"linear",` + test.class + `}`, "dmsetup targets": "linear v1.4.0\n"})
			got, err := call(t, objects(), answers, "doctor", "--agents")
			line, next := "", ""
			for text := range strings.Lines(got) {
				if line != "" {
					next = text
					break
				}
				if strings.Contains(text, "class c of n1") {
					line = strings.Join(strings.Fields(text), " ")
				}
			}
			if !strings.HasPrefix(line, test.level+" class c of n1") || !containsAll(line+next, test.want) {
				t.Errorf("want %s with %q, got\n%s", test.level, test.want, got)
			}
			if errors.Is(err, ErrUnhealthy) != (test.level == "WRONG") {
				t.Errorf("got the error %v", err)
			}
		})
	}
}
