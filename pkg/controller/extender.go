package controller

import (
	"context"
	"fmt"
	"net"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/component-helpers/storage/volume"

	"github.com/carve-csi/carve/pkg/controller/capacity"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/controller/provision"
	"github.com/carve-csi/carve/pkg/controller/spec"
	"github.com/carve-csi/carve/pkg/quantity"
	"github.com/carve-csi/carve/pkg/scheduler"
	"github.com/carve-csi/carve/pkg/scheduler/extender"
)

// serveExtender answers the scheduler until ctx is done. Every replica does,
// for a Service knows no leader.
func (c *Controller) serveExtender(ctx context.Context) error {
	if !cache.WaitForCacheSync(ctx.Done(), c.core.Synced) {
		return nil
	}
	stop, err := c.shadowReservations()
	if err != nil {
		return err
	}
	defer stop()
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", c.o.ExtenderListen)
	if err != nil {
		return fmt.Errorf("listen for the scheduler: %w", err)
	}
	o := extender.Options{
		Judge: c.core.ledger, Demands: c.core.demands, Seconds: c.core.metrics.extenderSeconds, Log: c.o.Log.With("component", "extender"),
	}
	if c.o.ExtenderChecksCapacity {
		o.Published = c.published
	}
	return extender.Serve(ctx, listener, c.o.ExtenderFiles, extender.New(o),
		func(reason string) { c.core.metrics.extenderRejections.WithLabelValues(reason).Inc() }, c.o.Log)
}

// published returns nil when what is published for a node and a StorageClass is enough for a claim. The leader knows
// reasons to publish less that the ledger of another replica does not have.
func (c *Controller) published(node string, d scheduler.Demand) error {
	name := capacity.Key{Node: node, Class: d.StorageClass}.ObjectName()
	found, _, err := c.core.Capacities.GetStore().GetByKey(c.o.Namespace + "/" + name)
	if err != nil {
		return fmt.Errorf("read the capacity of node %s: %w", node, err)
	}
	if object, ok := found.(*storagev1.CSIStorageCapacity); !ok || object.MaximumVolumeSize == nil || object.MaximumVolumeSize.Value() < d.Size {
		return fmt.Errorf("node %s has no published capacity for %s of StorageClass %s", node, quantity.Bytes(d.Size), d.StorageClass)
	}
	return nil
}

// shadowReservations keeps the ledger's reservations on a replica that does not
// provision, from what claims show: the nodes that they chose. The leader's
// provisioner knows more, and derives its own again when it begins. A leader without one
// publishes these.
func (c *Controller) shadowReservations() (stop func(), err error) {
	note := func(claim *v1.PersistentVolumeClaim, deleted bool) {
		if a := c.acting.Load(); a != nil && a.provisioner != nil {
			return
		}
		class, ours := c.core.OurClass(volume.GetPersistentVolumeClaimClass(claim))
		node := claim.Annotations[volume.AnnSelectedNode]
		if !ours || !spec.BindsLate(class) || claim.Spec.VolumeName != "" && !deleted {
			return // what is bound is reserved until its node reports it
		}
		if r, err := spec.ParseClaim(claim, class); err == nil && node != "" && !deleted && claim.DeletionTimestamp == nil {
			c.freeChanged(c.core.ledger.Reserve(scheduler.Reservation{Claim: string(claim.UID), Volume: spec.VolumeName(claim), Node: node,
				Class: r.DeviceClass, Bytes: r.Footprint(), Deadline: c.core.Now().Add(provision.ReservationLife)}))
			return
		}
		if node, ok := c.core.ledger.Release(string(claim.UID)); ok {
			c.freeChanged([]string{node})
		}
	}
	return cluster.Watch(cluster.OnChange(c.core.Claims,
		func(claim *v1.PersistentVolumeClaim) { note(claim, false) },
		func(claim *v1.PersistentVolumeClaim) { note(claim, true) }))
}

// freeChanged is called with nodes on which reservations were made or ended.
func (c *Controller) freeChanged(nodes []string) {
	if a := c.acting.Load(); a != nil {
		for _, node := range nodes {
			a.freeChanged(node)
		}
	}
}

// demands are the volumes of ours that a Pod still needs: of its claims that
// are not bound and bind late, and movable ones, of which the scheduler does not
// know where they are. A claim that we would reject demands nothing; an Event says
// why.
func (c *core) demands(ctx context.Context, pod *v1.Pod) ([]scheduler.Demand, error) {
	var out []scheduler.Demand
	seen := map[string]struct{}{}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		name, ok := cluster.ClaimName(pod, v)
		if _, twice := seen[name]; !ok || twice {
			continue
		}
		seen[name] = struct{}{}
		claim, err := c.claimOf(ctx, pod, v, name)
		if err != nil {
			return nil, err
		}
		if pv, err := c.VolumeLister.Get(claim.Spec.VolumeName); err == nil && cluster.IsOurs(pv) && pv.Spec.NodeAffinity == nil {
			if on, recorded := cluster.RecordedNode(pv); recorded {
				out = append(out, scheduler.Demand{Claim: string(claim.UID), Node: on})
			}
		}
		class, ours := c.OurClass(volume.GetPersistentVolumeClaimClass(claim))
		if !ours || !spec.BindsLate(class) || claim.Spec.VolumeName != "" {
			continue
		}
		r, err := spec.ParseClaim(claim, class)
		if err != nil {
			continue
		}
		out = append(out, spec.Demand(claim, r))
	}
	return out, nil
}

// claimOf returns a claim of a Pod: from the cache, or else from the API
// server, for the scheduler may have seen it before us. A generic ephemeral
// volume whose claim does not exist yet is as its template says.
func (c *core) claimOf(ctx context.Context, pod *v1.Pod, v *v1.Volume, name string) (*v1.PersistentVolumeClaim, error) {
	var err error
	claim := c.ClaimAt(pod.Namespace + "/" + name)
	if claim == nil {
		claim, err = c.Client.CoreV1().PersistentVolumeClaims(pod.Namespace).Get(ctx, name, metav1.GetOptions{})
	}
	switch {
	case apierrors.IsNotFound(err) && v.Ephemeral != nil && v.Ephemeral.VolumeClaimTemplate != nil:
		return &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: name,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(pod, v1.SchemeGroupVersion.WithKind("Pod"))}},
			Spec: v.Ephemeral.VolumeClaimTemplate.Spec}, nil
	case err != nil:
		return nil, fmt.Errorf("read claim %s: %w", name, err)
	case v.Ephemeral != nil:
		if err := ephemeral.VolumeIsForPod(pod, claim); err != nil {
			return nil, err
		}
	}
	return claim, nil
}
