package controller

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/workloop"
	"github.com/carve-csi/carve/pkg/scheduler"
)

const (
	// capacityWorkers is how many objects are written at once.
	capacityWorkers = 32
	// increaseDelay is how long an increase may wait for more of its kind.
	// Decreases are written at once: they are what keeps a node from being
	// overfilled.
	increaseDelay = 250 * time.Millisecond
	// labelDriver and labelManager are the labels by which the upstream
	// provisioner marks its objects.
	labelDriver  = "csi.storage.k8s.io/drivername"
	labelManager = "csi.storage.k8s.io/managed-by"
)

// capacityKey names what one object is about.
type capacityKey struct {
	node, class string // class is the StorageClass
	// stray is set, and the others are not, for an object that carries our
	// label under a name that we would not give it.
	stray string
}

// objectName is where the capacity of key is published. The same key gives the
// same name in every life of the controller, so that there is never a second
// object for it.
func (k capacityKey) objectName() string {
	sum := sha256.Sum256([]byte(k.node + "\x00" + k.class))
	return "carve-" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:16]))
}

// publisher writes one CSIStorageCapacity per node and StorageClass.
//
// The objects belong to our Deployment: without a controller nobody could serve the
// claims that they draw to a node. One that is replaced by another of the same name
// takes them along, and the new one's leader makes them anew when it starts.
type publisher struct {
	*core
	capacityLoop *workloop.Loop[capacityKey]
	// withdraw takes away what was published, and publishes nothing: a sidecar does.
	withdraw bool

	mu sync.Mutex
	// keys are the keys of which something is, or may be, published, by the name
	// of their object.
	keys map[string]capacityKey
	// written is what we wrote last, until the cache has it too.
	written map[string]*storagev1.CSIStorageCapacity
	// gone are the objects that were seen deleted since a write of ours began, by
	// name, for as long as the write lasts. Its answer may come after that, and must
	// not be believed then.
	gone map[string][]types.UID
	// risen is when an increase was first seen that is not written yet.
	risen map[capacityKey]time.Time
}

func newPublisher(c *core) *publisher {
	p := &publisher{
		core:    c,
		keys:    map[string]capacityKey{},
		written: map[string]*storagev1.CSIStorageCapacity{},
		gone:    map[string][]types.UID{},
		risen:   map[capacityKey]time.Time{},
	}
	p.capacityLoop = workloop.New(workloop.Options[capacityKey]{
		Name: "capacities", Parallel: capacityWorkers, RetryMin: 50 * time.Millisecond, RetryMax: 10 * time.Second,
		Work: p.sync, Failed: p.syncFailed,
	})
	return p
}

// run works until ctx is done. The caches must have synced, and reservations
// must have been derived.
func (p *publisher) run(ctx context.Context) error {
	own, err := p.capacities.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { p.objectChanged(obj, false) },
		UpdateFunc: func(_, obj any) { p.objectChanged(obj, false) },
		DeleteFunc: func(obj any) { p.objectChanged(obj, true) },
	})
	if err != nil {
		return fmt.Errorf("watch capacities: %w", err)
	}
	defer func() { _ = p.capacities.RemoveEventHandler(own) }()
	classes, err := p.classes.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    p.classChanged,
		UpdateFunc: func(_, obj any) { p.classChanged(obj) },
		DeleteFunc: p.classChanged,
	})
	if err != nil {
		return fmt.Errorf("watch storage classes: %w", err)
	}
	defer func() { _ = p.classes.RemoveEventHandler(classes) }()
	nodes, err := p.nodes.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: p.nodeObjectChanged,
		UpdateFunc: func(old, now any) {
			before, okBefore := old.(*v1.Node)
			after, okAfter := now.(*v1.Node)
			if okBefore && okAfter && outOfService(before) != outOfService(after) {
				p.nodeObjectChanged(after)
			}
		},
		DeleteFunc: p.nodeObjectChanged,
	})
	if err != nil {
		return fmt.Errorf("watch nodes: %w", err)
	}
	defer func() { _ = p.nodes.RemoveEventHandler(nodes) }()
	if p.owner != nil {
		owner, err := p.owner.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { p.ownerChanged() },
			DeleteFunc: func(any) { p.ownerChanged() },
		})
		if err != nil {
			return fmt.Errorf("watch the owner of capacities: %w", err)
		}
		defer func() { _ = p.owner.RemoveEventHandler(owner) }()
	}
	for _, view := range p.fleet.Views() {
		p.nodeChanged(view.Node)
	}
	p.capacityLoop.Run(ctx)
	return nil
}

func (p *publisher) syncFailed(ctx context.Context, key capacityKey, err error) {
	p.metrics.capacityWrites.WithLabelValues("failed").Inc()
	level := slog.LevelWarn
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		level = slog.LevelDebug // our cache was a moment behind
	}
	p.log.Log(ctx, level, "capacity could not be published, trying on", "node", key.node, "storage_class", key.class, "error", err)
}

// nodeChanged publishes a node's room anew: it reported, or reservations on it
// came or went.
func (p *publisher) nodeChanged(node string) {
	for _, class := range p.ourClasses() {
		p.capacityLoop.Add(capacityKey{node: node, class: class.Name})
	}
}

// nodeObjectChanged is about the Node in Kubernetes, not about its lvmd.
func (p *publisher) nodeObjectChanged(obj any) {
	name, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj)
	if err != nil {
		return
	}
	p.nodeChanged(name)
}

func (p *publisher) classChanged(obj any) {
	name, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj)
	if err != nil {
		return
	}
	for _, view := range p.fleet.Views() {
		p.capacityLoop.Add(capacityKey{node: view.Node, class: name})
	}
	for _, obj := range p.capacities.GetStore().List() { // of nodes that are not connected, too
		if c, ok := obj.(*storagev1.CSIStorageCapacity); ok && c.StorageClassName == name {
			p.objectChanged(c, false)
		}
	}
}

// ownerChanged looks again at all objects: the Deployment came or went.
func (p *publisher) ownerChanged() {
	for _, view := range p.fleet.Views() {
		p.nodeChanged(view.Node)
	}
	for _, obj := range p.capacities.GetStore().List() {
		p.objectChanged(obj, false)
	}
}

// objectChanged looks again at what an object of ours should be.
func (p *publisher) objectChanged(obj any, deleted bool) {
	if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	c, ok := obj.(*storagev1.CSIStorageCapacity)
	if !ok {
		return
	}
	p.mu.Lock()
	if w := p.written[c.Name]; w != nil && (deleted && w.UID == c.UID || !older(c, w)) {
		delete(p.written, c.Name)
	}
	if uids, writing := p.gone[c.Name]; deleted && writing {
		p.gone[c.Name] = append(uids, c.UID)
	}
	key, known := p.keys[c.Name]
	p.mu.Unlock()
	if !known {
		key = capacityKey{node: topologyNode(c), class: c.StorageClassName}
	}
	if key.objectName() == c.Name {
		p.capacityLoop.Add(key)
		return
	}
	if !deleted {
		p.capacityLoop.Add(capacityKey{stray: c.Name})
	}
}

func older(a, b *storagev1.CSIStorageCapacity) bool {
	order, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return err == nil && order < 0
}

func topologyNode(c *storagev1.CSIStorageCapacity) string {
	if c.NodeTopology == nil {
		return ""
	}
	return c.NodeTopology.MatchLabels[names.TopologyNode]
}

// wish is what should be published for a key.
type wish int

const (
	keep    wish = iota // whatever there is: the node is not connected, nobody knows better
	remove              // nothing
	publish             // a room
)

// desired decides what should be published. It takes away only what is
// certainly gone: a node that is merely disconnected keeps its object, for
// without one it could not be scheduled to. One that is out of service has none
// until its taint is taken away.
func (p *publisher) desired(ctx context.Context, key capacityKey) (wish, scheduler.Room, error) {
	class, ours := p.ourClass(key.class)
	if !ours || p.withdraw {
		return remove, scheduler.Room{}, nil
	}
	params, err := parseClass(class)
	if err != nil {
		return remove, scheduler.Room{}, nil //nolint:nilerr // nothing can be made in it; claims are told why
	}
	gone, err := p.nodeGone(ctx, key.node)
	if err != nil {
		return keep, scheduler.Room{}, err
	}
	view, ok := p.fleet.View(key.node)
	if gone {
		if !ok {
			p.available.forget(key.node)
		}
		return remove, scheduler.Room{}, nil
	}
	if !ok || !view.Reported() {
		return p.unreported(key), scheduler.Room{}, nil
	}
	if !view.Connected {
		p.available.noteAway(key.node) // from then on the ledger has no room for it
	}
	if view.Refused != "" {
		return publish, scheduler.Room{}, nil // what it reported before is not what it has
	}
	room, ok := p.ledger.Room(key.node, params.deviceClass)
	if !ok {
		return remove, scheduler.Room{}, nil
	}
	return publish, room.Besides(params.encryption.headerBytes()), nil
}

// unreported decides what should be published for a node that this process never heard
// of: what an earlier leader published, until the node has had time to connect, and then
// no capacity.
func (p *publisher) unreported(key capacityKey) wish {
	if p.current(key.objectName()) != nil && p.available.noteAway(key.node) {
		return publish
	}
	return keep
}

// sync makes the object what it should be, and returns when to look again.
func (p *publisher) sync(ctx context.Context, key capacityKey) (time.Duration, error) {
	if key.stray != "" {
		if object := p.current(key.stray); object != nil {
			p.log.Warn("removing a capacity object that is not what its name says", "object", key.stray)
			return 0, p.remove(ctx, object)
		}
		return 0, nil
	}
	wish, room, err := p.desired(ctx, key)
	if err != nil {
		return 0, err
	}
	current := p.current(key.objectName())
	p.remember(key, wish != remove || current != nil)
	if current != nil && (topologyNode(current) != key.node || current.StorageClassName != key.class) {
		// These fields cannot be changed: somebody made it.
		return 0, p.remove(ctx, current)
	}
	owners, ended := p.owner.references()
	switch {
	case wish == remove && current != nil:
		return 0, p.remove(ctx, current)
	case wish != publish || ended:
		return 0, nil
	}
	target := p.describe(key, room)
	target.OwnerReferences = owners
	if current == nil {
		return 0, p.create(ctx, key, target)
	}
	if equalCapacity(current, target) {
		p.settled(key)
		return 0, nil
	}
	if left := p.delay(key, current, target); left > 0 {
		return left, nil
	}
	return 0, p.update(ctx, key, current, target)
}

// remember keeps a key for as long as there is anything to publish for it, or to
// remove.
func (p *publisher) remember(key capacityKey, wanted bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if wanted {
		p.keys[key.objectName()] = key
		return
	}
	delete(p.keys, key.objectName())
	delete(p.risen, key)
}

// delay holds a mere increase back for a moment.
func (p *publisher) delay(key capacityKey, current, target *storagev1.CSIStorageCapacity) time.Duration {
	if current.Capacity == nil || current.MaximumVolumeSize == nil ||
		current.Capacity.Cmp(*target.Capacity) > 0 || current.MaximumVolumeSize.Cmp(*target.MaximumVolumeSize) > 0 {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	since, ok := p.risen[key]
	if !ok {
		p.risen[key] = now
		return increaseDelay
	}
	return since.Add(increaseDelay).Sub(now)
}

func (p *publisher) settled(key capacityKey) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.risen, key)
}

// current returns the object as it is: in the cache, or as we wrote it where
// that is newer.
func (p *publisher) current(name string) *storagev1.CSIStorageCapacity {
	obj, exists, err := p.capacities.GetStore().GetByKey(p.namespace + "/" + name)
	cached, _ := obj.(*storagev1.CSIStorageCapacity)
	if err != nil || !exists {
		cached = nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if w := p.written[name]; w != nil && (cached == nil || older(cached, w)) {
		return w
	}
	return cached
}

func (p *publisher) noteWritten(key capacityKey, object *storagev1.CSIStorageCapacity, operation string) {
	p.metrics.capacityWrites.WithLabelValues(operation).Inc()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.believe(object)
	delete(p.risen, key)
}

// believe takes object for what there is until the cache has it, unless it was
// seen deleted already. The caller holds mu.
func (p *publisher) believe(object *storagev1.CSIStorageCapacity) {
	if slices.Contains(p.gone[object.Name], object.UID) {
		delete(p.written, object.Name)
		return
	}
	p.written[object.Name] = object
}

// beginWrite has deletions of a name noted until the write ends. One name is
// written by one worker at a time.
func (p *publisher) beginWrite(name string) (end func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gone[name] = nil
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.gone, name)
	}
}

func (p *publisher) forgetWritten(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.written, name)
}

func (p *publisher) create(ctx context.Context, key capacityKey, object *storagev1.CSIStorageCapacity) error {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	object.Namespace = p.namespace
	defer p.beginWrite(object.Name)()
	created, err := p.client.StorageV1().CSIStorageCapacities(p.namespace).Create(ctx, object, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return p.adopt(ctx, key, object)
	}
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	p.noteWritten(key, created, "create")
	return nil
}

// adopt makes an object what it should be that exists and that our cache does
// not have: it is a moment behind, or somebody took away the label by which we
// know our objects.
func (p *publisher) adopt(ctx context.Context, key capacityKey, target *storagev1.CSIStorageCapacity) error {
	current, err := p.client.StorageV1().CSIStorageCapacities(p.namespace).Get(ctx, target.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read the object that exists: %w", err)
	}
	if topologyNode(current) != key.node || current.StorageClassName != key.class {
		if err := p.remove(ctx, current); err != nil {
			return err
		}
		return errors.New("an object that says something else had the name")
	}
	if equalCapacity(current, target) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.believe(current)
		return nil
	}
	return p.update(ctx, key, current, target)
}

func (p *publisher) update(ctx context.Context, key capacityKey, current, target *storagev1.CSIStorageCapacity) error {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	object := current.DeepCopy()
	if object.Labels == nil {
		object.Labels = map[string]string{}
	}
	for k, v := range target.Labels {
		object.Labels[k] = v
	}
	if len(target.OwnerReferences) > 0 {
		object.OwnerReferences = target.OwnerReferences
	}
	if until := target.Annotations[names.AnnotationHeldBack]; until == "" {
		delete(object.Annotations, names.AnnotationHeldBack)
	} else {
		metav1.SetMetaDataAnnotation(&object.ObjectMeta, names.AnnotationHeldBack, until)
	}
	object.Capacity, object.MaximumVolumeSize = target.Capacity, target.MaximumVolumeSize
	defer p.beginWrite(object.Name)()
	updated, err := p.client.StorageV1().CSIStorageCapacities(p.namespace).Update(ctx, object, metav1.UpdateOptions{})
	if err != nil {
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			p.forgetWritten(object.Name)
		}
		return fmt.Errorf("update: %w", err)
	}
	p.noteWritten(key, updated, "update")
	return nil
}

func (p *publisher) remove(ctx context.Context, object *storagev1.CSIStorageCapacity) error {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	err := p.client.StorageV1().CSIStorageCapacities(p.namespace).Delete(ctx, object.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &object.UID}})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete: %w", err)
	}
	p.forgetWritten(object.Name)
	p.metrics.capacityWrites.WithLabelValues("delete").Inc()
	return nil
}

// describe is the object for a room, with a note of whether that is held back.
func (p *publisher) describe(key capacityKey, room scheduler.Room) *storagev1.CSIStorageCapacity {
	object := describe(key, room)
	if class, ok := p.deviceClassOf(key); ok {
		if until := p.available.heldUntil(key.node, class); !until.IsZero() {
			object.Annotations = map[string]string{names.AnnotationHeldBack: until.UTC().Format(time.RFC3339Nano)}
		}
	}
	return object
}

// describe is the object for a room.
func describe(key capacityKey, room scheduler.Room) *storagev1.CSIStorageCapacity {
	return &storagev1.CSIStorageCapacity{
		ObjectMeta: metav1.ObjectMeta{Name: key.objectName(), Labels: map[string]string{
			names.LabelManagedBy: names.ManagedBy,
			labelDriver:          names.Driver,
			labelManager:         names.ManagedBy,
		}},
		NodeTopology:      &metav1.LabelSelector{MatchLabels: map[string]string{names.TopologyNode: key.node}},
		StorageClassName:  key.class,
		Capacity:          resource.NewQuantity(room.Available, resource.BinarySI),
		MaximumVolumeSize: resource.NewQuantity(room.MaximumVolume, resource.BinarySI),
	}
}

// equalCapacity tells whether everything that we write is as it should be.
func equalCapacity(current, target *storagev1.CSIStorageCapacity) bool {
	if current.Capacity == nil || current.MaximumVolumeSize == nil ||
		current.Annotations[names.AnnotationHeldBack] != target.Annotations[names.AnnotationHeldBack] {
		return false
	}
	for k, v := range target.Labels {
		if current.Labels[k] != v {
			return false
		}
	}
	if len(target.OwnerReferences) > 0 && !slices.Equal(current.OwnerReferences, target.OwnerReferences) {
		return false
	}
	return current.Capacity.Cmp(*target.Capacity) == 0 && current.MaximumVolumeSize.Cmp(*target.MaximumVolumeSize) == 0
}

// published returns nil if what should be published for a key is, and why not otherwise.
func (p *publisher) published(ctx context.Context, key capacityKey) error {
	wish, room, err := p.desired(ctx, key)
	if err != nil {
		return err
	}
	current := p.current(key.objectName())
	switch {
	case wish == keep:
		return errors.New("the node has not reported its capacity")
	case wish == remove && current != nil:
		return errors.New("there is an object and should be none")
	case wish == publish && current == nil:
		return errors.New("there is no object yet")
	case wish == publish && (topologyNode(current) != key.node || current.StorageClassName != key.class || !equalCapacity(current, p.describe(key, room))):
		return errors.New("the object is of an earlier state")
	}
	return nil
}

// shown reports whether all that should be published for a node is, and our own watch
// has delivered it.
func (p *publisher) shown(ctx context.Context, node string) bool {
	for _, class := range p.ourClasses() {
		key := capacityKey{node: node, class: class.Name}
		if p.published(ctx, key) != nil {
			return false
		}
		if p.undelivered(key.objectName()) {
			return false
		}
	}
	return true
}

// undelivered reports whether our own watch has yet to deliver what we wrote last.
func (p *publisher) undelivered(name string) bool {
	obj, exists, err := p.capacities.GetStore().GetByKey(p.namespace + "/" + name)
	cached, ok := obj.(*storagev1.CSIStorageCapacity)
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.written[name]
	return w != nil && (err != nil || !exists || !ok || older(cached, w))
}
