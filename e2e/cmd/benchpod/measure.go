package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/carve-csi/carve/e2e/carve"
)

const (
	roundTimeout = 6 * time.Minute
	volumeBytes  = int64(64 << 20)
	selectedNode = "volume.kubernetes.io/selected-node"
)

// round is what one set of Pods, created at once, took.
type round struct {
	started []time.Duration // creation to Running, per Pod, sorted
	bound   []time.Duration // selected-node to bound, per claim, sorted
	all     time.Duration   // first creation to the last claim bound
}

// measure runs every kind of round, in turn, so that drift of the machine
// meets all kinds alike. With an error it returns what was measured before.
func measure(ctx context.Context, client *carve.Client, rounds, burst int) (*table, error) {
	t := &table{burst: burst}
	kinds := []struct {
		into   *[]round
		pods   int
		volume bool
	}{
		{&t.emptyOne, 1, false}, {&t.carveOne, 1, true},
		{&t.emptyBurst, burst, false}, {&t.carveBurst, burst, true},
	}
	// One round that does not count: it pulls pages and caches in.
	for n := range rounds + 1 {
		var measured []round
		for _, kind := range kinds {
			fmt.Fprintf(os.Stderr, "round %d of %d: %d Pods, Carve volume: %v\n", n, rounds, kind.pods, kind.volume)
			r, err := oneRound(ctx, client, kind.pods, kind.volume)
			if err != nil {
				return t, err
			}
			measured = append(measured, *r)
		}
		if n == 0 {
			continue
		}
		for i, kind := range kinds {
			*kind.into = append(*kind.into, measured[i])
		}
	}
	return t, nil
}

// oneRound creates Pods in a namespace of their own, waits until they run and
// removes them with all that they had.
func oneRound(ctx context.Context, client *carve.Client, pods int, volume bool) (_ *round, err error) {
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

	created := map[string]time.Time{}
	begin := time.Now()
	for i := range pods {
		name := fmt.Sprintf("pod-%02d", i)
		created[name] = time.Now()
		if _, err := client.CoreV1().Pods(namespace.Name).Create(ctx, pod(name, volume), metav1.CreateOptions{}); err != nil {
			return nil, err
		}
	}
	claims := 0
	if volume {
		claims = pods
	}
	return observe(ctx, podEvents, claimEvents, begin, created, claims)
}

// observe follows both watches until every Pod runs and every claim is bound.
func observe(ctx context.Context, podEvents, claimEvents watch.Interface, begin time.Time, created map[string]time.Time, claims int) (*round, error) {
	r := &round{}
	running, selected, bound := map[string]bool{}, map[string]time.Time{}, map[string]bool{}
	for len(running) < len(created) || len(bound) < claims {
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%d of %d Pods run, %d of %d claims are bound: %w", len(running), len(created), len(bound), claims, ctx.Err())
		case event, open := <-podEvents.ResultChan():
			if !open {
				return nil, errors.New("the watch on Pods ended")
			}
			if p, ok := event.Object.(*corev1.Pod); ok && p.Status.Phase == corev1.PodRunning && !running[p.Name] {
				running[p.Name] = true
				r.started = append(r.started, time.Since(created[p.Name]))
			}
		case event, open := <-claimEvents.ResultChan():
			if !open {
				return nil, errors.New("the watch on claims ended")
			}
			claim, ok := event.Object.(*corev1.PersistentVolumeClaim)
			if !ok {
				continue
			}
			if _, seen := selected[claim.Name]; !seen && claim.Annotations[selectedNode] != "" {
				selected[claim.Name] = time.Now()
			}
			if claim.Status.Phase == corev1.ClaimBound && !bound[claim.Name] {
				bound[claim.Name] = true
				r.bound = append(r.bound, time.Since(selected[claim.Name]))
				r.all = time.Since(begin)
			}
		}
	}
	slices.Sort(r.started)
	slices.Sort(r.bound)
	return r, nil
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

// pod returns a Pod that does nothing, with an emptyDir or a Carve volume.
func pod(name string, volume bool) *corev1.Pod {
	grace, class := int64(0), "carve"
	source := corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
	if volume {
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
			TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{
				Name: "app", Image: "busybox:1.36", ImagePullPolicy: corev1.PullNever, Command: []string{"sleep", "1000000"},
				VolumeMounts: []corev1.VolumeMount{{Name: "scratch", MountPath: "/scratch"}},
			}},
			Volumes: []corev1.Volume{{Name: "scratch", VolumeSource: source}},
		},
	}
}
