package podbinder

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/component-helpers/storage/volume"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/carve-csi/carve/pkg/controller/cluster"
)

// byClass is the index of PersistentVolumes by their StorageClass.
const byClass = "class"

// Options say what a Binder works with.
type Options struct {
	// Client talks to the API server. It is required.
	Client kubernetes.Interface
	// SchedulerName is what Pods name that Bind binds. BindVolumes does without it.
	SchedulerName string
	// Registerer takes the metrics. It is required.
	Registerer prometheus.Registerer
}

// Binder binds Pods. Its methods are safe for concurrent use.
type Binder struct {
	client  kubernetes.Interface
	name    string // of the scheduler
	factory informers.SharedInformerFactory
	synced  []cache.InformerSynced
	claims  corelisters.PersistentVolumeClaimLister
	volumes cache.TypedIndexer[*v1.PersistentVolume]
	classes storagelisters.StorageClassLister
	nodes   corelisters.NodeLister
	changes changes
	seconds *prometheus.HistogramVec // by result
}

// New makes a binder. Run runs what it needs.
func New(o Options) (*Binder, error) {
	factory := informers.NewSharedInformerFactory(o.Client, 0)
	claims, volumes := factory.Core().V1().PersistentVolumeClaims(), factory.Core().V1().PersistentVolumes()
	classes, nodes := factory.Storage().V1().StorageClasses(), factory.Core().V1().Nodes()
	b := &Binder{
		client: o.Client, name: o.SchedulerName, factory: factory,
		claims: claims.Lister(), volumes: volumes.TypedInformer().GetTypedIndexer(), classes: classes.Lister(), nodes: nodes.Lister(),
		seconds: newSeconds(),
	}
	o.Registerer.MustRegister(b.seconds)
	if err := b.volumes.AddTypedIndexers(cache.TypedIndexers[*v1.PersistentVolume]{byClass: func(pv *v1.PersistentVolume) ([]string, error) {
		return []string{volume.GetPersistentVolumeClass(pv)}, nil
	}}); err != nil {
		return nil, fmt.Errorf("prepare informer: %w", err)
	}
	for informer, lean := range map[cache.SharedIndexInformer]cache.TransformFunc{
		claims.Informer(): withoutManagers, volumes.Informer(): withoutManagers, classes.Informer(): withoutManagers, nodes.Informer(): labelsOnly,
	} {
		if err := informer.SetTransform(lean); err != nil {
			return nil, fmt.Errorf("prepare informer: %w", err)
		}
		b.synced = append(b.synced, informer.HasSynced)
	}
	_, err := cluster.Watch(
		cluster.OnChange(claims.TypedInformer(), b.claimChanged, b.claimChanged),
		cluster.OnChange(volumes.TypedInformer(), b.volumeChanged, b.volumeChanged),
	)
	return b, err
}

func newSeconds() *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "carve", Subsystem: "binder", Name: "bind_seconds",
		Help: "Duration of a Pod's binding with its volumes, by result: bound, failed (the Pod is scheduled again).", Buckets: prometheus.ExponentialBuckets(.005, 2, 16)}, []string{"result"})
}

// DescribeMetrics sends the descriptions of the binder's metrics, for the reference.
func DescribeMetrics(ch chan<- *prometheus.Desc) { newSeconds().Describe(ch) }

// Run watches the cluster until ctx is done.
func (b *Binder) Run(ctx context.Context) error {
	b.factory.Start(ctx.Done())
	<-ctx.Done()
	b.factory.Shutdown()
	return nil
}

// Ready says why no Pod can be bound yet, or nil.
func (b *Binder) Ready(context.Context) error {
	for _, synced := range b.synced {
		if !synced() {
			return errNotReady
		}
	}
	return nil
}

// claimChanged wakes the calls that wait for a claim.
func (b *Binder) claimChanged(claim *v1.PersistentVolumeClaim) {
	b.changes.notify(claim.Namespace + "/" + claim.Name)
}

// volumeChanged wakes the calls that wait for the claim that a volume is for.
func (b *Binder) volumeChanged(pv *v1.PersistentVolume) {
	if ref := pv.Spec.ClaimRef; ref != nil {
		b.changes.notify(ref.Namespace + "/" + ref.Name)
	}
}

// Bind binds a Pod to a node when all its claims are bound there. It implements
// extender.Binder. An error means that the Pod is to be scheduled again: a *ClaimError where a
// claim is the reason.
func (b *Binder) Bind(ctx context.Context, args extenderv1.ExtenderBindingArgs) error {
	began := time.Now()
	err := b.bind(ctx, args)
	result := "bound"
	if err != nil {
		result = "failed"
	}
	b.seconds.WithLabelValues(result).Observe(time.Since(began).Seconds())
	return err
}

func (b *Binder) bind(ctx context.Context, args extenderv1.ExtenderBindingArgs) error {
	pod, err := b.readPod(ctx, args)
	if err != nil {
		return err
	}
	switch {
	case pod.Spec.SchedulerName != b.name:
		return fmt.Errorf("the Pod is for the scheduler %q, not for %q", pod.Spec.SchedulerName, b.name)
	case pod.Spec.NodeName != "":
		return placed(pod, args.Node)
	}
	if err := b.BindVolumes(ctx, pod, args.Node); err != nil {
		return err
	}
	return b.bindPod(ctx, pod, args)
}

// BindVolumes returns when all claims of a Pod are bound to volumes that a node can use. An error means that the
// Pod is to be scheduled anew: a *ClaimError where a claim is the reason.
func (b *Binder) BindVolumes(ctx context.Context, pod *v1.Pod, nodeName string) error {
	if err := b.Ready(ctx); err != nil {
		return err
	}
	node, err := b.nodes.Get(nodeName)
	if err != nil {
		return fmt.Errorf("node %s: %w", nodeName, err)
	}
	// Before the claims are read: no change between that and the wait is missed.
	wake, stop := b.changes.subscribe(cluster.ClaimsNamed(pod))
	defer stop()
	task := &task{Binder: b, pod: pod, node: node, selected: map[string]string{}, prebound: map[string]string{}}
	for {
		left, err := task.advance(ctx)
		if err != nil || len(left) == 0 {
			return err
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return fmt.Errorf("claims %s are not bound yet: %w", strings.Join(left, ", "), context.Cause(ctx))
		}
	}
}

// readPod reads the Pod that is meant.
func (b *Binder) readPod(ctx context.Context, args extenderv1.ExtenderBindingArgs) (*v1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, cluster.APITimeout)
	defer cancel()
	pod, err := b.client.CoreV1().Pods(args.PodNamespace).Get(ctx, args.PodName, metav1.GetOptions{})
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the Pod: %w", err)
	case pod.UID != args.PodUID:
		return nil, fmt.Errorf("the Pod was replaced by another of its name")
	case pod.DeletionTimestamp != nil:
		return nil, fmt.Errorf("the Pod is being deleted")
	}
	return pod, nil
}

// placed returns nil for a Pod that is on the node already: an answer to the scheduler was lost.
func placed(pod *v1.Pod, node string) error {
	if pod.Spec.NodeName == node {
		return nil
	}
	return fmt.Errorf("the Pod is on node %s already", pod.Spec.NodeName)
}

// bindPod gives the Pod its node. Where the outcome of the call is not known, it looks.
func (b *Binder) bindPod(ctx context.Context, pod *v1.Pod, args extenderv1.ExtenderBindingArgs) error {
	callCtx, cancel := context.WithTimeout(ctx, cluster.APITimeout)
	defer cancel()
	err := b.client.CoreV1().Pods(pod.Namespace).Bind(callCtx, &v1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Target:     v1.ObjectReference{Kind: "Node", Name: args.Node},
	}, metav1.CreateOptions{})
	if err == nil {
		return nil
	}
	if now, readErr := b.readPod(ctx, args); readErr == nil && now.Spec.NodeName != "" {
		return placed(now, args.Node)
	}
	return fmt.Errorf("bind the Pod: %w", err)
}

// withoutManagers drops what is never read and is much of an object's size.
func withoutManagers(obj any) (any, error) {
	if o, ok := obj.(metav1.Object); ok {
		o.SetManagedFields(nil)
	}
	return obj, nil
}

// labelsOnly drops all of a node but its identity and labels.
func labelsOnly(obj any) (any, error) {
	node, ok := obj.(*v1.Node)
	if !ok {
		return obj, nil
	}
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion, Labels: node.Labels}}, nil
}

// ownClaim returns an error where a claim has the name of a Pod's ephemeral volume, and is not
// the Pod's.
func ownClaim(pod *v1.Pod, claim *v1.PersistentVolumeClaim) error {
	i := slices.IndexFunc(pod.Spec.Volumes, func(v v1.Volume) bool {
		return v.Ephemeral != nil && ephemeral.VolumeClaimName(pod, &v) == claim.Name
	})
	if i < 0 {
		return nil
	}
	return ephemeral.VolumeIsForPod(pod, claim)
}
