package provision

import (
	"cmp"
	"context"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/storage/volume"

	"github.com/carve-csi/carve/pkg/controller/spec"
)

type pass struct {
	// placed is the node selected for immediate binding.
	placed string
	// cleared: the suspects were asked, so a report that still names the volume there is old.
	cleared bool
}

// observe reads the state for decide. It only updates the attempt's memory of what was seen,
// and queues the claim for a node that is not connected. Errors are the API server's.
func (p *Provisioner) observe(ctx context.Context, a *attempt, claim *v1.PersistentVolumeClaim, now pass) (claimState, error) {
	s := claimState{now: p.Now(), claim: claim, volume: a.name}
	s.pv = p.volumes.find(a.name, &a.written)
	if claim == nil {
		return s, nil
	}
	if claim.Spec.VolumeName == a.name {
		a.wasBound = true
	}
	_, selected := p.attempts.get(a.uid)
	s.stale, s.waited = selected.stale(claim), s.now.Sub(selected.began)
	class, ours := p.OurClass(volume.GetPersistentVolumeClaimClass(claim))
	if !ours || s.pv != nil || claim.Spec.VolumeName != "" || s.stale || claim.DeletionTimestamp != nil {
		if ours {
			s.class = class
		}
		return s, nil
	}
	s.class = class
	if s.request, s.invalid = spec.ParseClaim(claim, class); s.invalid != nil || provisionedByOthers(claim) || spec.ForPopulator(claim) {
		return s, nil //nolint:nilerr // decide has the error
	}
	if s.request.IOLimits, s.attributes = p.sources.attributes(ctx, claim, s.request); s.attributes != nil {
		return s, nil //nolint:nilerr // decide has the error
	}
	node := now.placed
	switch {
	case s.request.Source != nil:
		if s.request.From, s.source = p.sources.find(ctx, claim, class, s.request); s.source != nil {
			s.request.From = nil
			return s, nil //nolint:nilerr // decide has the error
		}
		node = s.request.From.Node
	case spec.BindsLate(class):
		node = claim.Annotations[volume.AnnSelectedNode]
	}
	if !now.cleared {
		s.suspects = p.suspects(a, node)
	}
	if len(s.suspects) > 0 {
		s.target.name = node
		return s, nil
	}
	if node == "" {
		if spec.BindsLate(class) {
			s.placedOn = p.PlacedOn(claim)
		}
		if spec.BindsLate(class) && s.waited >= WarnAfter {
			s.unsatisfiable = p.placer.unsatisfiable(class, s.request)
		}
		return s, nil
	}
	if now.placed == "" {
		err := p.observeTarget(ctx, a, &s, node)
		return s, err
	}
	s.target.name = node
	if view, ok := p.Fleet.View(node); ok {
		s.target.view = view
	}
	return s, nil
}

func (p *Provisioner) observeTarget(ctx context.Context, a *attempt, s *claimState, name string) error {
	s.target.name = name
	if view, ok := p.Fleet.View(name); ok && view.Connected {
		s.target.view = view
	} else {
		p.waiting.Wait(name, a.uid)
		if view, ok := p.Fleet.View(name); ok && view.Connected {
			s.target.view = view // it connected in between
		}
	}
	if s.target.view == nil {
		var err error
		if a.unreachableSince.IsZero() {
			a.unreachableSince = s.now
		}
		s.target.mayHold = a.inFlight.has(name) || slices.Contains(p.Fleet.Holders(a.name), name)
		s.target.unreachable = s.now.Sub(a.unreachableSince)
		s.target.gone, err = p.NodeGone(ctx, name)
		return err
	}
	a.unreachableSince = time.Time{}
	if a.failures.leaving != nil && a.failures.leaving.node != name {
		a.failures.leaving = nil
	}
	if a.failures.leaving != nil {
		s.target.leaving = a.failures.leaving.why
	}
	if object, err := p.NodeLister.Get(name); err == nil {
		s.target.object = object
	}
	if s.request.From == nil && !a.inFlight.asked() {
		s.target.awaitsPod = p.placer.awaitsPod(a, s.claim, cmp.Or(p.PodLag, podLag))
		s.target.shortage = p.placer.findShortage(s.claim, s.target.view)
	}
	return nil
}
