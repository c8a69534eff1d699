//go:build e2e

package tests

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/e2e/carve"
)

const (
	// patience bounds a wait for something that takes seconds natively and
	// an order of magnitude more in an emulated machine.
	patience = 4 * time.Minute
	// workload is the image of the tests' Pods.
	workload = "busybox:1.36"
	// idle is the script of a Pod that does nothing.
	idle   = "exec sleep 1000000"
	extent = int64(4 << 20)
)

// scope is what one test works in.
type scope struct {
	*testing.T
	*carve.Client
	ctx       context.Context
	namespace string
	nodes     []string
}

var notNamespace = regexp.MustCompile(`[^a-z0-9]+`)

// begin makes a namespace for the test and, when the test ends, removes it
// and checks that the nodes are as they were.
func begin(t *testing.T) *scope {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	t.Cleanup(cancel)
	s := &scope{T: t, Client: client, ctx: ctx, nodes: client.Cluster.NodeNames()}
	s.namespace = strings.Trim(notNamespace.ReplaceAllString(strings.ToLower(t.Name()), "-"), "-")
	if len(s.namespace) > 60 {
		s.namespace = strings.Trim(s.namespace[:60], "-")
	}
	// The test before may have killed or replaced what this one is about to ask.
	s.must(s.Settled(ctx, patience), "Carve is whole")
	before := s.footprint()
	volumes := s.persistentVolumes()
	_, err := s.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}}, metav1.CreateOptions{})
	s.must(err, "make the namespace")
	started := time.Now()
	t.Cleanup(func() {
		if t.Failed() {
			s.describe()
		}
		s.clean(before, volumes)
		t.Logf("%s took %v with cleaning up", t.Name(), time.Since(started).Round(time.Second))
	})
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
	all := map[string][]string{}
	for _, node := range s.nodes {
		lines, err := s.Footprint(s.ctx, node)
		s.must(err, "look at "+node)
		all[node] = lines
	}
	return all
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

// clean removes the namespace and waits until nodes and PersistentVolumes are
// as they were before the test.
func (s *scope) clean(before map[string][]string, volumes []string) {
	s.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience+time.Minute)
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
	err = carve.Until(ctx, patience, "the namespace is gone", func(ctx context.Context) error {
		_, err := s.CoreV1().Namespaces().Get(ctx, s.namespace, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err == nil {
			err = errors.New("it is still there")
		}
		return err
	})
	if err != nil {
		s.Errorf("%v", err)
		return
	}
	err = carve.Until(ctx, patience, "nothing is left", func(ctx context.Context) error {
		list, err := s.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, pv := range list.Items {
			if !slices.Contains(volumes, pv.Name) {
				return fmt.Errorf("PersistentVolume %s is %s", pv.Name, pv.Status.Phase)
			}
		}
		for _, node := range s.nodes {
			after, err := s.Footprint(ctx, node)
			if err != nil {
				return err
			}
			if !slices.Equal(before[node], after) {
				return fmt.Errorf("%s has %q, had %q before", node, after, before[node])
			}
		}
		return nil
	})
	if err != nil {
		s.Errorf("%v", err)
	}
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
	s.must(s.PodsRunning(s.ctx, patience, s.namespace, names...), "run the Pods")
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
