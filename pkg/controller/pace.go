package controller

import (
	"fmt"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
)

// pace tells whether the PV controller has taken in a new volume yet. It looks
// at the volumes of all drivers.
//
// The PV controller calls a claim Lost that says it is bound to a volume which
// the controller does not have in its own store. It takes volumes in with one
// worker, in the order in which they were created. That worker is quick, with
// one exception: for a volume whose claim was deleted it makes two calls, which
// wait for their turn behind all the others of a client limited to 20 per
// second. So there are two cases.
//
// When no claim of a bound volume was deleted lately, a volume is taken in as
// soon as the PV controller's watch delivers it, and a short wait is enough.
//
// When some were, volumes may be stuck behind one of them. Then only what the
// PV controller does is proof: it writes the phase of a new volume (which nobody
// else does in this case) only after taking it in, and it has taken in all that
// were created before that one. This case ends with such a proof for a volume
// that was created after the last of the deleted claims' volumes was dealt with, and
// never by time: how long the PV controller is stuck depends on what other drivers do,
// and on its client's limit. While claims are deleted all the time, all volumes wait
// for their proof, which is when the PV controller binds them itself.
type pace struct {
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
	// doubtful says that volumes may be stuck; until is the number after which
	// a proof ends that, once releasing is empty.
	doubtful bool
	until    uint64
	// own are volumes whose phase we write: no proof.
	own map[string]struct{}
}

func newPace() *pace {
	return &pace{created: map[string]uint64{}, releasing: map[string]struct{}{}, own: map[string]struct{}{}}
}

// watch feeds the pace from the informers, for as long as these run. Order
// matters among the events of volumes only.
func (p *pace) watch(c *core) error {
	_, err := c.claims.AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: func(obj any) {
		if claim := deletedClaim(obj); claim != nil && claim.Spec.VolumeName != "" {
			pv, err := c.volumeLister.Get(claim.Spec.VolumeName)
			p.claimDeleted(claim.Spec.VolumeName, err == nil && claimedBy(pv, claim) && !isReleased(pv))
		}
	}})
	if err != nil {
		return fmt.Errorf("watch claims: %w", err)
	}
	_, err = c.volumes.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(obj any, _ bool) {
			if pv, ok := obj.(*v1.PersistentVolume); ok {
				p.volumeAdded(pv)
			}
		},
		UpdateFunc: func(_, obj any) {
			if pv, ok := obj.(*v1.PersistentVolume); ok {
				p.volumeUpdated(pv)
			}
		},
		DeleteFunc: func(obj any) {
			if name, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil {
				p.volumeDeleted(name)
			}
		},
	})
	if err != nil {
		return fmt.Errorf("watch volumes: %w", err)
	}
	return nil
}

// survey looks for deletions that were under way before the informers began.
func (p *pace) survey(c *core) {
	for _, obj := range c.volumes.GetStore().List() {
		pv, ok := obj.(*v1.PersistentVolume)
		if !ok || pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID == "" || isReleased(pv) {
			continue
		}
		if c.claim(string(pv.Spec.ClaimRef.UID)) == nil {
			p.claimDeleted(pv.Name, true)
		}
	}
}

func (p *pace) volumeAdded(pv *v1.PersistentVolume) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last++
	if pv.Status.Phase == v1.VolumePending || pv.Status.Phase == "" {
		p.created[pv.Name] = p.last
	}
}

func (p *pace) volumeUpdated(pv *v1.PersistentVolume) {
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
	if isReleased(pv) {
		delete(p.created, pv.Name)
		p.settled(pv.Name)
	}
	p.reconsider()
}

func (p *pace) volumeDeleted(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.created, name)
	delete(p.own, name)
	p.settled(name)
	p.reconsider()
}

// claimDeleted notes that a bound claim is gone. pending says whether its
// volume is still to be released.
func (p *pace) claimDeleted(volume string, pending bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.doubtful, p.until = true, p.last
	if pending {
		p.releasing[volume] = struct{}{}
	}
}

// settled is called with the lock held, as is reconsider.
func (p *pace) settled(volume string) {
	if _, ok := p.releasing[volume]; ok {
		delete(p.releasing, volume)
		p.until = p.last
	}
}

func (p *pace) reconsider() {
	if p.doubtful && len(p.releasing) == 0 && p.taken > p.until {
		p.doubtful = false
	}
}

// doubt tells whether volumes may be stuck. While they may, their phase is the
// PV controller's to write.
func (p *pace) doubt() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.doubtful
}

// writesPhase notes that we are about to write the phase of a volume. It must
// be called before.
func (p *pace) writesPhase(volume string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.own[volume] = struct{}{}
}

// hasTaken tells whether the PV controller is proven to have taken a volume in.
func (p *pace) hasTaken(volume string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	number, isNew := p.created[volume]
	return isNew && number <= p.taken
}

// deletedClaim returns the claim that a delete event is about, or nil.
func deletedClaim(obj any) *v1.PersistentVolumeClaim {
	if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	claim, _ := obj.(*v1.PersistentVolumeClaim)
	return claim
}

// claimedBy tells whether a volume is bound to this very claim.
func claimedBy(pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim) bool {
	return pv.Spec.ClaimRef != nil && pv.Spec.ClaimRef.UID == claim.UID
}

// isReleased tells whether it is noted on a volume that its claim is gone.
func isReleased(pv *v1.PersistentVolume) bool {
	return pv.Status.Phase == v1.VolumeReleased || pv.Status.Phase == v1.VolumeFailed
}
