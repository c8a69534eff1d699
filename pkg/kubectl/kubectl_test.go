package kubectl

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/version"
	discovery "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/carve-csi/carve/api/names"
)

var today = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// objects returns a healthy cluster: two nodes, a volume on one of them.
func objects() []runtime.Object {
	ten, twenty := resource.MustParse("10Gi"), resource.MustParse("20Gi")
	list := []runtime.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-system", UID: "this-cluster"}},
		&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: names.Driver}},
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "carve"}, Provisioner: names.Driver},
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "other"}, Provisioner: "other.example.com"},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "carve-system", Name: "carve-uplink-ca"}, Data: map[string]string{"ca.crt": authority}},
		&appsv1.Deployment{ObjectMeta: workload("carve-controller", "carve-controller"), Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](1)}},
		&appsv1.DaemonSet{ObjectMeta: workload("carve-node", "carve-node"),
			Status: appsv1.DaemonSetStatus{DesiredNumberScheduled: 2, CurrentNumberScheduled: 2, NumberReady: 2}},
		pod("carve-system", "carve-controller-1", "carve-controller", "n1"),
		&corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "pvc-1", Annotations: map[string]string{names.AnnotationVolumeGroup: "carve/uuid"}},
			Spec: corev1.PersistentVolumeSpec{
				Capacity: corev1.ResourceList{corev1.ResourceStorage: ten}, StorageClassName: "carve",
				PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: names.Driver, VolumeHandle: "cvknown"}},
				ClaimRef:               &corev1.ObjectReference{Namespace: "team", Name: "data"},
				NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
					MatchExpressions: []corev1.NodeSelectorRequirement{{Key: names.TopologyNode, Operator: corev1.NodeSelectorOpIn, Values: []string{"n1"}}},
				}}}},
			},
			Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound},
		},
		&corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "foreign"},
			Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: "other.example.com", VolumeHandle: "x"}}},
		},
		&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "young", UID: "uid-young"}},
		&storagev1.CSIStorageCapacity{ObjectMeta: metav1.ObjectMeta{Namespace: "carve-system", Name: "other"}, StorageClassName: "other", Capacity: &twenty},
	}
	for _, name := range []string{"n1", "n2"} {
		list = append(list,
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{names.TopologyNode: name}},
				Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
					NodeInfo: corev1.NodeSystemInfo{KernelVersion: "6.12.43-amd64"}}},
			&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: names.Driver}}}},
			pod("carve-system", "carve-node-"+name, "carve-node", name),
			capacityOf(name, "carve"))
	}
	return list
}

// capacityOf returns a node's capacity for a StorageClass. The object of the class carve has the
// node's name.
func capacityOf(node, class string) *storagev1.CSIStorageCapacity {
	one, twenty := resource.MustParse("1Gi"), resource.MustParse("20Gi")
	return &storagev1.CSIStorageCapacity{
		ObjectMeta: metav1.ObjectMeta{Namespace: "carve-system", Name: strings.TrimSuffix(node+"-"+class, "-carve")}, StorageClassName: class,
		NodeTopology: &metav1.LabelSelector{MatchLabels: map[string]string{names.TopologyNode: node}},
		Capacity:     &twenty, MaximumVolumeSize: &one,
	}
}

func workload(name, app string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "carve-system", Name: name, Labels: map[string]string{labelName: app}}
}

func pod(namespace, name, app, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{labelName: app}},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "lvmd", Image: "carve:v0.2.0",
			Env: []corev1.EnvVar{{Name: "HTTP_PROXY", Value: "planted-in-the-environment"}}}}},
		Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
}

// without returns the objects that f does not drop. f may change the others.
func without(f func(runtime.Object) (drop bool)) []runtime.Object {
	return slices.DeleteFunc(objects(), f)
}

func call(t *testing.T, objects []runtime.Object, run run, args ...string) (string, error) {
	t.Helper()
	return callOn(t, fake.NewClientset(objects...), run, args...)
}

func callOn(t *testing.T, client kubernetes.Interface, run run, args ...string) (string, error) {
	t.Helper()
	return callVersion(t, client, run, "v0.2.0", args...)
}

func callVersion(t *testing.T, client kubernetes.Interface, run run, own string, args ...string) (string, error) {
	t.Helper()
	p := &plugin{version: own, namespace: "team", now: func() time.Time { return today }}
	p.connect = func() (kubernetes.Interface, runFunc, error) { return client, run, nil }
	if server, ok := client.Discovery().(*discovery.FakeDiscovery); ok && server.FakedServerVersion == nil {
		server.FakedServerVersion = &version.Info{GitVersion: "v1.37.2"}
	}
	command := p.command()
	var output bytes.Buffer
	command.SetOut(&output)
	command.SetArgs(args)
	err := command.ExecuteContext(t.Context())
	return output.String(), err
}

// runFunc is run for functions with a parameter of that name.
type runFunc = run

func TestStatusCountsWhatIsWell(t *testing.T) {
	got, err := call(t, objects(), nil, "status", "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	want := Status{Images: []string{"carve:v0.2.0"}, ControllersReady: 1, Controllers: 1, AgentsReady: 2, Agents: 2, Nodes: 2, NodesWithCapacity: 2, Volumes: 1, VolumeBytes: 10 << 30}
	var status Status
	if err := json.Unmarshal([]byte(got), &status); err != nil || !equal(t, want, status) {
		t.Errorf("want %+v, got %+v, %v", want, status, err)
	}
}

func equal(t *testing.T, a, b any) bool {
	t.Helper()
	left, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	right, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Equal(left, right)
}

func TestCapacityIsShownByNodeAndClass(t *testing.T) {
	got, err := call(t, objects(), nil, "capacity", "-o", "yaml")
	if err != nil {
		t.Fatal(err)
	}
	want := []Capacity{
		{Node: "n1", StorageClass: "carve", UsedBytes: 10 << 30, AvailableBytes: 20 << 30, LargestBytes: 1 << 30},
		{Node: "n2", StorageClass: "carve", AvailableBytes: 20 << 30, LargestBytes: 1 << 30},
	}
	var capacities []Capacity
	if err := yaml.Unmarshal([]byte(got), &capacities); err != nil || !equal(t, want, capacities) {
		t.Errorf("want %+v, got %+v, %v", want, capacities, err)
	}
	table, err := call(t, objects(), nil, "capacity")
	if err != nil || !strings.Contains(table, "n1    carve         10.0Gi  0         20.0Gi     1.0Gi           [######..............]") {
		t.Errorf("want a table with a bar of which a third is used, got\n%s%v", table, err)
	}
}

// One object covers both nodes, as in large clusters.
func TestACapacityOfAGroupIsEachMembers(t *testing.T) {
	list := without(func(o runtime.Object) bool { c, ok := o.(*storagev1.CSIStorageCapacity); return ok && c.Name == "n2" })
	for _, o := range list {
		if c, ok := o.(*storagev1.CSIStorageCapacity); ok && c.Name == "n1" {
			c.NodeTopology = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: names.TopologyNode, Operator: metav1.LabelSelectorOpExists}}}
		}
	}
	got, err := call(t, list, nil, "status", "-o", "json")
	if err != nil || !strings.Contains(got, `"nodesWithCapacity": 2`) {
		t.Errorf("want both nodes to have capacity, got %s, %v", got, err)
	}
}

func TestVolumesAreThoseOfCarve(t *testing.T) {
	got, err := call(t, objects(), nil, "volumes", "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	want := []Volume{{Name: "pvc-1", ID: "cvknown", Node: "n1", StorageClass: "carve", Bytes: 10 << 30, Claim: "team/data", Phase: "Bound"}}
	var volumes []Volume
	if err := json.Unmarshal([]byte(got), &volumes); err != nil || !equal(t, want, volumes) {
		t.Errorf("want %+v, got %+v, %v", want, volumes, err)
	}
	if got, err := call(t, objects(), nil, "volumes", "-o", "json", "--node", "n2"); err != nil || strings.TrimSpace(got) != "[]" {
		t.Errorf("volumes of n2: want none, got %s, %v", got, err)
	}
}

func TestAnUnknownFormatIsAnError(t *testing.T) {
	if _, err := call(t, objects(), nil, "status", "-o", "xml"); err == nil || !strings.Contains(err.Error(), "xml") {
		t.Errorf("want an error that names xml, got %v", err)
	}
}

// holds makes each agent report these volumes, in carve-lvmd's format, and records the calls.
func holds(volumes map[string]string, asked *[]string) run {
	var mutex sync.Mutex
	return func(_ context.Context, pod, container string, argv ...string) (string, error) {
		mutex.Lock()
		defer mutex.Unlock()
		*asked = append(*asked, pod+"/"+container+": "+strings.Join(argv, " "))
		text, ok := volumes[pod]
		if !ok {
			return "", errors.New("no answer")
		}
		return text, nil
	}
}

const (
	held = `{"id":"cvknown","name":"pvc-1","sizeBytes":"1","state":"VOLUME_STATE_READY","createdAt":"2026-04-01T00:00:00Z","owner":{"clusterId":"this-cluster"}}
{"id":"cvclaim","name":"pvc-uid-young","sizeBytes":"1","state":"VOLUME_STATE_READY","createdAt":"2026-04-01T00:00:00Z","owner":{"clusterId":"this-cluster"}}
{"id":"cvinline","name":"inline","sizeBytes":"1","state":"VOLUME_STATE_READY","createdAt":"2026-04-01T00:00:00Z","owner":{"clusterId":"this-cluster","podUid":"u"}}
{"id":"cvnew","name":"pvc-new","sizeBytes":"1","state":"VOLUME_STATE_READY","createdAt":"2026-05-01T11:59:00Z","owner":{"clusterId":"this-cluster"}}
{"id":"cvlost","name":"pvc-lost","deviceClass":"local","sizeBytes":"1073741824","state":"VOLUME_STATE_READY","createdAt":"2026-04-01T00:00:00Z","owner":{"clusterId":"this-cluster","claimNamespace":"team","claimName":"gone"}}
{"id":"cvmaking","name":"pvc-making","sizeBytes":"1","state":"VOLUME_STATE_CREATING","createdAt":"2026-04-01T00:00:00Z","owner":{"clusterId":"this-cluster"}}
{"id":"cvhand","name":"db","sizeBytes":"1","state":"VOLUME_STATE_READY","createdAt":"2026-04-01T00:00:00Z"}
`
)

func TestOrphansAreWhatTheAPIDoesNotKnow(t *testing.T) {
	var asked []string
	got, err := call(t, objects(), holds(map[string]string{"carve-node-n1": held}, &asked), "orphans", "-o", "json")
	if !errors.Is(err, ErrUnreachable) || !strings.HasSuffix(err.Error(), ": n2") {
		t.Fatalf("want %v: n2, got %v", ErrUnreachable, err)
	}
	var found Orphans
	if err := json.Unmarshal([]byte(got), &found); err != nil {
		t.Fatal(err)
	}
	made := time.Date(2026, 4, 1, 0, 0, 0, 0, time.UTC)
	want := Orphans{
		Orphans: []Orphan{
			{ID: "cvlost", Name: "pvc-lost", Node: "n1", Class: "local", Bytes: 1 << 30, Made: made, Claim: "team/gone"},
			{ID: "cvhand", Name: "db", Node: "n1", Bytes: 1, Made: made, Foreign: true},
		},
		Unreachable: map[string]string{"n2": "no answer"},
	}
	if !equal(t, want, found) {
		t.Errorf("want %+v, got %+v", want, found)
	}
	table, err := call(t, objects(), holds(map[string]string{"carve-node-n1": held}, &asked), "orphans")
	if words := strings.Join(strings.Fields(table), " "); !errors.Is(err, ErrUnreachable) || strings.Count(words, "not of this cluster") != 1 || !strings.Contains(words, "? n2 no answer") {
		t.Errorf("want a table that names what is not of this cluster and the node that did not answer, got\n%s%v", table, err)
	}
}

func TestVolumeThatClaimNamesIsNoOrphan(t *testing.T) {
	renamed := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "renamed", UID: "uid-renamed"},
		Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pvc-lost"}}
	var asked []string
	run := holds(map[string]string{"carve-node-n1": held, "carve-node-n2": ""}, &asked)
	if _, err := call(t, append(objects(), renamed), run, "orphans", "remove", "cvlost", "--yes"); !errors.Is(err, ErrNotAnOrphan) {
		t.Errorf("want %v, got %v of %q", ErrNotAnOrphan, err, asked)
	}
}

func TestOrphansAreRemovedWithCare(t *testing.T) {
	for _, test := range []struct {
		args    []string
		want    error
		deleted string
	}{
		{[]string{"cvlost"}, nil, ""},
		{[]string{"cvlost", "--yes"}, nil, "cvlost"},
		{[]string{"cvknown", "--yes"}, ErrNotAnOrphan, ""},
		{[]string{"cvclaim", "--yes"}, ErrNotAnOrphan, ""},
		{[]string{"cvhand", "--yes"}, ErrForeign, ""},
		{[]string{"cvhand", "--yes", "--foreign"}, nil, "cvhand"},
	} {
		var asked []string
		_, err := call(t, objects(), holds(map[string]string{"carve-node-n1": held, "carve-node-n2": ""}, &asked), append([]string{"orphans", "remove"}, test.args...)...)
		if !errors.Is(err, test.want) {
			t.Errorf("%q: want %v, got %v", test.args, test.want, err)
		}
		deleted := ""
		for _, one := range asked {
			if _, id, ok := strings.Cut(one, "carve-node-n1/lvmd: carve-lvmd delete "); ok {
				deleted += id
			}
		}
		if deleted != test.deleted {
			t.Errorf("%q: want %q deleted, got %q of %q", test.args, test.deleted, deleted, asked)
		}
	}
}

func TestDoctorFindsWhatIsWrong(t *testing.T) {
	if got, err := call(t, objects(), nil, "doctor"); err != nil {
		t.Fatalf("of a cluster that is well: %v\n%s", err, got)
	}
	for name, test := range map[string]struct {
		change func(runtime.Object) (drop bool)
		want   string
	}{
		"no driver":     {func(o runtime.Object) bool { _, ok := o.(*storagev1.CSIDriver); return ok }, "driver: there is no CSIDriver"},
		"no controller": {func(o runtime.Object) bool { p, ok := o.(*corev1.Pod); return ok && p.Name == "carve-controller-1" }, "controllers: 0 of 1 Pods exist next: kubectl -n carve-system describe deployments"},
		"a controller that is not ready": {func(o runtime.Object) bool {
			if p, ok := o.(*corev1.Pod); ok && p.Name == "carve-controller-1" {
				p.Status.Conditions = nil
			}
			return false
		}, "controllers: 0 of 1 are ready"},
		"Carve in another namespace": {func(o runtime.Object) bool {
			named, ok := o.(metav1.Object)
			return ok && named.GetNamespace() == "carve-system"
		}, "controllers: there is no Deployment carve-controller"},
		"a controller that is refused": {func(o runtime.Object) bool {
			if d, ok := o.(*appsv1.Deployment); ok {
				d.Spec.Replicas = ptr.To[int32](2)
			}
			return false
		}, "controllers: 1 of 2 Pods exist"},
		"no DaemonSet": {func(o runtime.Object) bool { _, ok := o.(*appsv1.DaemonSet); return ok }, "agents: there is no DaemonSet carve-node"},
		"agents that are refused": {func(o runtime.Object) bool {
			if d, ok := o.(*appsv1.DaemonSet); ok {
				d.Status.CurrentNumberScheduled, d.Status.NumberReady = 0, 0
			}
			p, ok := o.(*corev1.Pod)
			return ok && p.Labels[labelName] == nameAgent
		}, "agents of carve-node: 0 of 2 nodes have their Pod next: kubectl -n carve-system describe daemonset carve-node"},
		"an agent that is not ready, of the DaemonSet": {func(o runtime.Object) bool {
			if d, ok := o.(*appsv1.DaemonSet); ok {
				d.Status.NumberReady = 1
			}
			return false
		}, "agents of carve-node: 1 of 2 Pods are ready"},
		"a DaemonSet that is not looked at": {func(o runtime.Object) bool {
			if d, ok := o.(*appsv1.DaemonSet); ok {
				d.Generation = 1
			}
			return false
		}, "agents of carve-node: the controller manager has not looked"},
		"an agent that is not scheduled": {func(o runtime.Object) bool {
			if p, ok := o.(*corev1.Pod); ok && p.Name == "carve-node-n2" {
				p.Spec.NodeName, p.Status.Conditions = "", nil
				p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
					NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"n2"}}}}}}}}
			}
			return false
		}, "node n2: its agent is not ready next: kubectl -n carve-system describe pod carve-node-n2"},
		"two versions": {func(o runtime.Object) bool {
			if p, ok := o.(*corev1.Pod); ok && p.Name == "carve-node-n2" {
				p.Spec.Containers[0].Image = "carve:v0.4.0"
			}
			return false
		}, "one image: several are in use: carve:v0.2.0, carve:v0.4.0"},
		"no certificate": {func(o runtime.Object) bool { _, ok := o.(*corev1.ConfigMap); return ok }, "certificate authority: there is no ConfigMap"},
		"a certificate that is none": {func(o runtime.Object) bool {
			if c, ok := o.(*corev1.ConfigMap); ok {
				c.Data["ca.crt"] = "x"
			}
			return false
		}, "certificate authority: the ConfigMap carve-uplink-ca holds none"},
		"no class": {func(o runtime.Object) bool {
			c, ok := o.(*storagev1.StorageClass)
			return ok && c.Name == "carve"
		}, "StorageClasses: none"},
		"a node that is not ready": {func(o runtime.Object) bool {
			if n, ok := o.(*corev1.Node); ok && n.Name == "n2" {
				n.Status.Conditions = nil
			}
			return false
		}, "node n2: it is not ready"},
		"an agent that is not ready": {func(o runtime.Object) bool {
			if p, ok := o.(*corev1.Pod); ok && p.Name == "carve-node-n2" {
				p.Status.Conditions = nil
			}
			return false
		}, "node n2: its agent is not ready"},
		"a kubelet that does not know the driver": {func(o runtime.Object) bool {
			if n, ok := o.(*storagev1.CSINode); ok && n.Name == "n2" {
				n.Spec.Drivers = nil
			}
			return false
		}, "node n2: its kubelet does not know"},
		"a volume of a node that is gone": {func(o runtime.Object) bool { n, ok := o.(*corev1.Node); return ok && n.Name == "n1" },
			"volume pvc-1: its node does not exist"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := call(t, without(test.change), nil, "doctor")
			if !errors.Is(err, ErrUnhealthy) || !strings.Contains(strings.Join(strings.Fields(got), " "), "WRONG "+test.want) {
				t.Errorf("want %q and %v, got %v\n%s", test.want, ErrUnhealthy, err, got)
			}
		})
	}
}

// No node has an agent, then one of two.
func TestDoctorLeavesNodesWithoutAgentsAlone(t *testing.T) {
	for agents, want := range []string{"note agents: no node is to have one", "ok agents of carve-node"} {
		list := without(func(o runtime.Object) bool {
			if d, ok := o.(*appsv1.DaemonSet); ok {
				n := int32(agents)
				d.Status = appsv1.DaemonSetStatus{DesiredNumberScheduled: n, CurrentNumberScheduled: n, NumberReady: n}
			}
			p, ok := o.(*corev1.Pod)
			return ok && p.Labels[labelName] == nameAgent && (agents == 0 || p.Spec.NodeName != "n1")
		})
		got, err := call(t, list, nil, "doctor")
		if err != nil || !strings.Contains(strings.Join(strings.Fields(got), " "), want) {
			t.Errorf("want %q, got %v\n%s", want, err, got)
		}
	}
}

func TestACertificateIsReportedBeforeItsEnd(t *testing.T) {
	certificate, err := lastCertificate([]byte(authority))
	if err != nil {
		t.Fatal(err)
	}
	client := fake.NewClientset(objects()...)
	for _, test := range []struct {
		at   time.Duration
		want string
	}{{-30 * 24 * time.Hour, ""}, {-24 * time.Hour, "it ends on"}, {time.Hour, "it ended on"}} {
		p := &plugin{carve: "carve-system", now: func() time.Time { return certificate.NotAfter.Add(test.at) }}
		got, err := p.certificate(t.Context(), client)
		if err != nil || (got == "") != (test.want == "") || !strings.HasPrefix(got, test.want) {
			t.Errorf("%v from its end: want %q, got %q, %v", test.at, test.want, got, err)
		}
	}
}

func TestWhyReadsThePodsClaims(t *testing.T) {
	class := "carve"
	waiting := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "p"},
		Spec: corev1.PodSpec{Volumes: []corev1.Volume{
			{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}},
			{Name: "config", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		}},
	}
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "p-scratch"},
		Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &class, Resources: corev1.VolumeResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")}}},
	}
	event := func(name, reason, message string, at time.Time) *corev1.Event {
		return &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name}, Reason: reason, Message: message, LastTimestamp: metav1.Time{Time: at},
			InvolvedObject: corev1.ObjectReference{Kind: "PersistentVolumeClaim", Name: "p-scratch", Namespace: "team"}}
	}
	got, err := call(t, append(objects(), waiting, claim), nil, "why", "p")
	if err != nil || !strings.Contains(got, "n1: the largest volume of carve is 1Gi, p-scratch asks for 2Gi") {
		t.Errorf("want why no node will do, got %v\n%s", err, got)
	}
	got, err = call(t, append(objects(), waiting, claim, event("a", "ProvisioningFailed", "the older", today.Add(-time.Hour)), event("b", "ProvisioningFailed", "the newer", today)), nil, "why", "p")
	if err != nil || !strings.Contains(got, "claim/p-scratch: its volume could not be made: the newer") {
		t.Errorf("want the newest Event, got %v\n%s", err, got)
	}
	if _, err := call(t, objects(), nil, "why", "missing"); err == nil {
		t.Error("of a Pod that does not exist: want an error")
	}
}

func TestTheBundleHoldsNoSecrets(t *testing.T) {
	list := objects()
	for _, o := range list {
		switch o := o.(type) {
		case *corev1.Pod:
			o.Annotations = map[string]string{corev1.LastAppliedConfigAnnotation: "planted-by-kubectl", "note": "password=planted-in-an-annotation"}
		case *corev1.PersistentVolume:
			o.Annotations = map[string]string{"note": "https://user:planted-in-an-address@host/"}
		case *corev1.Node:
			o.Annotations = map[string]string{"note": "Authorization: Bearer planted-bearer-token"}
		}
	}
	list = append(list, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "carve-system", Name: "carve-metrics-token"}, StringData: map[string]string{"token": "planted-in-a-secret"}},
		&corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "carve-system", Name: "e"}, Message: `{"api_key": "planted-in-an-event"}`})
	file := filepath.Join(t.TempDir(), "b.tar.gz")
	if _, err := call(t, list, nil, "support-bundle", "--file", file); err != nil {
		t.Fatal(err)
	}
	all, held := unpacked(t, file)
	for name, text := range held {
		if i := strings.Index(text, "planted"); i >= 0 {
			t.Errorf("%s holds a secret: …%s…", name, text[max(0, i-60):min(len(text), i+60)])
		}
	}
	for _, want := range []string{"nodes/n1.yaml", "volumes/pvc-1.yaml", "pods/carve-node-n1.yaml", "logs/carve-node-n1/lvmd.log", "events.yaml", "doctor.yaml", "version.txt"} {
		if !slices.Contains(all, want) {
			t.Errorf("want %s in the archive, got %q", want, all)
		}
	}
	if _, err := call(t, list, nil, "support-bundle", "--file", file); !errors.Is(err, os.ErrExist) {
		t.Errorf("over a file that exists: want %v, got %v", os.ErrExist, err)
	}
}

func TestRedactTakesSecretsAndLeavesTheRest(t *testing.T) {
	for text, want := range map[string]string{
		"token eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJlIn0.c2lnbmF0dXJl end":         "token " + redacted + " end",
		"a\n-----BEGIN EC PRIVATE KEY-----\nxyz\n-----END EC PRIVATE KEY-----\nb": "a\n" + redacted + "\nb",
		"-----BEGIN CERTIFICATE-----\ncut off":                                    redacted,
		"authorization: Bearer abcdefgh1234":                                      "authorization: Bearer " + redacted,
		`{"adminPassword":"p w","x":1}`:                                           `{"adminPassword":` + redacted + `,"x":1}`,
		"client-secret=abc next":                                                  "client-secret=" + redacted + " next",
		"https://u:p@host/x":                                                      "https://" + redacted + "@host/x",
		"secretName: carve-metrics-token":                                         "secretName: carve-metrics-token",
		"volume cvknown of claim team/data: no space":                             "volume cvknown of claim team/data: no space",
		"--metrics-token-file=/etc/carve/metrics/token":                           "--metrics-token-file=/etc/carve/metrics/token",
	} {
		if got := string(redact([]byte(text))); got != want {
			t.Errorf("%q: want %q, got %q", text, want, got)
		}
	}
}

func TestCompletionIsThere(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if got, err := call(t, nil, nil, "completion", shell); err != nil || !strings.Contains(got, "carve") {
			t.Errorf("%s: got %d bytes, %v", shell, len(got), err)
		}
	}
}
