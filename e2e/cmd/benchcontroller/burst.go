package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/carve-csi/carve/e2e/carve"
)

const selectedNode = "volume.kubernetes.io/selected-node"

// burst is what one set of Pods with a volume each took.
type burst struct {
	pods      int
	all       time.Duration   // from the first creation to the last Pod being given its node
	placed    []time.Duration // creation of the Pod to its node, sorted
	bound     []time.Duration // selected node to bound claim, sorted
	failures  int             // our ProvisioningFailed Events
	warnings  int             // the PV controller's ProvisioningFailed and ClaimLost Events
	writes    writes          // our API writes per volume, from creation to removal
	allWrites writes          // the same of all clients
	scheduler time.Duration   // the scheduler's processor time until the last Pod had its node
	deleteAll time.Duration   // from the Pods' deletion to the last PersistentVolume gone
}

// volumeBytes is the size of each Pod's volume.
const volumeBytes = 1 << 30

// burst creates Pods, at a rate per second or at once, waits until all have
// their node, removes them and waits until nothing is left.
func (c *cluster) burst(ctx context.Context, pods int, rate float64) (*burst, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*waitTimeout+time.Duration(pods*c.nodes)*time.Millisecond)
	defer cancel()
	b := &burst{pods: pods}
	before, err := c.writes(ctx)
	if err != nil {
		return nil, err
	}
	allBefore, err := c.allWrites(ctx)
	if err != nil {
		return nil, err
	}
	namespace, err := c.makeNamespace(ctx, "burst-")
	if err != nil {
		return nil, err
	}
	seconds, err := c.schedulerSeconds(ctx)
	if err != nil {
		return nil, err
	}
	if err := c.place(ctx, namespace, b, rate); err != nil {
		return nil, err
	}
	secondsAfter, err := c.schedulerSeconds(ctx)
	if err != nil {
		return nil, err
	}
	b.scheduler = time.Duration((secondsAfter - seconds) * float64(time.Second))
	if err := pause(ctx, 10*time.Second); err != nil { // the controller-manager sends its Events late
		return nil, err
	}
	if err := c.countEvents(ctx, namespace, b); err != nil {
		return nil, err
	}
	begin := time.Now()
	if err := c.client.CoreV1().Pods(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		return nil, fmt.Errorf("delete the Pods: %w", err)
	}
	if err := c.noVolumes(ctx, waitTimeout); err != nil {
		return nil, err
	}
	b.deleteAll = time.Since(begin)
	if err := pause(ctx, 40*time.Second); err != nil { // what the controller-manager still has to do is not for the next burst to pay
		return nil, err
	}
	after, err := c.writes(ctx)
	if err != nil {
		return nil, err
	}
	b.writes = after.since(before, pods)
	allAfter, err := c.allWrites(ctx)
	b.allWrites = allAfter.since(allBefore, pods)
	return b, err
}

// makeNamespace makes a namespace in which Pods can be made.
func (c *cluster) makeNamespace(ctx context.Context, prefix string) (string, error) {
	ns, err := c.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: prefix}}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("make a namespace: %w", err)
	}
	return ns.Name, carve.Until(ctx, waitTimeout, "the namespace has its service account", func(ctx context.Context) error {
		_, err := c.client.CoreV1().ServiceAccounts(ns.Name).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

// ofPods are the PersistentVolumes of Pods, and not those that nodes hold from the beginning.
const ofPods = "!" + heldLabel

// noVolumes waits until no PersistentVolume of Pods is left.
func (c *cluster) noVolumes(ctx context.Context, bound time.Duration) error {
	return carve.Until(ctx, bound, "all volumes of Pods are gone", func(ctx context.Context) error {
		list, err := c.client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{LabelSelector: ofPods})
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("%d are left", len(list.Items))
		}
		return err
	})
}

// place creates the Pods and follows them and their claims.
func (c *cluster) place(ctx context.Context, namespace string, b *burst, rate float64) error {
	watching, stop := context.WithCancel(ctx)
	defer stop()
	seen := make(chan any, 10*b.pods)
	if err := c.follow(watching, namespace, seen); err != nil {
		return err
	}
	begin := time.Now()
	created := make([]time.Time, b.pods)
	creating, creatingCtx := errgroup.WithContext(ctx)
	creating.SetLimit(16)
	creating.Go(func() error {
		for i := range b.pods {
			if rate > 0 {
				if err := pause(creatingCtx, time.Until(begin.Add(time.Duration(float64(i)/rate*float64(time.Second))))); err != nil {
					return err
				}
			}
			created[i] = time.Now()
			if rate > 0 {
				if err := c.createPod(creatingCtx, namespace, i, volumeBytes); err != nil {
					return err
				}
				continue
			}
			creating.Go(func() error { return c.createPod(creatingCtx, namespace, i, volumeBytes) })
		}
		return nil
	})
	placed, selected, bound := map[string]bool{}, map[string]time.Time{}, map[string]bool{}
	for len(placed) < b.pods || len(bound) < b.pods {
		var object any
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d Pods have a node, %d claims are bound: %w", len(placed), b.pods, len(bound), ctx.Err())
		case object = <-seen:
		}
		now := time.Now()
		switch o := object.(type) {
		case *corev1.Pod:
			if o.Spec.NodeName != "" && !placed[o.Name] {
				placed[o.Name] = true
				i, err := strconv.Atoi(strings.TrimPrefix(o.Name, "pod-"))
				if err != nil {
					return fmt.Errorf("the Pod %s is none of ours", o.Name)
				}
				b.placed = append(b.placed, now.Sub(created[i]))
			}
		case *corev1.PersistentVolumeClaim:
			if o.Annotations[selectedNode] != "" {
				if _, seen := selected[o.Name]; !seen {
					selected[o.Name] = now
				}
			} else {
				delete(selected, o.Name)
			}
			if o.Status.Phase == corev1.ClaimBound && !bound[o.Name] {
				bound[o.Name] = true
				b.bound = append(b.bound, now.Sub(selected[o.Name]))
			}
		}
	}
	b.all = time.Since(begin)
	slices.Sort(b.placed)
	slices.Sort(b.bound)
	return creating.Wait()
}

// follow sends Pods and claims to seen as they change, until ctx is done.
func (c *cluster) follow(ctx context.Context, namespace string, seen chan<- any) error {
	factory := informers.NewSharedInformerFactoryWithOptions(c.client, 0, informers.WithNamespace(namespace))
	send := func(object any) {
		select {
		case seen <- object:
		case <-ctx.Done():
		}
	}
	for _, informer := range []cache.SharedIndexInformer{factory.Core().V1().Pods().Informer(), factory.Core().V1().PersistentVolumeClaims().Informer()} {
		if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: send, UpdateFunc: func(_, object any) { send(object) }}); err != nil {
			return fmt.Errorf("follow Pods and claims: %w", err)
		}
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	return nil
}

func (c *cluster) createPod(ctx context.Context, namespace string, i int, bytes int64) error {
	if _, err := c.client.CoreV1().Pods(namespace).Create(ctx, c.pod(i, bytes), metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create a Pod: %w", err)
	}
	return nil
}

// volumeName is the name of a Pod's volume.
const volumeName = "scratch"

// pod is the i-th Pod, with a volume of one class after the other.
func (c *cluster) pod(i int, bytes int64) *corev1.Pod {
	class, none := className(i%c.classes), int64(0)
	_, request := c.resources()
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pod-%d", i)},
		Spec: corev1.PodSpec{
			SchedulerName:                 c.schedulerName(),
			TerminationGracePeriodSeconds: &none,                                                      // there is no kubelet to confirm a deletion
			Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, // the nodes have no heartbeat
			Containers:                    []corev1.Container{{Name: "c", Image: "none", Resources: corev1.ResourceRequirements{Requests: request}}},
			Volumes: []corev1.Volume{{Name: volumeName, VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{
				VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{Spec: corev1.PersistentVolumeClaimSpec{
					StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
					Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{
						corev1.ResourceStorage: *resource.NewQuantity(bytes, resource.BinarySI)}},
				}}}}}},
		},
	}
}

func (c *cluster) countEvents(ctx context.Context, namespace string, b *burst) error {
	list, err := c.client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list Events: %w", err)
	}
	for _, e := range list.Items {
		switch {
		case e.Reason == "ProvisioningFailed" && e.Source.Component == "carve-controller":
			b.failures += int(max(e.Count, 1))
		case e.Reason == "ProvisioningFailed", e.Reason == "ClaimLost":
			b.warnings += int(max(e.Count, 1))
		}
	}
	return nil
}
