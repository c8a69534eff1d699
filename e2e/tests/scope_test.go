//go:build e2e

package tests

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/e2e/carve"
)

const (
	// waitTimeout bounds a wait for something that takes seconds natively and
	// an order of magnitude more in an emulated machine.
	waitTimeout = 4 * time.Minute
	// workload is the image of the tests' Pods.
	workload = "busybox:1.36"
	// idle is the script of a Pod that does nothing.
	idle   = "exec sleep 1000000"
	extent = int64(4 << 20)
)

// testLabel is on the namespaces of the tests.
const testLabel = "carve.csi.local/e2e"

// namespacesGone waits until the namespaces of all tests are gone: an object that keeps a
// finalizer would keep its namespace.
func namespacesGone(ctx context.Context) error {
	return carve.Until(ctx, waitTimeout, "the namespaces of the tests are gone", func(ctx context.Context) error {
		list, err := client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: testLabel})
		if err != nil {
			return err
		}
		for _, namespace := range list.Items {
			return fmt.Errorf("%s is there: %v", namespace.Name, namespace.Status.Conditions)
		}
		return nil
	})
}

// notWhole is the name of the first test that did not find Carve whole. Those after it fail
// at once: each would wait as long, and say no more.
var notWhole atomic.Pointer[string]

// scope is what one test works in.
type scope struct {
	*testing.T
	*carve.Client
	ctx       context.Context
	namespace string
	nodes     []string
	started   time.Time
}

var notNamespace = regexp.MustCompile(`[^a-z0-9]+`)

// begin makes a namespace for a test that has the cluster for itself and, when the test
// ends, removes it and checks that the nodes are as they were.
func begin(t *testing.T) *scope {
	t.Helper()
	s := open(t)
	before := s.footprint()
	volumes := s.persistentVolumes()
	s.Cleanup(func() {
		s.clean(func(ctx context.Context) error { return s.asBefore(ctx, before, volumes) })
	})
	return s
}

// beside is begin for a test that others may run beside: it needs no exact capacity, and
// replaces nothing that others use. What it leaves is distinguished by its namespace; all
// that such tests leave together is compared when the last one has ended.
func beside(t *testing.T) *scope {
	t.Helper()
	t.Parallel()
	s := open(t)
	s.Cleanup(func() {
		mine, err := s.myVolumes(context.Background())
		if err != nil {
			s.Errorf("look at the nodes: %v", err)
		}
		s.clean(func(ctx context.Context) error { return s.noneOfMine(ctx, mine) })
	})
	return s
}

// within is begin for a part of a test that has begun: what the part leaves on the nodes is
// found when the test ends.
func within(t *testing.T) *scope {
	t.Helper()
	s := open(t)
	s.Cleanup(func() { s.clean(func(context.Context) error { return nil }) })
	return s
}

// open makes a namespace for the test.
func open(t *testing.T) *scope {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	t.Cleanup(cancel)
	s := &scope{T: t, Client: client, ctx: ctx, nodes: client.Cluster.NodeNames(), started: time.Now()}
	s.namespace = strings.Trim(notNamespace.ReplaceAllString(strings.ToLower(t.Name()), "-"), "-")
	if len(s.namespace) > 60 {
		s.namespace = strings.Trim(s.namespace[:60], "-")
	}
	// The test before may have killed or replaced what this one is about to ask.
	if test := notWhole.Load(); test != nil {
		t.Fatalf("Carve has not been whole since before %s", *test)
	}
	if err := s.WaitReady(ctx, waitTimeout); err != nil {
		t.Errorf("Carve is not whole: %v", err)
		if !restartUnwell(t) || s.WaitReady(ctx, waitTimeout) != nil {
			name := t.Name()
			notWhole.Store(&name)
		}
		t.FailNow()
	}
	s.must(carve.Until(ctx, waitTimeout, "the namespace is made", func(ctx context.Context) error {
		// One of an earlier run of the same test may be on its way out.
		_, err := s.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{
			ObjectMeta: metav1.ObjectMeta{Name: s.namespace, Labels: map[string]string{testLabel: "true"}},
		}, metav1.CreateOptions{})
		return err
	}), "make the namespace")
	return s
}

func (s *scope) must(err error, what string) {
	s.Helper()
	if err != nil {
		s.Fatalf("%s: %v", what, err)
	}
}

func (s *scope) footprint() map[string][]string {
	s.Helper()
	all, err := footprints(s.ctx)
	s.must(err, "look at the nodes")
	return all
}

// footprints looks at all nodes at once.
func footprints(ctx context.Context) (map[string][]string, error) {
	var mu sync.Mutex
	all := map[string][]string{}
	ctx, cancel := context.WithTimeout(ctx, time.Minute) // A machine that hangs answers nothing.
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	for _, node := range client.Cluster.NodeNames() {
		group.Go(func() error {
			lines, err := client.Footprint(ctx, node)
			mu.Lock()
			defer mu.Unlock()
			all[node] = lines
			return err
		})
	}
	return all, group.Wait()
}

func (s *scope) persistentVolumes() []string {
	s.Helper()
	list, err := s.CoreV1().PersistentVolumes().List(s.ctx, metav1.ListOptions{})
	s.must(err, "list PersistentVolumes")
	var names []string
	for _, pv := range list.Items {
		names = append(names, pv.Name)
	}
	return names
}

// clean removes the namespace and waits until check finds nothing that is left.
func (s *scope) clean(check func(context.Context) error) {
	s.Helper()
	if s.Failed() {
		s.describe()
	}
	defer func() { s.Logf("%s took %v with cleaning up", s.Name(), time.Since(s.started).Round(time.Second)) }()
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout+time.Minute)
	defer cancel()
	s.ctx = ctx
	zero := int64(0)
	err := s.CoreV1().Pods(s.namespace).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &zero}, metav1.ListOptions{})
	if err != nil {
		s.Errorf("delete the test's Pods: %v", err)
	}
	if err := s.CoreV1().Namespaces().Delete(ctx, s.namespace, metav1.DeleteOptions{}); err != nil {
		s.Errorf("delete the namespace: %v", err)
		return
	}
	// The Namespace object itself may stay for a while: namespacesGone looks at it.
	if err := carve.Until(ctx, waitTimeout, "nothing is left", check); err != nil {
		s.Errorf("left behind: %v", err)
		s.describe()
		if !restartUnwell(s.T) {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
		defer cancel()
		if err := carve.Until(ctx, waitTimeout, "nothing is left with all nodes on", check); err != nil {
			s.Errorf("left behind with all nodes on: %v", err)
		}
	}
}

// restartUnwell cuts the power of the nodes that are not well and switches them on again, and says what
// was wrong: a machine that hangs fails one test, not all that come after it. It reports whether there
// were such nodes, and all are on again.
func restartUnwell(t *testing.T) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	unwell := client.Cluster.Unwell(ctx)
	for _, node := range slices.Sorted(maps.Keys(unwell)) {
		t.Logf("%s is not well: %s", node, unwell[node])
		if err := client.Cluster.Kill(ctx, node); err != nil {
			t.Errorf("cut the power of %s: %v", node, err)
			return false
		}
		if err := client.Cluster.Start(ctx, node); err != nil {
			t.Errorf("switch %s on: %v", node, err)
			return false
		}
	}
	return len(unwell) > 0
}

// asBefore reports what differs on the nodes and among the PersistentVolumes from what
// there was before.
func (s *scope) asBefore(ctx context.Context, before map[string][]string, volumes []string) error {
	list, err := s.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, pv := range list.Items {
		if !slices.Contains(volumes, pv.Name) {
			return fmt.Errorf("PersistentVolume %s is %s", pv.Name, pv.Status.Phase)
		}
	}
	after, err := footprints(ctx)
	if err != nil {
		return err
	}
	for _, node := range s.nodes {
		if !slices.Equal(before[node], after[node]) {
			return fmt.Errorf("%s has %q, had %q before", node, after[node], before[node])
		}
	}
	return nil
}

// myVolumes returns the names of the logical volumes that Pods and claims of the test's
// namespace have.
func (s *scope) myVolumes(ctx context.Context) ([]string, error) {
	var names []string
	for _, node := range s.nodes {
		volumes, err := s.LogicalVolumes(ctx, node)
		if err != nil {
			return nil, err
		}
		for _, volume := range volumes {
			if slices.Contains(volume.Tags, "carve.ns="+s.namespace) || slices.Contains(volume.Tags, "carve.podns="+s.namespace) {
				names = append(names, volume.Name)
			}
		}
	}
	return names, nil
}

// noneOfMine reports what is left of the test: PersistentVolumes of its claims, logical
// volumes of its namespace, and whatever has the name of one that was there.
func (s *scope) noneOfMine(ctx context.Context, mine []string) error {
	list, err := s.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, pv := range list.Items {
		if claim := pv.Spec.ClaimRef; claim != nil && claim.Namespace == s.namespace {
			return fmt.Errorf("PersistentVolume %s of claim %s is %s", pv.Name, claim.Name, pv.Status.Phase)
		}
	}
	if left, err := s.myVolumes(ctx); err != nil || len(left) > 0 {
		return errors.Join(err, fmt.Errorf("there are logical volumes %q", left))
	}
	after, err := footprints(ctx)
	if err != nil {
		return err
	}
	for node, lines := range after {
		for _, line := range lines {
			if slices.ContainsFunc(mine, func(name string) bool { return strings.Contains(line, name) }) {
				return fmt.Errorf("%s has %s", node, line)
			}
		}
	}
	return nil
}

// describe prints what a person would look at after a failure.
func (s *scope) describe() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, args := range [][]string{
		{"get", "pods,pvc", "--namespace", s.namespace, "--output", "wide"},
		{"get", "events", "--namespace", s.namespace, "--sort-by=.lastTimestamp"},
		{"get", "csistoragecapacities", "--namespace", carve.Namespace, "--output", "wide"},
		{"get", "pods", "--namespace", carve.Namespace, "--output", "wide"},
		{"get", "pv"},
	} {
		output, err := s.Kubectl(ctx, nil, args...)
		s.Logf("kubectl %s\n%s%v", strings.Join(args, " "), output, errorText(err))
	}
}

func errorText(err error) string {
	if err != nil {
		return err.Error()
	}
	return ""
}

// podOptions shape the Pods of the tests.
type podOptions struct {
	class  string // "" means carve
	bytes  int64
	node   string // "" means that the scheduler chooses
	script string // "" means to write a marker and sleep
	block  bool
}

const (
	mountPath  = "/scratch"
	devicePath = "/dev/scratch"
)

// claimSpec is what a Pod's volume is asked for with.
func claimSpec(o podOptions) corev1.PersistentVolumeClaimSpec {
	if o.class == "" {
		o.class = "carve"
	}
	spec := corev1.PersistentVolumeClaimSpec{
		AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		StorageClassName: &o.class,
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{
			corev1.ResourceStorage: *resource.NewQuantity(o.bytes, resource.BinarySI),
		}},
	}
	if o.block {
		mode := corev1.PersistentVolumeBlock
		spec.VolumeMode = &mode
	}
	return spec
}

// pod returns a Pod with one generic ephemeral volume named scratch.
func pod(name string, o podOptions) *corev1.Pod {
	if o.script == "" {
		o.script = "echo " + name + " > " + mountPath + "/marker && sync && exec sleep 1000000"
		if o.block {
			o.script = idle
		}
	}
	container := corev1.Container{
		Name: "app", Image: workload, ImagePullPolicy: corev1.PullNever,
		Command: []string{"sh", "-c", o.script},
	}
	if o.block {
		container.VolumeDevices = []corev1.VolumeDevice{{Name: "scratch", DevicePath: devicePath}}
	} else {
		container.VolumeMounts = []corev1.VolumeMount{{Name: "scratch", MountPath: mountPath}}
	}
	grace := int64(1)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &grace,
			Containers:                    []corev1.Container{container},
			Volumes: []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{
				Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{Spec: claimSpec(o)}},
			}}},
		},
	}
	if o.node != "" {
		p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: o.node}
	}
	return p
}

// podOf is pod with a claim that is there instead of an ephemeral volume.
func podOf(name, claim string, o podOptions) *corev1.Pod {
	p := pod(name, o)
	p.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}
	return p
}

// start creates a Pod with an ephemeral volume.
func (s *scope) start(name string, o podOptions) {
	s.Helper()
	s.create(pod(name, o))
}

// create creates Pods.
func (s *scope) create(pods ...*corev1.Pod) {
	s.Helper()
	for _, p := range pods {
		_, err := s.CoreV1().Pods(s.namespace).Create(s.ctx, p, metav1.CreateOptions{})
		s.must(err, "create Pod "+p.Name)
	}
}

// createClaim makes a claim.
func (s *scope) createClaim(name string, spec corev1.PersistentVolumeClaimSpec) {
	s.Helper()
	_, err := s.CoreV1().PersistentVolumeClaims(s.namespace).Create(s.ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec,
	}, metav1.CreateOptions{})
	s.must(err, "create claim "+name)
}

// remove deletes Pods and waits until they are gone.
func (s *scope) remove(names ...string) {
	s.Helper()
	for _, name := range names {
		s.must(s.CoreV1().Pods(s.namespace).Delete(s.ctx, name, metav1.DeleteOptions{}), "delete Pod "+name)
	}
	for _, name := range names {
		s.gone("Pod "+name, func(ctx context.Context) error {
			_, err := s.CoreV1().Pods(s.namespace).Get(ctx, name, metav1.GetOptions{})
			return err
		})
	}
}

// running waits until the Pods run.
func (s *scope) running(names ...string) {
	s.Helper()
	s.must(s.PodsRunning(s.ctx, waitTimeout, s.namespace, names...), "run the Pods")
}

// nodeOf returns where a Pod was placed.
func (s *scope) nodeOf(pod string) string {
	s.Helper()
	p, err := s.CoreV1().Pods(s.namespace).Get(s.ctx, pod, metav1.GetOptions{})
	s.must(err, "get Pod "+pod)
	return p.Spec.NodeName
}

// capacity returns what is published for a node and the class carve.
func (s *scope) capacity(node string) int64 {
	s.Helper()
	bytes, err := s.CapacityBytes(s.ctx, node, "carve")
	s.must(err, "read the capacity of "+node)
	return bytes
}

// storageClass makes a StorageClass of ours for the test's time.
func (s *scope) storageClass(name string, parameters map[string]string) {
	s.Helper()
	binding, growing := storagev1.VolumeBindingWaitForFirstConsumer, true
	_, err := s.StorageV1().StorageClasses().Create(s.ctx, &storagev1.StorageClass{
		ObjectMeta:  metav1.ObjectMeta{Name: name},
		Provisioner: carve.Driver, VolumeBindingMode: &binding, AllowVolumeExpansion: &growing, Parameters: parameters,
	}, metav1.CreateOptions{})
	s.must(err, "make StorageClass "+name)
	s.dropStorageClass(name)
}

// dropStorageClass removes a StorageClass at the end of the test.
func (s *scope) dropStorageClass(name string) {
	s.Helper()
	s.Cleanup(func() {
		err := s.StorageV1().StorageClasses().Delete(context.Background(), name, metav1.DeleteOptions{})
		if err != nil {
			s.Errorf("delete StorageClass %s: %v", name, err)
		}
	})
}

// node runs a command on a node and returns what it printed.
func (s *scope) node(node string, argv ...string) string {
	s.Helper()
	output, err := s.NodeExec(s.ctx, node, argv...)
	s.must(err, "run a command on "+node)
	return output
}
