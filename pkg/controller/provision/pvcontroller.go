package provision

import (
	"fmt"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/carve-csi/carve/pkg/controller/cluster"
)

// PVController knows whether the PV controller has taken in a new volume yet. It looks
// at the volumes of all drivers.
//
// The PV controller calls a claim Lost that says it is bound to a volume which
// the controller does not have in its own store. It takes volumes in with one
// worker, in the order in which they were created. That worker is quick, with
// one exception: for a volume whose claim was deleted it makes two calls, which
// wait for their turn behind all the others of a client limited to 20 per
// second. So there are two cases.
//
// When no claim that has a volume was deleted lately, a volume is taken in as
// soon as the PV controller's watch delivers it, and a short wait is enough.
//
// When some were, volumes may be stuck behind one of them. Then only what the
// PV controller does is proof: it writes the phase of a new volume (which no
// other component does in this case) only after taking it in, and it has taken in all that
// were created before that one. This case ends with such a proof for a volume
// that was created after the last of the deleted claims' volumes was dealt with, and
// never by time: how long the PV controller is stuck depends on what other drivers do,
// and on its client's limit. While claims are deleted all the time, all volumes wait
// for their proof, which is when the PV controller binds them itself.
type PVController struct {
	mu sync.Mutex
	// created numbers new volumes in the order of their creation, until we write
	// their phase, or they are released or deleted.
	created map[string]uint64
	last    uint64 // number given last
	// taken is the highest number that the PV controller has taken in.
	taken uint64
	// releasing are volumes whose claim was deleted and which are not seen as
	// released or deleted yet.
	releasing map[string]struct{}
	// behind says that volumes may be stuck; until is the number after which
	// a proof ends that, once releasing is empty.
	behind bool
	until  uint64
	// own are volumes whose phase we write: no proof.
	own map[string]struct{}
}

// WatchPVController watches, through the informers of a cluster, for as long as these run.
func WatchPVController(c *cluster.Cluster) (*PVController, error) {
	p := newPVController()
	return p, p.watch(c)
}

func newPVController() *PVController {
	return &PVController{created: map[string]uint64{}, releasing: map[string]struct{}{}, own: map[string]struct{}{}}
}

// watch feeds it from the informers, for as long as these run. Order
// matters among the events of volumes only.
func (p *PVController) watch(c *cluster.Cluster) error {
	_, err := c.Claims.AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: func(obj any) {
		claim := cluster.DeletedClaim(obj)
		if claim == nil {
			return
		}
		if claim.Spec.VolumeName != "" {
			p.ClaimDeleted(claim.Spec.VolumeName, false)
		}
		// Also those to which the claim was not bound yet.
		for _, pv := range c.VolumesFor(claim) {
			p.ClaimDeleted(pv.Name, !cluster.IsReleased(pv))
		}
	}})
	if err != nil {
		return fmt.Errorf("watch claims: %w", err)
	}
	_, err = c.Volumes.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(obj any, initially bool) {
			pv, ok := obj.(*v1.PersistentVolume)
			if !ok {
				return
			}
			p.VolumeAdded(pv)
			if !initially && lacksClaim(c, pv) { // See Survey for what was there at first.
				p.ClaimDeleted(pv.Name, true)
			}
		},
		UpdateFunc: func(_, obj any) {
			pv, ok := obj.(*v1.PersistentVolume)
			if !ok {
				return
			}
			if !lacksClaim(c, pv) {
				p.claimFound(pv.Name) // It was not in our cache yet when the volume was.
			}
			p.VolumeUpdated(pv)
		},
		DeleteFunc: func(obj any) {
			if name, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil {
				p.VolumeDeleted(name)
			}
		},
	})
	if err != nil {
		return fmt.Errorf("watch volumes: %w", err)
	}
	return nil
}

// Survey notes deletions that were under way before the informers began. It is called once,
// when the view of the cluster is complete.
func (p *PVController) Survey(c *cluster.Cluster) {
	for _, obj := range c.Volumes.GetStore().List() {
		if pv, ok := obj.(*v1.PersistentVolume); ok && lacksClaim(c, pv) {
			p.ClaimDeleted(pv.Name, true)
		}
	}
}

// lacksClaim reports whether a volume, which is not released, is for a claim that our cache
// does not have.
func lacksClaim(c *cluster.Cluster, pv *v1.PersistentVolume) bool {
	return pv.Spec.ClaimRef != nil && pv.Spec.ClaimRef.UID != "" && !cluster.IsReleased(pv) && c.Claim(string(pv.Spec.ClaimRef.UID)) == nil
}

// claimFound takes back that the claim of a volume is deleted.
func (p *PVController) claimFound(volume string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.released(volume)
}

// VolumeAdded notes that the watch delivered a new volume.
func (p *PVController) VolumeAdded(pv *v1.PersistentVolume) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last++
	if pv.Status.Phase == v1.VolumePending || pv.Status.Phase == "" {
		p.created[pv.Name] = p.last
	}
}

// VolumeUpdated notes that the watch delivered a change of a volume.
func (p *PVController) VolumeUpdated(pv *v1.PersistentVolume) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if pv.Status.Phase == v1.VolumePending || pv.Status.Phase == "" {
		return
	}
	if _, ours := p.own[pv.Name]; ours {
		delete(p.created, pv.Name)
	} else {
		p.taken = max(p.taken, p.created[pv.Name])
	}
	if cluster.IsReleased(pv) {
		delete(p.created, pv.Name)
		p.released(pv.Name)
	}
	p.reconsider()
}

// VolumeDeleted notes that a volume was deleted.
func (p *PVController) VolumeDeleted(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.created, name)
	delete(p.own, name)
	p.released(name)
	p.reconsider()
}

// ClaimDeleted notes that the claim is gone that a volume is for. pending says whether the
// volume is still to be released.
func (p *PVController) ClaimDeleted(volume string, pending bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.behind, p.until = true, p.last
	if pending {
		p.releasing[volume] = struct{}{}
	}
}

// released is called with the lock held, as is reconsider.
func (p *PVController) released(volume string) {
	if _, ok := p.releasing[volume]; ok {
		delete(p.releasing, volume)
		p.until = p.last
	}
}

func (p *PVController) reconsider() {
	if p.behind && len(p.releasing) == 0 && p.taken > p.until {
		p.behind = false
	}
}

// MayBeBehind reports whether volumes may be stuck. While they may, their phase is the
// PV controller's to write.
func (p *PVController) MayBeBehind() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.behind
}

// writesPhase notes that we are about to write the phase of a volume. It must
// be called before.
func (p *PVController) writesPhase(volume string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.own[volume] = struct{}{}
}

// hasTaken reports whether the PV controller is proven to have taken a volume in.
func (p *PVController) hasTaken(volume string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	number, isNew := p.created[volume]
	return isNew && number <= p.taken
}
