package inventory

import (
	"github.com/carve-csi/carve/pkg/lvm/ondisk"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
	"github.com/carve-csi/carve/pkg/lvmd/zeroed"
)

// Effect is the change that a successful command makes to a group.
type Effect interface {
	// steps is the rise of the group's sequence number; zero if only a scan shows the change.
	steps() uint64
	// delta is the change of the allocatable extents.
	delta() int64
	// apply makes the rest of the change, and returns the volumes whose report changed.
	apply(*model) []*Volume
}

type tagged struct{}

// Tagged is the effect of a command that changes the tags of one volume.
func Tagged() Effect { return tagged{} }

func (tagged) steps() uint64          { return 1 }
func (tagged) delta() int64           { return 0 }
func (tagged) apply(*model) []*Volume { return nil }

type unknown struct{}

// Unknown is the effect of a command whose change only a scan shows.
func Unknown() Effect { return unknown{} }

func (unknown) steps() uint64          { return 0 }
func (unknown) delta() int64           { return 0 }
func (unknown) apply(*model) []*Volume { return nil }

type poolGrown struct{ *PoolGrowth }

// PoolGrown is the effect of growing a pool's data. Only a scan shows which extents it took.
func PoolGrown(g *PoolGrowth) Effect { return poolGrown{g} }

func (poolGrown) steps() uint64  { return 0 }
func (g poolGrown) delta() int64 { return -g.takes }
func (g poolGrown) apply(*model) []*Volume {
	g.release()
	g.pool.extents = g.extents
	return nil
}

// Change spans a command that changes a group, and its aftermath. The caller has the group's slot.
type Change struct{ group *Group }

// BeginChange is called before a command that changes the group. It fails with
// apierror.DeviceMissing if the group was refused.
func (g *Group) BeginChange() (Change, error) {
	g.m.lock()
	defer g.m.unlock()
	if g.refused != (Refusal{}) {
		return Change{}, apierror.DeviceMissing("volume group %q is not used (%s); the condition of its device class says why", g.name, g.refused.Type)
	}
	g.accounted = false
	return Change{g}, nil
}

// Explains reports whether the effect alone accounts for the group's current metadata. placed is
// true if lvmd chooses where the group's volumes lie.
func (c Change) Explains(e Effect, now ondisk.Metadata) (explains, placed bool) {
	g := c.group
	g.m.lock()
	defer g.m.unlock()
	return !g.stale && e.steps() != 0 && now.Seqno == g.metadata.Seqno+e.steps() && now.Unreadable == g.metadata.Unreadable, g.placed
}

// Commit applies an effect that explains the metadata. where is used for placed groups only.
func (c Change) Commit(e Effect, now ondisk.Metadata, where ondisk.Placement) {
	g, m := c.group, c.group.m
	m.lock()
	defer m.unlock()
	g.metadata = now
	delta := e.delta() // Compute it before apply ends the reservations it depends on.
	g.allocatable += delta
	m.relocate(g, where)
	changed := e.apply(m)
	if delta < 0 && !g.accounted {
		g.zeroes = zeroed.Map{}
	}
	m.publish(g, changed...)
}

// CommitUnscanned applies an effect to a stale group that could not be scanned after the command.
func (c Change) CommitUnscanned(e Effect) {
	g, m := c.group, c.group.m
	m.lock()
	defer m.unlock()
	if g.stale {
		m.forgetZeroed(g)
		g.allocatable += e.delta()
		m.publish(g, e.apply(m)...)
	}
}
