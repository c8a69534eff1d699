package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/e2e/carve"
)

const (
	roundTimeout = 6 * time.Minute
	volumeBytes  = int64(32 << 20)
	selectedNode = "volume.kubernetes.io/selected-node"
)

// kind is one way to have a folder to write to.
type kind struct {
	name      string
	volume    bool
	scheduler string // empty for the cluster's own
	byHand    bool   // volumes alone, without Pods
}

var kinds = []kind{
	{name: "emptyDir"},
	{name: "Carve, kube-scheduler", volume: true},
	{name: "Carve, carve-scheduler", volume: true, scheduler: "carve"},
	{name: "by hand", byHand: true},
}

// round is what one set of Pods, created at once, took.
type round struct {
	placed  []time.Duration // creation to the choice of a node for good, per Pod
	started []time.Duration // creation to Running, per Pod
	bound   []time.Duration // selected-node to bound, per claim
	mounted []time.Duration // stage and publish, per volume
	byHand  []time.Duration // lvcreate, mkfs.ext4 and mount, per volume
	all     time.Duration   // first creation to the last Pod Running
	cpu     time.Duration   // what the nodes' processors worked meanwhile
}

// measure runs a round of every kind, in turn, so that drift of the machine meets all kinds alike.
func (t table) measure(ctx context.Context, client *carve.Client, pods int) error {
	for i, k := range kinds {
		fmt.Fprintf(os.Stderr, "%d Pods, %s\n", pods, k.name)
		var r *round
		var err error
		if k.byHand {
			r, err = byHandRound(ctx, client, pods)
		} else {
			r, err = oneRound(ctx, client, pods, k)
		}
		if err != nil {
			return fmt.Errorf("%d Pods, %s: %w", pods, k.name, err)
		}
		t.add(pods, i, *r)
	}
	return nil
}

// oneRound creates Pods in a namespace of their own, waits until they run and
// removes them with all that they had.
func oneRound(ctx context.Context, client *carve.Client, pods int, k kind) (_ *round, err error) {
	ctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	namespace, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "bench-"}}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	defer func() {
		if removeErr := remove(context.WithoutCancel(ctx), client, namespace.Name); err == nil {
			err = removeErr
		}
	}()
	// The namespace's service account is made a moment after the namespace.
	err = carve.Until(ctx, time.Minute, "the namespace has its service account", func(ctx context.Context) error {
		_, err := client.CoreV1().ServiceAccounts(namespace.Name).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	if err != nil {
		return nil, err
	}
	podEvents, err := client.CoreV1().Pods(namespace.Name).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	defer podEvents.Stop()
	claimEvents, err := client.CoreV1().PersistentVolumeClaims(namespace.Name).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	defer claimEvents.Stop()
	before, err := processorTime(ctx, client)
	if err != nil {
		return nil, err
	}

	o := newObserver(k, pods)
	begin := time.Now()
	created := make(chan error, 1)
	go func() { created <- createPods(ctx, client, namespace.Name, pods, k, o.created) }()
	r, err := o.observe(ctx, podEvents, claimEvents, created)
	if err != nil {
		return nil, err
	}
	r.all = time.Since(begin)
	after, err := processorTime(ctx, client)
	if err != nil {
		return nil, err
	}
	r.cpu = after - before
	r.mounted, err = mountTimes(ctx, client, namespace.Name)
	return r, err
}

// createPods creates the Pods of a round one after the other, and notes before each call when.
func createPods(ctx context.Context, client *carve.Client, namespace string, pods int, k kind, note func(name string)) error {
	for i := range pods {
		p := pod(fmt.Sprintf("pod-%03d", i), k)
		note(p.Name)
		if _, err := client.CoreV1().Pods(namespace).Create(ctx, p, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// clockTick is the unit of /proc/stat (proc_stat(5)).
const clockTick = 10 * time.Millisecond

// processorTime is what the processors of all nodes have worked since they were started.
func processorTime(ctx context.Context, client *carve.Client) (time.Duration, error) {
	var sum time.Duration
	for _, node := range client.Cluster.NodeNames() {
		stat, err := client.NodeExec(ctx, node, "cat", "/proc/stat")
		if err != nil {
			return 0, err
		}
		worked, err := parseStat(stat)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", node, err)
		}
		sum += worked
	}
	return sum, nil
}

// parseStat returns the time that the processors of a machine worked, by its /proc/stat.
func parseStat(stat string) (time.Duration, error) {
	line, _, _ := strings.Cut(stat, "\n")
	fields := strings.Fields(line)
	if len(fields) < 6 || fields[0] != "cpu" {
		return 0, fmt.Errorf("/proc/stat begins with %q", line)
	}
	var ticks int64
	for i, field := range fields[1:] {
		if i == 3 || i == 4 { // idle, iowait
			continue
		}
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/stat: %w", err)
		}
		ticks += n
	}
	return time.Duration(ticks) * clockTick, nil
}

func remove(ctx context.Context, client *carve.Client, namespace string) error {
	ctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	if err := client.CoreV1().Namespaces().Delete(ctx, namespace, metav1.DeleteOptions{}); err != nil {
		return err
	}
	return carve.Until(ctx, roundTimeout, "the round's volumes are gone", func(ctx context.Context) error {
		if _, err := client.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{}); err == nil {
			return errors.New("the namespace is still there")
		}
		volumes, err := client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
		if err == nil && len(volumes.Items) > 0 {
			err = fmt.Errorf("%d PersistentVolumes are still there", len(volumes.Items))
		}
		return err
	})
}

// pod returns a Pod that does nothing, with a folder of that kind.
func pod(name string, k kind) *corev1.Pod {
	grace, class := int64(0), "carve"
	source := corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
	if k.volume {
		source = corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{
			Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: &class,
				Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(volumeBytes, resource.BinarySI)}},
			},
		}}}
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			SchedulerName:                 k.scheduler,
			TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{
				Name: "app", Image: "busybox:1.36", ImagePullPolicy: corev1.PullNever, Command: []string{"sleep", "1000000"},
				VolumeMounts: []corev1.VolumeMount{{Name: "scratch", MountPath: "/scratch"}},
			}},
			Volumes: []corev1.Volume{{Name: "scratch", VolumeSource: source}},
		},
	}
}
