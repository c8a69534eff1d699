package inventory

import (
	"fmt"
	"time"

	"github.com/carve-csi/carve/pkg/lvmd/apierror"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
)

// A claim reserves space with the controller when a node is selected for it, and the
// controller keeps other claims from taking it. A volume that a Pod defines itself is made
// without the controller. So that it does not take what claims have reserved either, the
// controller reports to the node which of them still wait. See
// docs/decisions/scheduling.md, "Nodes know what waiting claims reserved".

// reservations are what the claims of one cluster have reserved, in the controller's order.
type reservations struct {
	volumes []spec.Identity
	until   time.Time
}

// SetReservations replaces what the claims of a cluster have reserved, which counts until a
// time. Of each volume, Name, Class, Required and Block matter.
func (m *Inventory) SetReservations(cluster string, volumes []spec.Identity, until time.Time) {
	m.lock()
	defer m.unlock()
	now := time.Now()
	for other, r := range m.reserved {
		if now.After(r.until) {
			delete(m.reserved, other)
		}
	}
	delete(m.reserved, cluster)
	if len(volumes) > 0 {
		m.reserved[cluster] = reservations{volumes, until}
	}
}

// chooseBesideReservations is choose, as it would be if all volumes that claims have
// reserved space for were being created: those that fit are reserved one after the other, and
// released when the choice is made. Their layouts, extents and metadata count so as they will
// when they are requested.
func (m *model) chooseBesideReservations(c *class, ident *spec.Identity) (*classGroup, fit, error) {
	var held []*Volume
	defer func() {
		for _, v := range held {
			v.unreserve()
		}
	}()
	now := time.Now()
	for _, reserved := range m.reserved {
		if now.After(reserved.until) {
			continue
		}
		for i := range reserved.volumes {
			if v := m.wouldCreate(&reserved.volumes[i]); v != nil {
				v.reserve()
				held = append(held, v)
			}
		}
	}
	in, f, err := c.choose(ident)
	if len(held) == 0 || !apierror.IsNoSpace(err) {
		return in, f, err
	}
	return nil, fit{}, fmt.Errorf("%w, beside %d volumes that claims have reserved space for", err, len(held))
}

// wouldCreate returns the volume that would be admitted if a reservation were requested now, or
// nil when there is one of that name, or it does not fit.
func (m *model) wouldCreate(r *spec.Identity) *Volume {
	c := m.class(r.Class)
	if c == nil || c.reported == nil || m.names[r.Key()] != nil {
		return nil
	}
	in, f, err := c.choose(r)
	if err != nil {
		return nil
	}
	return &Volume{
		group:      in.group,
		volumeScan: volumeScan{pool: in.pool, layout: in.layout(), extents: f.extents, segments: f.segments},
		volumeWork: volumeWork{reservedText: f.text},
	}
}
