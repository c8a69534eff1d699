package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/pager"
	"k8s.io/client-go/tools/record"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/spec"
	"github.com/carve-csi/carve/pkg/fleet"
)

const (
	// APITimeout limits one call to the API server.
	APITimeout = 15 * time.Second
	// DeleteTimeout limits one delete on a node, which does not include wiping.
	DeleteTimeout = 60 * time.Second
	// ListTimeout limits a list of all objects of a kind. Each of its pages has APITimeout.
	ListTimeout = time.Minute
)

const byUID = "uid"

// bySource indexes claims by the claim that they clone.
const bySource = "source"

// byVolume indexes claims by spec.volumeName, unless that is the volume made for them.
const byVolume = "volume"

// Cluster is the controller's view of the cluster: API objects from informers, nodes from their
// reports. Its methods may be called concurrently.
type Cluster struct {
	Client kubernetes.Interface
	Fleet  *fleet.Fleet
	// Recorder and ID are set before anything acts.
	Recorder record.EventRecorder
	ID       string
	Log      *slog.Logger
	Now      func() time.Time

	Claims     cache.TypedSharedIndexInformer[*v1.PersistentVolumeClaim]
	Volumes    cache.TypedSharedIndexInformer[*v1.PersistentVolume]
	Classes    cache.TypedSharedIndexInformer[*storagev1.StorageClass]
	Nodes      cache.TypedSharedIndexInformer[*v1.Node]
	Capacities cache.TypedSharedIndexInformer[*storagev1.CSIStorageCapacity] // ours
	Pods       cache.TypedSharedIndexInformer[*v1.Pod]                       // only Pods that have not started

	VolumeLister corelisters.PersistentVolumeLister
	NodeLister   corelisters.NodeLister

	Losses absences
}

// New returns a Cluster that is complete once the informers have synced. own must be restricted to
// our capacity objects.
func New(client kubernetes.Interface, nodes *fleet.Fleet, all, own informers.SharedInformerFactory, log *slog.Logger) (*Cluster, error) {
	c := &Cluster{Client: client, Fleet: nodes, Log: log, Now: time.Now, Losses: absences{losses: losses{Grace: NodeLossGrace}, Agentless: losses{Grace: AgentGrace}}}
	return c, c.useInformers(all, own)
}

func (c *Cluster) useInformers(all, own informers.SharedInformerFactory) error {
	c.Claims = all.Core().V1().PersistentVolumeClaims().TypedInformer()
	c.Volumes = all.Core().V1().PersistentVolumes().TypedInformer()
	c.Classes = all.Storage().V1().StorageClasses().TypedInformer()
	c.Nodes = all.Core().V1().Nodes().TypedInformer()
	c.Capacities = own.Storage().V1().CSIStorageCapacities().TypedInformer()
	c.Pods = waitingPods(all)
	c.VolumeLister = all.Core().V1().PersistentVolumes().Lister()
	c.NodeLister = all.Core().V1().Nodes().Lister()
	var failed []error
	trim := newTrimmer().trim
	for _, informer := range c.Informers() {
		failed = append(failed, informer.SetTransform(trim))
	}
	failed = append(failed, c.Pods.SetTransform(claimsOnly),
		c.Volumes.AddTypedIndexers(cache.TypedIndexers[*v1.PersistentVolume]{ByHandle: handleIndexer}),
		c.Claims.AddTypedIndexers(cache.TypedIndexers[*v1.PersistentVolumeClaim]{
			byUID:    func(claim *v1.PersistentVolumeClaim) ([]string, error) { return []string{string(claim.UID)}, nil },
			bySource: sourceIndexer,
			byVolume: volumeIndexer,
		}))
	if err := errors.Join(failed...); err != nil {
		return fmt.Errorf("prepare informers: %w", err)
	}
	return nil
}

// Informers returns all informers.
func (c *Cluster) Informers() []cache.SharedIndexInformer {
	return []cache.SharedIndexInformer{c.Claims, c.Volumes, c.Classes, c.Nodes, c.Capacities, c.Pods}
}

// Synced reports whether all caches are complete.
func (c *Cluster) Synced() bool {
	for _, informer := range c.Informers() {
		if !informer.HasSynced() {
			return false
		}
	}
	return true
}

// Claim returns the cached claim with that UID, or nil.
func (c *Cluster) Claim(uid string) *v1.PersistentVolumeClaim {
	claims := indexed(c.Claims, byUID, uid)
	if len(claims) == 0 {
		return nil
	}
	return claims[0]
}

// ClaimAt returns the cached claim with the key namespace/name, or nil.
func (c *Cluster) ClaimAt(key string) *v1.PersistentVolumeClaim {
	obj, _, err := c.Claims.GetStore().GetByKey(key)
	if claim, ok := obj.(*v1.PersistentVolumeClaim); ok && err == nil {
		return claim
	}
	return nil
}

// VolumesFor returns the cached volumes that were made for this claim or that it names, whether
// bound or not. Only the PV controller finds others with a claimRef to it: an index would take as
// much memory as a tenth of each volume.
func (c *Cluster) VolumesFor(claim *v1.PersistentVolumeClaim) (out []*v1.PersistentVolume) {
	for _, name := range []string{spec.VolumeName(claim), claim.Spec.VolumeName} {
		pv, err := c.VolumeLister.Get(name)
		if err == nil && pv.Spec.ClaimRef != nil && pv.Spec.ClaimRef.UID == claim.UID && !slices.Contains(out, pv) {
			out = append(out, pv)
		}
	}
	return out
}

// ClaimNaming returns a cached claim, as namespace/name, whose spec.volumeName is volume, or "".
func (c *Cluster) ClaimNaming(volume string) string {
	claims := indexed(c.Claims, byVolume, volume)
	if claim := c.Claim(strings.TrimPrefix(volume, "pvc-")); claim != nil && claim.Spec.VolumeName == volume {
		claims = append(claims, claim)
	}
	if len(claims) == 0 {
		return ""
	}
	return claims[0].Namespace + "/" + claims[0].Name
}

// ReadClaimsNaming is ClaimNaming for several volumes, by one list from the API server. It returns
// the claims by volume.
func (c *Cluster) ReadClaimsNaming(ctx context.Context, volumes ...string) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, ListTimeout)
	defer cancel()
	naming := map[string]string{}
	pages := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		ctx, cancel := context.WithTimeout(ctx, APITimeout)
		defer cancel()
		return c.Client.CoreV1().PersistentVolumeClaims(metav1.NamespaceAll).List(ctx, o)
	})
	err := pages.EachListItem(ctx, metav1.ListOptions{}, func(obj runtime.Object) error {
		if claim, ok := obj.(*v1.PersistentVolumeClaim); ok && slices.Contains(volumes, claim.Spec.VolumeName) {
			naming[claim.Spec.VolumeName] = claim.Namespace + "/" + claim.Name
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list the claims: %w", err)
	}
	return naming, nil
}

// ClonesOf returns the claims that are clones, or will be, of the claim namespace/name.
func (c *Cluster) ClonesOf(source string) []*v1.PersistentVolumeClaim {
	return indexed(c.Claims, bySource, source)
}

// AllClaims returns the cached claims.
func (c *Cluster) AllClaims() []*v1.PersistentVolumeClaim {
	return List(c.Claims)
}

// OurClass returns the StorageClass of that name if it is one of ours.
func (c *Cluster) OurClass(name string) (*storagev1.StorageClass, bool) {
	class, err := storagelisters.NewStorageClassLister(c.Classes.GetIndexer()).Get(name)
	if err != nil || class.Provisioner != names.Driver {
		return nil, false
	}
	return class, true
}

// OurClasses returns the StorageClasses of ours.
func (c *Cluster) OurClasses() []*storagev1.StorageClass {
	return slices.DeleteFunc(List(c.Classes), func(class *storagev1.StorageClass) bool { return class.Provisioner != names.Driver })
}

func sourceIndexer(claim *v1.PersistentVolumeClaim) ([]string, error) {
	if source, _, err := spec.SourceOf(claim); err == nil && source != nil && source.Kind == spec.KindClaim {
		return []string{claim.Namespace + "/" + source.Name}, nil
	}
	return nil, nil
}

// volumeIndexer skips claims that name the volume made for them. ClaimNaming finds these by their
// UID; most are such, and an entry for each would cost memory.
func volumeIndexer(claim *v1.PersistentVolumeClaim) ([]string, error) {
	if name := claim.Spec.VolumeName; name != "" && name != spec.VolumeName(claim) {
		return []string{name}, nil
	}
	return nil, nil
}
