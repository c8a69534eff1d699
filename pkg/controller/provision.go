package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/volume"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/workloop"
	"github.com/carve-csi/carve/pkg/fleet"
	"github.com/carve-csi/carve/pkg/scheduler"
)

const (
	// provisionWorkers is how many claims are worked on at once, beside those that wait
	// for a node. A worker mostly waits for the API server.
	provisionWorkers = 128
	// Pauses between attempts at one claim that failed.
	retryMin = 200 * time.Millisecond
	retryMax = 30 * time.Second
	// reservationLife is how long a reservation outlives the last attempt.
	reservationLife = 5 * time.Minute
	// releaseUnreachable is how long a selected node may be without an uplink
	// before the claim is handed back.
	releaseUnreachable = 30 * time.Second
	// complainAfter is how long a claim must have waited before we say that no
	// node can ever take it: nodes may just be connecting.
	complainAfter = 10 * time.Second
	// complainEvery is how often a complaint about a claim that cannot be
	// provisioned is repeated. Events live for an hour.
	complainEvery = 5 * time.Minute
	// cacheLag is how long what we wrote may take to show up in our cache.
	cacheLag = 30 * time.Second
	// internalErrorsToRelease is how often in a row a node may fail for reasons
	// of its own before the scheduler is asked for another.
	internalErrorsToRelease = 3
)

// provisioner makes volumes for claims.
type provisioner struct {
	*core
	completeBinding bool
	roomChanged     func(node string) // told when a reservation came or went
	// capacityShown reports whether the published capacity of a node is what it should be.
	capacityShown func(ctx context.Context, node string) bool
	claimLoop     *workloop.Loop[string] // by UID
	waiting       waiters
	protector     *protector
	placing       sync.Mutex // serialises immediate binding's choices; taken before mu

	mu       sync.Mutex
	attempts map[string]*attempt // by claim UID
}

// attempt is what is remembered of a claim until it is bound or gone. Its
// fields are used only by the worker that has the claim, but for those that say
// otherwise.
type attempt struct {
	uid  string
	name string // of the volume

	began      time.Time // guarded by provisioner.mu
	node       string    // selected; guarded by provisioner.mu
	selectedAt time.Time // guarded by provisioner.mu

	// doubts are nodes that may hold the volume while no PersistentVolume
	// speaks for it.
	doubts map[string]struct{}
	// inherited is the one of them that the claim had chosen when this life
	// began, for as long as this life has not asked it for the volume.
	inherited string
	// announced is the node for which the Event Provisioning was sent.
	announced string
	// unreachableSince is when the selected node was first found without uplink.
	unreachableSince time.Time
	// misfitSince is when the claims of its Pod were first found not to fit on the
	// selected node together.
	misfitSince time.Time
	// unanswered counts creates in a row that left doubt.
	unanswered int
	// unsaved counts volumes in a row that were made and whose PersistentVolume
	// could not be.
	unsaved int
	// internalErrors counts failures of the selected node in a row.
	internalErrors int
	// leaving is why the claim is to be rescheduled from the node that it selected, once
	// the node's lowered capacity can be seen; nil for not at all.
	leaving *departure
	// blamed is the node against which the claim's failures count: one that fails on
	// several nodes says nothing about the others.
	blamed string
	// full are nodes that had no room, for immediate binding.
	full map[string]time.Time
	// protects is the claim (namespace/name) that is protected while this one is
	// made of it. seen says that it was found out whether that is needed;
	// guarded by provisioner.mu.
	protects string
	seen     bool
	// wasBound says that the claim named its PersistentVolume at some time: what
	// becomes of the volume is then for the reclaim policy to say, not for us.
	wasBound bool
	// pv is what we created, which the cache may not have yet.
	pv   *v1.PersistentVolume
	pvAt time.Time
	// pvSeenAt is when the cache was first found to have it.
	pvSeenAt time.Time
	// releasedAt is the claim's resource version after it was handed back: what
	// is older still shows the selection that was taken back. Guarded by
	// provisioner.mu.
	releasedAt string

	complaint    string
	complainedAt time.Time
}

// departure is that a claim is to be rescheduled from a node.
type departure struct {
	node string
	why  error
}

// inDoubt tells whether a node was asked for the volume in this life and it is not
// known whether it has it.
func (a *attempt) inDoubt() bool {
	for node := range a.doubts {
		if node != a.inherited {
			return true
		}
	}
	return false
}

// stale tells whether the cache still shows the claim as it was before it was
// handed back. Called with provisioner.mu held.
func (a *attempt) stale(claim *v1.PersistentVolumeClaim) bool {
	if a.releasedAt == "" {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(claim.ResourceVersion, a.releasedAt)
	return err == nil && order < 0
}

func newProvisioner(c *core, completeBinding bool, published *publisher) *provisioner {
	p := &provisioner{
		core: c, completeBinding: completeBinding, roomChanged: published.nodeChanged, capacityShown: published.shown,
		attempts: map[string]*attempt{},
	}
	p.claimLoop = workloop.New(workloop.Options[string]{
		Name: "claims", Parallel: cmp.Or(c.workers, provisionWorkers), RetryMin: retryMin, RetryMax: retryMax, Work: p.sync,
		Tenant: func(uid string) string {
			if claim := p.claim(uid); claim != nil {
				return claim.Namespace
			}
			return ""
		},
		Failed: func(_ context.Context, uid string, err error) {
			p.log.Info("claim is not done yet", "claim_uid", uid, "error", err)
		},
	})
	p.protector = newProtector(c, p.unseen)
	return p
}

// run works until ctx is done. The caches must have synced.
func (p *provisioner) run(ctx context.Context) error {
	var working sync.WaitGroup
	defer working.Wait()
	claims, err := p.claims.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { p.claimChanged(obj) },
		UpdateFunc: func(_, obj any) { p.claimChanged(obj) },
		DeleteFunc: p.claimDeleted,
	})
	if err != nil {
		return fmt.Errorf("watch claims: %w", err)
	}
	defer func() { _ = p.claims.RemoveEventHandler(claims) }()
	classes, err := p.classes.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { p.allChanged() },
		UpdateFunc: func(_, _ any) { p.allChanged() },
	})
	if err != nil {
		return fmt.Errorf("watch storage classes: %w", err)
	}
	defer func() { _ = p.classes.RemoveEventHandler(classes) }()
	stop, err := p.watchGone(p.nodeChanged)
	if err != nil {
		return err
	}
	defer stop()

	working.Go(func() { p.claimLoop.Run(ctx) })
	expire := time.NewTicker(10 * time.Second)
	defer expire.Stop()
	for {
		select {
		case <-expire.C:
			for _, node := range p.ledger.Expire() {
				p.roomChanged(node)
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// attemptOf returns the attempt at a claim that is in the queue. Where there is none,
// it was forgotten after the news of the claim was noted, and before this: then the
// news counts for another attempt, or what was reserved for the claim ends.
func (p *provisioner) attemptOf(uid string, claim *v1.PersistentVolumeClaim) *attempt {
	p.mu.Lock()
	a := p.attempts[uid]
	p.mu.Unlock()
	if a != nil {
		return a
	}
	if claim == nil || !p.noteSelection(claim) {
		p.unreserve(uid)
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.attempts[uid]
}

// nodeChanged looks again at the claims that wait for the node: it connected, or
// is gone.
func (p *provisioner) nodeChanged(node string) {
	for _, uid := range p.waiting.take(node) {
		p.claimLoop.Add(uid)
	}
}

// deriveReservations reserves for every claim that chose a node already, and
// doubts that node. It is called once, before room is published and before run.
func (p *provisioner) deriveReservations() {
	for _, claim := range p.allClaims() {
		if p.noteSelection(claim) {
			p.inheritDoubt(claim)
		}
	}
}

// inheritDoubt doubts the node that a claim chose before this life began: an
// earlier life may have sent it the create, and have ended before the answer came.
// Where the node is connected, and still the chosen one, the doubt is in nobody's
// way: it is asked for the volume as any other node is.
func (p *provisioner) inheritDoubt(claim *v1.PersistentVolumeClaim) {
	class, ours := p.ourClass(volume.GetPersistentVolumeClaimClass(claim))
	if !ours || claim.Spec.VolumeName != "" || populatedByOthers(claim) || provisionedByOthers(claim) {
		return
	}
	if _, err := parseClaim(claim, class); err != nil {
		return // nobody was asked for that
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if a := p.attempts[string(claim.UID)]; a != nil && a.node != "" {
		a.doubts[a.node], a.inherited = struct{}{}, a.node
	}
}

// provisionedByOthers tells claims that another provisioner was asked to serve.
func provisionedByOthers(claim *v1.PersistentVolumeClaim) bool {
	by := claim.Annotations[volume.AnnStorageProvisioner]
	return by != "" && by != names.Driver
}

func (p *provisioner) allChanged() {
	for _, claim := range p.allClaims() {
		p.claimChanged(claim)
	}
}

// claimChanged runs in the informer's goroutine: the reservation is made here
// and now, however busy the workers are.
func (p *provisioner) claimChanged(obj any) {
	claim, ok := obj.(*v1.PersistentVolumeClaim)
	if !ok {
		return
	}
	if p.noteSelection(claim) {
		p.claimLoop.Add(string(claim.UID))
	}
	for _, clone := range p.clonesOf(claim.Namespace + "/" + claim.Name) {
		p.claimLoop.Add(string(clone.UID))
	}
}

func (p *provisioner) claimDeleted(obj any) {
	claim := deletedClaim(obj)
	if claim == nil {
		return
	}
	p.unreserve(string(claim.UID))
	p.mu.Lock()
	_, known := p.attempts[string(claim.UID)]
	p.mu.Unlock()
	if known {
		p.claimLoop.Add(string(claim.UID))
	}
}

// noteSelection keeps the claim's reservation in step with the node it chose,
// and tells whether the claim needs work.
func (p *provisioner) noteSelection(claim *v1.PersistentVolumeClaim) bool {
	uid := string(claim.UID)
	class, ours := p.ourClass(volume.GetPersistentVolumeClaimClass(claim))
	lost := claim.Status.Phase == v1.ClaimLost && claim.Spec.VolumeName == volumeName(claim) && p.completeBinding
	if !ours || claim.Spec.VolumeName != "" && !lost {
		p.mu.Lock()
		_, known := p.attempts[uid]
		p.mu.Unlock()
		return known
	}
	node := ""
	if delayed(class) {
		node = claim.Annotations[volume.AnnSelectedNode]
	}
	p.mu.Lock()
	a := p.attempts[uid]
	if a == nil {
		a = &attempt{uid: uid, name: volumeName(claim), began: p.now(), doubts: map[string]struct{}{}, full: map[string]time.Time{}}
		p.attempts[uid] = a
	}
	if a.stale(claim) {
		p.mu.Unlock()
		return false
	}
	if delayed(class) && a.node != node {
		a.node, a.selectedAt = node, p.now()
	}
	p.mu.Unlock()
	if !delayed(class) || lost {
		return true
	}
	if node == "" || claim.DeletionTimestamp != nil {
		p.unreserve(uid)
		return true
	}
	if r, err := parseClaim(claim, class); err == nil {
		p.reserve(a, node, r)
	}
	return true
}

// delayed tells late binding from immediate binding.
func delayed(class *storagev1.StorageClass) bool {
	return class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
}

func (p *provisioner) reserve(a *attempt, node string, r request) {
	for _, changed := range p.ledger.Reserve(scheduler.Reservation{
		Claim: a.uid, Volume: a.name, Node: node, Class: r.deviceClass, Bytes: r.room(), Deadline: p.now().Add(reservationLife),
	}) {
		p.roomChanged(changed)
	}
}

func (p *provisioner) unreserve(uid string) {
	if node, ok := p.ledger.Release(uid); ok {
		p.roomChanged(node)
	}
}

// sync takes a claim one step further. It returns when to look again without
// being told to (0 means never), or an error to be retried with backoff.
func (p *provisioner) sync(ctx context.Context, uid string) (again time.Duration, err error) {
	claim := p.claim(uid)
	a := p.attemptOf(uid, claim)
	if a == nil {
		return 0, nil
	}
	if claim != nil && claim.Spec.VolumeName == a.name {
		a.wasBound = true
	}
	if claim != nil && p.isStale(a, claim) {
		return 0, nil // the newer one is an event
	}
	if claim == nil || claim.DeletionTimestamp != nil && claim.Spec.VolumeName == "" {
		p.unreserve(uid)
		return 0, p.giveUp(ctx, a, claim)
	}
	if claim.Spec.VolumeName != "" && claim.Spec.VolumeName != a.name {
		p.unreserve(uid)
		return 0, p.giveUp(ctx, a, claim) // bound to another volume
	}
	class, ours := p.ourClass(volume.GetPersistentVolumeClaimClass(claim))
	if !ours {
		return 0, nil // its coming back is an event
	}
	if pv := p.persistentVolume(a); pv != nil {
		return p.finish(ctx, a, claim, pv)
	}
	if claim.Spec.VolumeName != "" || populatedByOthers(claim) {
		return 0, nil // the user asked for a volume that does not exist, or it is a populator's
	}
	r, err := parseClaim(claim, class)
	if err != nil {
		return p.reject(ctx, a, claim, err)
	}
	if provisionedByOthers(claim) {
		return 0, nil
	}
	if r.source != nil {
		return p.syncFrom(ctx, a, claim, class, r)
	}
	if delayed(class) {
		return p.syncDelayed(ctx, a, claim, class, r)
	}
	return p.syncImmediate(ctx, a, claim, class, r)
}

func (p *provisioner) isStale(a *attempt, claim *v1.PersistentVolumeClaim) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return a.stale(claim)
}

// persistentVolume returns the claim's PersistentVolume, if there is one yet:
// the cached one, or for a while the one that we wrote.
func (p *provisioner) persistentVolume(a *attempt) *v1.PersistentVolume {
	if pv, err := p.volumeLister.Get(a.name); err == nil {
		return pv
	}
	if a.pv != nil && p.now().Sub(a.pvAt) > cacheLag {
		a.pv = nil // somebody deleted it
	}
	return a.pv
}

func (p *provisioner) syncDelayed(ctx context.Context, a *attempt, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass, r request) (time.Duration, error) {
	node := claim.Annotations[volume.AnnSelectedNode]
	if err := p.settle(ctx, a, claim, node); err != nil {
		return 0, err
	}
	if node == "" {
		p.unreserve(a.uid) // an attempt that read an older claim may have reserved
		return p.complainIfHopeless(a, claim, class, r)
	}
	p.reserve(a, node, r)
	view, known := p.fleet.View(node)
	if !known || !view.Connected {
		return p.awaitNode(ctx, a, claim, node)
	}
	a.unreachableSince = time.Time{}
	if a.leaving != nil && a.leaving.node == node {
		if left := p.awaitLowered(ctx, a, node); left > 0 {
			return left, nil
		}
		return 0, p.release(ctx, a, claim, node, a.leaving.why)
	}
	a.leaving = nil
	if _, ok := view.Class(r.deviceClass); !ok {
		return 0, p.release(ctx, a, claim, node, noSuchClass(class, r.deviceClass, view))
	}
	// The scheduler keeps to it, but not everybody who selects nodes is the scheduler.
	if on, err := p.nodeLister.Get(node); err == nil && !allowedBy(class.AllowedTopologies, on) {
		return 0, p.release(ctx, a, claim, node, &InvalidError{Field: "metadata.annotations[" + volume.AnnSelectedNode + "]", Given: "node " + node,
			Allowed: fmt.Sprintf("nodes that StorageClass %s allows (allowedTopologies)", class.Name)})
	}
	if why := p.misfit(a, claim, view); why != nil {
		if left := p.awaitLowered(ctx, a, node); left > 0 {
			return left, nil
		}
		return 0, p.release(ctx, a, claim, node, why)
	}
	return p.provision(ctx, a, claim, class, r, node)
}

// awaitNode waits for a selected node that has no uplink, and in the end hands
// the claim back, unless a volume may be there that nobody knows of.
func (p *provisioner) awaitNode(ctx context.Context, a *attempt, claim *v1.PersistentVolumeClaim, node string) (time.Duration, error) {
	p.waiting.wait(node, a.uid)
	if view, ok := p.fleet.View(node); ok && view.Connected {
		return time.Millisecond, nil // it connected in between
	}
	gone, err := p.nodeGone(ctx, node)
	if err != nil {
		return 0, err
	}
	if gone {
		delete(a.doubts, node)
		return 0, p.release(ctx, a, claim, node, fmt.Errorf("node %s is not in the cluster any more, or out of service", node))
	}
	now := p.now()
	if a.unreachableSince.IsZero() {
		a.unreachableSince = now
	}
	_, doubted := a.doubts[node]
	if left := a.unreachableSince.Add(releaseUnreachable).Sub(now); left > 0 {
		return left, nil
	}
	if doubted || slices.Contains(p.fleet.Holders(a.name), node) {
		p.complain(a, claim, fmt.Sprintf("node %s is not connected to the carve controller and may have made the volume already; %s", node, doubtAdvice))
		return complainEvery, nil
	}
	return 0, p.release(ctx, a, claim, node, fmt.Errorf("%w for %s; is its carve agent running?", &fleet.NotConnectedError{Node: node}, releaseUnreachable))
}

// giveUp ends the work on a claim that is gone, going, or bound elsewhere:
// what may have been made for it is removed, unless a PersistentVolume speaks
// for it, which the deleter then handles.
func (p *provisioner) giveUp(ctx context.Context, a *attempt, claim *v1.PersistentVolumeClaim) error {
	if pv := p.persistentVolume(a); pv == nil && !a.wasBound {
		if err := p.settle(ctx, a, claim, ""); err != nil {
			return err
		}
	} else if pv != nil {
		if err := p.removeStrays(ctx, a, pv); err != nil {
			return err
		}
	}
	p.forget(a)
	return nil
}

// busy tells whether a claim is being worked on.
func (p *provisioner) busy(uid string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, is := p.attempts[uid]
	return is
}

func (p *provisioner) forget(a *attempt) {
	p.letSourceGo(a)
	p.waiting.forget(a.uid)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.attempts, a.uid)
}

// reject reports a claim that cannot be provisioned as it is. A change of the
// claim or of its class is what brings it back.
func (p *provisioner) reject(ctx context.Context, a *attempt, claim *v1.PersistentVolumeClaim, why error) (time.Duration, error) {
	p.unreserve(a.uid)
	if err := p.settle(ctx, a, claim, ""); err != nil {
		return 0, err
	}
	p.letSourceGo(a)
	if p.complain(a, claim, why.Error()) {
		p.metrics.claims.WithLabelValues(resultRejected).Inc()
	}
	return complainEvery, nil
}

// complain sends a warning Event about a claim, but the same one not again
// before complainEvery has passed.
func (p *provisioner) complain(a *attempt, claim *v1.PersistentVolumeClaim, message string) bool {
	now := p.now()
	if a.complaint == message && now.Sub(a.complainedAt) < complainEvery {
		return false
	}
	a.complaint, a.complainedAt = message, now
	p.recorder.Event(claim, v1.EventTypeWarning, reasonFailed, message)
	return true
}

func (p *provisioner) claimLog(claim *v1.PersistentVolumeClaim, node string) *slog.Logger {
	return p.log.With("claim", claim.Namespace+"/"+claim.Name, "volume", volumeName(claim), "node", node)
}

// errVolumeAppeared says that a PersistentVolume exists which the cache does
// not have yet.
var errVolumeAppeared = errors.New("the claim's PersistentVolume exists already, waiting to see it")
