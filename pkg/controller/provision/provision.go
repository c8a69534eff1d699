package provision

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"

	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/controller/objects"
	"github.com/carve-csi/carve/pkg/controller/spec"
	"github.com/carve-csi/carve/pkg/controller/workloop"
	"github.com/carve-csi/carve/pkg/scheduler"
)

const (
	// A worker mostly waits for the API server; those that wait for a node do not count.
	provisionWorkers = 128
	retryMin         = 200 * time.Millisecond
	retryMax         = 30 * time.Second
	// RescheduleUnreachable is the time without an uplink after which a claim leaves its
	// selected node.
	RescheduleUnreachable = 30 * time.Second
	// WarnAfter is the age at which a claim is reported as unsatisfiable: nodes may still be
	// connecting.
	WarnAfter = 10 * time.Second
	// Events are kept for an hour.
	warnEvery = 5 * time.Minute
	// cacheLag bounds the delay of our own writes in our cache.
	cacheLag = 30 * time.Second
)

// Provisioner creates volumes for claims.
type Provisioner struct {
	*cluster.Cluster
	Options
	loop         *workloop.Loop[string] // by UID
	waiting      cluster.Waiters
	protector    *protector
	attempts     *attempts
	reservations reservations
	sources      sources
	placer       placer
	volumes      persistentVolumes
	placing      sync.Mutex // serialises immediate binding's choices; taken before all others
}

// Options configure a Provisioner. All but Snapshots, Parallel, SlowCreate, CreateTimeout and
// PodLag are required.
type Options struct {
	// Snapshots may be nil: then claims cannot restore snapshots.
	Snapshots snapshotclient.Interface
	// AttributesClasses is started once the API server serves VolumeAttributesClasses.
	AttributesClasses cache.TypedSharedIndexInformer[*storagev1.VolumeAttributesClass]
	// Ledger has the free space and the reservations, Available the nodes held back.
	Ledger    *scheduler.Ledger
	Available *cluster.Availability
	// FreeChanged is called with each node whose reservations changed. CapacityShown reports
	// whether the API server shows the node's current capacity.
	FreeChanged   func(node string)
	CapacityShown func(ctx context.Context, node string) bool
	IDs           *cluster.IDs
	// Identity names this process run in PersistentVolumes.
	Identity string
	// Parallel limits the claims worked on at once, not counting those that wait for a node;
	// zero means 128.
	Parallel int
	// SlowCreate delays the Event about a create under way; zero means 5 s.
	SlowCreate time.Duration
	// CreateTimeout bounds a create that copies nothing; zero means 5 min.
	CreateTimeout time.Duration
	// PodLag bounds the wait for the Pod of a claim with a selected node; zero means 1 s,
	// negative no wait.
	PodLag  time.Duration
	Metrics *Metrics
}

// New returns a Provisioner for Run.
func New(c *cluster.Cluster, o Options) *Provisioner {
	p := &Provisioner{
		Cluster: c, Options: o, attempts: newAttempts(), reservations: reservations{c, o.Ledger, o.FreeChanged},
		sources: sources{c, o.Snapshots, o.AttributesClasses}, placer: placer{c, o.Ledger}, volumes: persistentVolumes{c},
	}
	p.loop = workloop.New(workloop.Options[string]{
		Name: "claims", Parallel: cmp.Or(o.Parallel, provisionWorkers), RetryMin: retryMin, RetryMax: retryMax, Work: p.sync,
		Tenant: func(uid string) string {
			if claim := p.Claim(uid); claim != nil {
				return claim.Namespace
			}
			return ""
		},
		Failed: func(_ context.Context, uid string, err error) {
			p.Log.Info("claim is not done yet", "claim_uid", uid, "error", err)
		},
	})
	p.protector = newProtector(c, p.unseen)
	return p
}

// Run works until ctx is done. The caches must have synced.
func (p *Provisioner) Run(ctx context.Context) error {
	stop, err := cluster.Watch(
		cluster.OnChange(p.Claims, p.claimChanged, p.claimDeleted),
		cluster.On(p.Claims, cache.TypedResourceEventHandlerFuncs[*v1.PersistentVolumeClaim]{AddFunc: p.wakeClones, UpdateFunc: p.sourceChanged}),
		cluster.OnChange(p.Classes, func(*storagev1.StorageClass) { p.allChanged() }, nil),
		cluster.OnChange(p.AttributesClasses, p.attributesClassChanged, nil),
		cluster.OnChange(p.Pods, p.podChanged, nil),
		p.OnGone(p.NodeChanged),
	)
	if err != nil {
		return err
	}
	defer stop()

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return p.protector.run(ctx) })
	group.Go(func() error { p.loop.Run(ctx); return nil })
	group.Go(func() error { p.reservations.expire(ctx); return nil })
	return group.Wait()
}

// Idle reports whether no claim is being provisioned.
func (p *Provisioner) Idle() bool {
	p.attempts.mu.Lock()
	defer p.attempts.mu.Unlock()
	return len(p.attempts.byUID) == 0
}

// Add queues the claim with the given UID.
func (p *Provisioner) Add(uid string) { p.loop.Add(uid) }

// attemptOf handles a change that queued the claim just before a worker forgot it: the change
// starts another attempt, or the reservation is released.
func (p *Provisioner) attemptOf(uid string, claim *v1.PersistentVolumeClaim) *attempt {
	if a, _ := p.attempts.get(uid); a != nil {
		return a
	}
	if claim == nil || !p.noteSelection(claim) {
		p.reservations.release(uid)
		return nil
	}
	a, _ := p.attempts.get(uid)
	return a
}

// NodeChanged queues the claims that wait for the node: it connected, or is gone.
func (p *Provisioner) NodeChanged(node string) {
	for _, uid := range p.waiting.Take(node) {
		p.loop.Add(uid)
	}
}

// DeriveReservations reserves for claims that have selected a node already, and treats their
// creates as in flight. Call it once, before capacity is published and before Run.
func (p *Provisioner) DeriveReservations() {
	for _, claim := range p.AllClaims() {
		if p.noteSelection(claim) {
			p.loop.Add(string(claim.UID)) // Run gets no event of one that is deleted before it watches.
			p.adoptInFlight(claim)
		}
	}
}

// adoptInFlight covers an earlier leader that may have ended between create and answer. While
// the selected node is connected, it is asked for the volume like any other.
func (p *Provisioner) adoptInFlight(claim *v1.PersistentVolumeClaim) {
	class, ours := p.OurClass(volume.GetPersistentVolumeClaimClass(claim))
	if !ours || claim.Spec.VolumeName != "" || spec.ForPopulator(claim) || provisionedByOthers(claim) {
		return
	}
	if _, err := spec.ParseClaim(claim, class); err != nil {
		return // no node was asked for that
	}
	if a, selected := p.attempts.get(string(claim.UID)); a != nil && selected.node != "" {
		a.inFlight.adopt(selected.node)
	}
}

func provisionedByOthers(claim *v1.PersistentVolumeClaim) bool {
	by := claim.Annotations[volume.AnnStorageProvisioner]
	return by != "" && by != names.Driver
}

func (p *Provisioner) allChanged() {
	for _, claim := range p.AllClaims() {
		p.claimChanged(claim)
	}
}

func (p *Provisioner) attributesClassChanged(class *storagev1.VolumeAttributesClass) {
	for _, claim := range p.AllClaims() {
		if claim.Spec.VolumeName == "" && ptr.Deref(claim.Spec.VolumeAttributesClassName, "") == class.Name {
			p.claimChanged(claim)
		}
	}
}

// claimChanged reserves in the informer's goroutine, however busy the workers are.
func (p *Provisioner) claimChanged(claim *v1.PersistentVolumeClaim) {
	if p.noteSelection(claim) {
		p.loop.Add(string(claim.UID))
	}
}

// sourceChanged queues the clones of a claim if sources.find may answer differently. Other changes,
// such as our own of the finalizer, must not cut the pauses between attempts short.
func (p *Provisioner) sourceChanged(before, now *v1.PersistentVolumeClaim) {
	if before.UID == now.UID && before.Spec.VolumeName == now.Spec.VolumeName && before.Status.Phase == now.Status.Phase &&
		before.Spec.Resources.Requests.Storage().Equal(*now.Spec.Resources.Requests.Storage()) {
		return
	}
	p.wakeClones(now)
}

func (p *Provisioner) wakeClones(source *v1.PersistentVolumeClaim) {
	for _, clone := range p.ClonesOf(source.Namespace + "/" + source.Name) {
		p.loop.Add(string(clone.UID))
	}
}

// podChanged covers Pods that name their node without the scheduler.
func (p *Provisioner) podChanged(pod *v1.Pod) {
	if !cluster.IsPlaced(pod) {
		return
	}
	for _, key := range objects.ClaimsNamed(pod) {
		if claim := p.ClaimAt(key); claim != nil && claim.Spec.VolumeName == "" {
			p.claimChanged(claim)
		}
	}
}

func (p *Provisioner) claimDeleted(claim *v1.PersistentVolumeClaim) {
	p.reservations.release(string(claim.UID))
	if p.Busy(string(claim.UID)) {
		p.loop.Add(string(claim.UID))
	}
}

// noteSelection matches the reservation to the selected node and reports whether the claim
// needs work.
func (p *Provisioner) noteSelection(claim *v1.PersistentVolumeClaim) bool {
	uid := string(claim.UID)
	class, ours := p.OurClass(volume.GetPersistentVolumeClaimClass(claim))
	if !ours || claim.Spec.VolumeName != "" {
		return p.Busy(uid)
	}
	node := ""
	if spec.BindsLate(class) {
		node = claim.Annotations[volume.AnnSelectedNode]
	}
	a, current := p.attempts.note(claim, spec.BindsLate(class), node, p.Now())
	if !current {
		return false
	}
	if !spec.BindsLate(class) {
		return true
	}
	if node == "" || claim.DeletionTimestamp != nil {
		p.reservations.release(uid)
		return true
	}
	if r, err := spec.ParseClaim(claim, class); err == nil {
		p.reservations.reserve(a, node, r)
	}
	return true
}

// sync returns the time to the next pass without an event (0 means never), or an error to
// retry with backoff.
func (p *Provisioner) sync(ctx context.Context, uid string) (again time.Duration, err error) {
	claim := p.Claim(uid)
	a := p.attemptOf(uid, claim)
	if a == nil {
		return 0, nil
	}
	var now pass
	for {
		s, err := p.observe(ctx, a, claim, now)
		if err != nil {
			return 0, err
		}
		switch act := decide(s); act.do {
		case place:
			if now.placed, err = p.place(a, claim, s.class, s.request); err != nil {
				return 0, err
			}
		case clearSuspects:
			if err := p.removeElsewhere(ctx, a, claim, act.node); err != nil {
				return 0, err
			}
			now.cleared = true
		default:
			return p.perform(ctx, a, s, act)
		}
	}
}

// perform returns as sync does.
func (p *Provisioner) perform(ctx context.Context, a *attempt, s claimState, act action) (time.Duration, error) {
	p.prepare(a, s, act)
	switch act.do {
	case abandon:
		return 0, p.abandon(ctx, a, s.claim)
	case finish:
		return 0, p.finish(ctx, a, s.claim, s.pv)
	case reject:
		return p.reject(ctx, a, s.claim, act.why)
	case retry:
		return 0, act.why
	case selectPlaced:
		_, err := selectNode(ctx, p.Cluster, s.claim, act.node)
		return 0, err
	case selectSourceNode:
		return 0, p.sources.selectSourceNode(ctx, s.claim, s.request.From)
	case reschedule:
		return 0, p.reschedule(ctx, a, s.claim, act.node, act.why)
	case rescheduleLowered:
		if left := p.awaitLowered(ctx, a, act.node); left > 0 {
			return left, nil
		}
		return 0, p.reschedule(ctx, a, s.claim, act.node, act.why)
	case create:
		return p.create(ctx, a, s.claim, s.class, s.request, act.node)
	case wait, place, clearSuspects: // sync does the last two
	}
	if act.why != nil && p.warn(a, s.claim, act.why.Error()) && act.rejected {
		p.Metrics.claims.WithLabelValues(resultRejected).Inc()
	}
	return act.again, nil
}

func (p *Provisioner) prepare(a *attempt, s claimState, act action) {
	switch act.reservation {
	case renewReservation:
		if s.request.From != nil {
			p.attempts.selectNode(a.uid, act.node, p.Now())
		}
		p.reservations.reserve(a, act.node, s.request)
	case dropReservation:
		p.reservations.release(a.uid)
	case keepReservation:
	}
	if act.releaseSource {
		p.unprotectSource(a)
	}
	if act.gone {
		a.inFlight.end(act.node)
	}
	p.reservations.add(act.reserve...)
}

// abandon leaves a volume that a PersistentVolume names to the deleter.
func (p *Provisioner) abandon(ctx context.Context, a *attempt, claim *v1.PersistentVolumeClaim) error {
	if pv := p.volumes.find(a.name, &a.written); pv == nil && !a.wasBound {
		if err := p.removeElsewhere(ctx, a, claim, ""); err != nil {
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

// Busy reports whether an attempt at the claim exists.
func (p *Provisioner) Busy(uid string) bool {
	a, _ := p.attempts.get(uid)
	return a != nil
}

func (p *Provisioner) forget(a *attempt) {
	p.unprotectSource(a)
	p.waiting.Forget(a.uid)
	p.attempts.forget(a.uid)
}

func (p *Provisioner) reject(ctx context.Context, a *attempt, claim *v1.PersistentVolumeClaim, why error) (time.Duration, error) {
	p.reservations.release(a.uid)
	if err := p.removeElsewhere(ctx, a, claim, ""); err != nil {
		return 0, err
	}
	p.unprotectSource(a)
	if p.warn(a, claim, why.Error()) {
		p.Metrics.claims.WithLabelValues(resultRejected).Inc()
	}
	return warnEvery, nil
}

// warn repeats the same Event only after warnEvery; it reports whether it sent one.
func (p *Provisioner) warn(a *attempt, claim *v1.PersistentVolumeClaim, message string) bool {
	now := p.Now()
	if a.warning.message == message && now.Sub(a.warning.at) < warnEvery {
		return false
	}
	a.warning, a.reported = warning{message, now}, true
	p.Recorder.Event(claim, v1.EventTypeWarning, cluster.ReasonFailed, message)
	return true
}

var errVolumeAppeared = errors.New("the claim's PersistentVolume exists already, waiting to see it")
