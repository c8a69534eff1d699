package lvmd

import (
	"context"
	"errors"
	"sync"

	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvmd/provision"
)

type provisioned struct {
	*core
	pools *poolKeeper
	// states maps the name of each group that lvmd makes to its *provision.State.
	states sync.Map
}

var _ provision.Groups = (*provisioned)(nil)

// Scanned implements provision.Groups.
func (p *provisioned) Scanned(name string) *lvm.Group {
	return p.groups.Named(name).Known().Scanned
}

// Acquire implements provision.Groups.
func (p *provisioned) Acquire(ctx context.Context, name string) (release func(), err error) {
	return p.groups.Acquire(ctx, p.groups.Named(name))
}

// Scan implements provision.Groups.
func (p *provisioned) Scan(ctx context.Context, name string) (*lvm.Group, error) {
	found, err := p.groups.Scan(ctx, []string{name})
	switch {
	case err != nil:
		return nil, err
	case len(found) > 0:
		return &found[0], nil
	}
	if refused := p.groups.Refusal(p.groups.Named(name)); refused.Message != "" {
		return nil, errors.New(refused.Message)
	}
	return nil, nil
}

// ForgetUUID implements provision.Groups.
func (p *provisioned) ForgetUUID(name string) error { return p.groups.Unpin(p.groups.Named(name)) }

// Kept implements provision.Groups.
func (p *provisioned) Kept(name string) (why string, givenUp bool, err error) {
	return p.groups.Kept(p.groups.Named(name))
}

// MakePools implements provision.Groups.
func (p *provisioned) MakePools(ctx context.Context, name string) error {
	return p.pools.Make(ctx, p.inventory.Config(), name)
}

// Changed implements provision.Groups.
func (p *provisioned) Changed(name string, changed bool, err error) error {
	if g := p.groups.Named(name); changed || err != nil {
		err = errors.Join(err, p.groups.Rescan(g))
		g.Reclaim()
	}
	return err
}

// Report implements provision.Groups.
func (p *provisioned) Report(name string, state *provision.State) {
	p.states.Store(name, state)
	p.groups.Named(name).SetAbsence(state.Absence())
}

func (p *provisioned) refusals(name string) map[string]*provision.Refusal {
	if state, ok := p.states.Load(name); ok {
		return state.(*provision.State).Refusals()
	}
	return nil
}
