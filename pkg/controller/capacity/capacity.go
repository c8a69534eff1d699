package capacity

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/cache"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/controller/spec"
	"github.com/carve-csi/carve/pkg/controller/workloop"
	"github.com/carve-csi/carve/pkg/scheduler"
)

const (
	capacityWorkers = 32
	// IncreaseDelay is how long an increase may wait for further ones. Decreases are written at
	// once, because they keep nodes from being overfilled.
	IncreaseDelay = 250 * time.Millisecond
	// LabelDriver is the upstream provisioner's label for the name of an object's driver.
	LabelDriver = "csi.storage.k8s.io/drivername"
	// LabelManager is the upstream provisioner's label for its own objects.
	LabelManager = "csi.storage.k8s.io/managed-by"
)

// Key identifies one object.
type Key struct {
	Node, Class string // Class is the StorageClass
	// Template is set, without Node, for an object about nodes that do not exist yet.
	Template string
	// stray alone is set for an object that has our label, but not the name of its key.
	stray string
	// all alone is set for a check of all objects.
	all bool
}

// ObjectName returns NODE--CLASS--HASH. Node and class are for people, and shortened to fit. A key
// has the same name in every run of the controller, so that it never gets a second object.
func (k Key) ObjectName() string {
	about, of := k.Node, shortened(k.Node)
	if k.Template != "" {
		about, of = "\x00"+k.Template, templateName(k.Template)
	}
	sum := sha256.Sum256([]byte(about + "\x00" + k.Class))
	hash := strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:10]))
	return of + "--" + shortened(k.Class) + "--" + hash
}

// partMax limits each of the first two parts of an object's name, so that the whole has at most 253
// characters.
const partMax = (validation.DNS1123SubdomainMaxLength - 16 - 4) / 2

// shortened truncates a name, at a character that may end one.
func shortened(name string) string {
	if len(name) > partMax {
		name = name[:partMax]
	}
	return strings.TrimRight(name, "-.")
}

// Publisher writes one CSIStorageCapacity per node and StorageClass.
//
// The objects belong to our Deployment: without a controller, nothing serves the claims that they
// draw to a node. If the Deployment is recreated, the objects vanish with the old one, and the new
// leader recreates them.
type Publisher struct {
	*cluster.Cluster
	Options
	loop    *workloop.Loop[Key]
	objects *objects

	mu sync.Mutex
	// increaseSeen is when an unwritten increase was first seen. Without it, a capacity that keeps
	// rising would never be written.
	increaseSeen map[Key]time.Time
}

// Options configure a Publisher. All fields but TemplateLabel are required.
type Options struct {
	// Namespace is where the objects are. Owner is the Deployment that owns them.
	Namespace string
	Owner     *Owner
	// Ledger computes the free space. Available decides what is held back.
	Ledger    *scheduler.Ledger
	Available *cluster.Availability
	// TemplateLabel is the label whose value is a node's kind. If it is empty, nothing is published
	// about nodes that do not exist yet.
	TemplateLabel string
	Metrics       *Metrics
}

// New returns a Publisher; Run runs it.
func New(c *cluster.Cluster, o Options) *Publisher {
	p := &Publisher{Cluster: c, Options: o, increaseSeen: map[Key]time.Time{}}
	p.objects = newObjects(c.Capacities.GetStore(), c.Now)
	p.loop = workloop.New(workloop.Options[Key]{
		Name: "capacities", Parallel: capacityWorkers, RetryMin: 50 * time.Millisecond, RetryMax: 10 * time.Second,
		Work: p.sync, Failed: p.syncFailed,
	})
	return p
}

// Run works until ctx is done. Before that, the caches must have synced and the ledger must have
// all reservations.
func (p *Publisher) Run(ctx context.Context) error {
	handlers := []cluster.Handler{
		cluster.OnChange(p.Capacities, p.objectChanged, p.objectDeleted),
		cluster.OnChange(p.Classes, p.classChanged, p.classChanged),
		cluster.On(p.Nodes, cache.TypedResourceEventHandlerFuncs[*v1.Node]{
			AddFunc: func(node *v1.Node) { p.NodeChanged(node.Name) },
			UpdateFunc: func(before, after *v1.Node) {
				kind := p.TemplateLabel // if empty, both values are empty, too
				if cluster.OutOfService(before) != cluster.OutOfService(after) || before.Labels[kind] != after.Labels[kind] {
					p.NodeChanged(after.Name)
				}
			},
			DeleteFunc: func(node cache.DeletedObject[*v1.Node]) { p.NodeChanged(node.GetName()) },
		}),
		cluster.On(p.Owner, cache.TypedResourceEventHandlerFuncs[*appsv1.Deployment]{
			AddFunc: func(*appsv1.Deployment) { p.allChanged() },
			UpdateFunc: func(before, after *appsv1.Deployment) {
				if before.UID != after.UID { // the watch missed the deletion
					p.allChanged()
				}
			},
			DeleteFunc: func(cache.DeletedObject[*appsv1.Deployment]) { p.allChanged() },
		}),
	}
	stop, err := cluster.Watch(handlers...)
	if err != nil {
		return err
	}
	defer stop()
	for _, view := range p.Fleet.Views() {
		p.NodeChanged(view.Node)
	}
	p.loop.Run(ctx)
	return nil
}

func (p *Publisher) syncFailed(ctx context.Context, key Key, err error) {
	p.Metrics.writes.WithLabelValues("failed").Inc()
	level := slog.LevelWarn
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		level = slog.LevelDebug // our cache was outdated for a moment
	}
	p.Log.Log(ctx, level, "capacity could not be published, trying on", "node", key.Node, "storage_class", key.Class, "error", err)
}

// NodeChanged publishes a node's capacity again, after a report or a change of its reservations.
func (p *Publisher) NodeChanged(node string) {
	for _, class := range p.OurClasses() {
		p.loop.Add(Key{Node: node, Class: class.Name})
	}
	p.templateChanged(node)
}

func (p *Publisher) classChanged(class *storagev1.StorageClass) {
	for _, view := range p.Fleet.Views() {
		p.loop.Add(Key{Node: view.Node, Class: class.Name})
		p.templateChanged(view.Node)
	}
	p.configuredChanged(class.Name)
	for _, c := range cluster.List(p.Capacities) { // including nodes that are not connected
		if c.StorageClassName == class.Name {
			p.objectChanged(c)
		}
	}
}

// RemoveRetired removes the objects of nodes that will have no agent any longer.
func (p *Publisher) RemoveRetired() {
	for _, c := range cluster.List(p.Capacities) {
		if node := TopologyNode(c); node != "" && p.Retired(node) {
			p.objectChanged(c)
		}
	}
}

func (p *Publisher) allChanged() {
	for _, view := range p.Fleet.Views() {
		p.NodeChanged(view.Node)
	}
	for _, class := range p.OurClasses() { // for kinds without an object
		p.configuredChanged(class.Name)
	}
	for _, c := range cluster.List(p.Capacities) {
		p.objectChanged(c)
	}
}

func (p *Publisher) objectChanged(c *storagev1.CSIStorageCapacity) {
	p.objects.seen(c)
	if key := p.keyOf(c); key.ObjectName() == c.Name {
		p.loop.Add(key)
	} else {
		p.loop.Add(Key{stray: c.Name})
	}
}

func (p *Publisher) objectDeleted(c *storagev1.CSIStorageCapacity) {
	p.objects.deleted(c)
	if key := p.keyOf(c); key.ObjectName() == c.Name {
		p.loop.Add(key)
	} else {
		// One of all keys has that name. Finding it means a check of all nodes, and an upgrade may
		// rename an object of each, so collect the deletions.
		p.loop.AddAfter(Key{all: true}, IncreaseDelay)
	}
}

// TopologyNode returns the node of an object, or "".
func TopologyNode(c *storagev1.CSIStorageCapacity) string {
	if c.NodeTopology == nil {
		return ""
	}
	return c.NodeTopology.MatchLabels[names.TopologyNode]
}

type desired int

const (
	keep    desired = iota // leave it as it is: the node has not reported
	remove                 // delete the object
	publish                // the free space
)

// desired decides what to publish. It removes only what is certainly gone: a disconnected node
// keeps its object, as the scheduler would not choose it otherwise. A node loses it while it is out
// of service, or if it will have no agent, until one connects.
func (p *Publisher) desired(ctx context.Context, key Key) (desired, scheduler.FreeSpace, error) {
	class, ours := p.OurClass(key.Class)
	if !ours {
		return remove, scheduler.FreeSpace{}, nil
	}
	params, err := spec.ParseClass(class)
	if err != nil {
		return remove, scheduler.FreeSpace{}, nil //nolint:nilerr // nothing can be made in it; Events on claims say why
	}
	if key.Template != "" {
		want, free := p.template(key, class, params)
		return want, free, nil
	}
	gone, err := p.NodeGone(ctx, key.Node)
	if err != nil {
		return keep, scheduler.FreeSpace{}, err
	}
	view, ok := p.Fleet.View(key.Node)
	if gone || (ok || p.current(key.ObjectName()) != nil) && p.Retired(key.Node) {
		if !ok {
			p.Available.Forget(key.Node)
		}
		return remove, scheduler.FreeSpace{}, nil
	}
	if !ok || !view.Reported() {
		return p.unreported(key), scheduler.FreeSpace{}, nil
	}
	if !view.Connected {
		p.Available.NoteAway(key.Node) // after its grace the ledger has no free space there
	}
	if view.Refused != "" {
		return publish, scheduler.FreeSpace{}, nil // the last accepted report is outdated
	}
	if p.Available.Refuses(key.Node, key.Class) {
		return publish, scheduler.FreeSpace{}, nil
	}
	free, ok := p.Ledger.FreeSpace(key.Node, params.DeviceClass)
	if !ok {
		return remove, scheduler.FreeSpace{}, nil
	}
	return publish, free.Besides(params.Encryption.HeaderBytes()), nil
}

// unreported keeps an earlier leader's object for a node that has not reported to this process, and
// publishes no capacity once the node has had time to connect.
func (p *Publisher) unreported(key Key) desired {
	if p.current(key.ObjectName()) != nil && p.Available.NoteAway(key.Node) {
		return publish
	}
	return keep
}

// sync creates, updates or removes the object, and returns the time until the next check.
func (p *Publisher) sync(ctx context.Context, key Key) (time.Duration, error) {
	if key.all {
		p.allChanged()
		return 0, nil
	}
	if key.stray != "" {
		if object := p.current(key.stray); object != nil && p.keyOf(object).ObjectName() != object.Name {
			return 0, p.rename(ctx, object)
		}
		return 0, nil
	}
	want, free, err := p.desired(ctx, key)
	if err != nil {
		return 0, err
	}
	current := p.current(key.ObjectName())
	if current != nil && p.keyOf(current) != key {
		// These fields are immutable: we did not create the object, or TemplateLabel has changed.
		return 0, p.remove(ctx, current)
	}
	owners, ended := p.Owner.References()
	switch {
	case want == remove:
		p.forgetIncrease(key)
		if current == nil {
			return 0, nil
		}
		return 0, p.remove(ctx, current)
	case want != publish || ended:
		return 0, nil
	}
	object := p.describe(key, free)
	object.OwnerReferences = owners
	if current == nil {
		return 0, p.create(ctx, key, object)
	}
	if equalCapacity(current, object) {
		p.forgetIncrease(key)
		return 0, nil
	}
	if left := p.delay(key, current, object); left > 0 {
		return left, nil
	}
	return 0, p.update(ctx, key, current, object)
}

// rename removes an object that has not the name of its key: an earlier version named it, or it is
// not ours. It first creates the object with the right name and the same content, so that the node
// always has one, even while it is not connected.
func (p *Publisher) rename(ctx context.Context, object *storagev1.CSIStorageCapacity) error {
	key := Key{Node: TopologyNode(object), Class: object.StorageClassName}
	if _, ours := p.OurClass(key.Class); ours && key.Node != "" && object.Capacity != nil && p.current(key.ObjectName()) == nil {
		renamed := Describe(key, scheduler.FreeSpace{Available: object.Capacity.Value(), MaximumVolume: object.Capacity.Value()})
		renamed.Annotations, renamed.OwnerReferences = object.Annotations, object.OwnerReferences
		if object.MaximumVolumeSize != nil {
			renamed.MaximumVolumeSize = object.MaximumVolumeSize
		}
		if err := p.create(ctx, key, renamed); err != nil {
			return err
		}
	}
	p.Log.Info("removing a capacity object that has not the name of what it is about", "object", object.Name)
	return p.remove(ctx, object)
}

func (p *Publisher) delay(key Key, current, target *storagev1.CSIStorageCapacity) time.Duration {
	if current.Capacity == nil || current.MaximumVolumeSize == nil ||
		current.Capacity.Cmp(*target.Capacity) > 0 || current.MaximumVolumeSize.Cmp(*target.MaximumVolumeSize) > 0 {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.Now()
	since, ok := p.increaseSeen[key]
	if !ok {
		p.increaseSeen[key] = now
		return IncreaseDelay
	}
	return since.Add(IncreaseDelay).Sub(now)
}

// Waiting returns the keys with unwritten increases.
func (p *Publisher) Waiting() []Key {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.increaseSeen))
}

func (p *Publisher) forgetIncrease(key Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.increaseSeen, key)
}

func (p *Publisher) describe(key Key, free scheduler.FreeSpace) *storagev1.CSIStorageCapacity {
	object := Describe(key, free)
	if key.Template != "" {
		object.NodeTopology.MatchLabels = map[string]string{names.LabelTemplateNode: "true", p.TemplateLabel: key.Template}
		return object
	}
	if class, ok := p.DeviceClassOf(key.Node, key.Class); ok {
		if until := p.Available.HeldUntil(key.Node, class); !until.IsZero() {
			object.Annotations = map[string]string{names.AnnotationHeldBack: until.UTC().Format(time.RFC3339Nano)}
		}
	}
	return object
}

// Describe returns the object that publishes free space.
func Describe(key Key, free scheduler.FreeSpace) *storagev1.CSIStorageCapacity {
	return &storagev1.CSIStorageCapacity{
		ObjectMeta: metav1.ObjectMeta{Name: key.ObjectName(), Labels: map[string]string{
			names.LabelManagedBy: names.ManagedBy,
			LabelDriver:          names.Driver,
			LabelManager:         names.ManagedBy,
		}},
		NodeTopology:      &metav1.LabelSelector{MatchLabels: map[string]string{names.TopologyNode: key.Node}},
		StorageClassName:  key.Class,
		Capacity:          resource.NewQuantity(free.Available, resource.BinarySI),
		MaximumVolumeSize: resource.NewQuantity(free.MaximumVolume, resource.BinarySI),
	}
}

// published returns nil if the object of a key is up to date, otherwise why not.
func (p *Publisher) published(ctx context.Context, key Key) error {
	want, free, err := p.desired(ctx, key)
	if err != nil {
		return err
	}
	current := p.current(key.ObjectName())
	switch {
	case want == keep:
		return errors.New("the node has not reported its capacity")
	case want == remove && current != nil:
		return errors.New("there is an object and should be none")
	case want == publish && current == nil:
		return errors.New("there is no object yet")
	case want == publish && (p.keyOf(current) != key || !equalCapacity(current, p.describe(key, free))):
		return errors.New("the object is of an earlier state")
	}
	return nil
}

// Shown reports whether a node's objects are up to date, and our watch has delivered them.
func (p *Publisher) Shown(ctx context.Context, node string) bool {
	for _, class := range p.OurClasses() {
		key := Key{Node: node, Class: class.Name}
		if p.published(ctx, key) != nil {
			return false
		}
		if p.undelivered(key.ObjectName()) {
			return false
		}
	}
	return true
}

func (p *Publisher) undelivered(name string) bool {
	cached, _, err := p.Capacities.GetStore().GetByKey(p.Namespace + "/" + name)
	is := p.current(name)
	object, ok := cached.(*storagev1.CSIStorageCapacity)
	return is != nil && (err != nil || !ok || object.ResourceVersion != is.ResourceVersion)
}
