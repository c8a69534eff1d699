package inventory

import (
	"github.com/carve-csi/carve/pkg/lvm/ondisk"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
	"github.com/carve-csi/carve/pkg/lvmd/zeroed"
)

// Effect is what a command does that changes a group and succeeds. Its values are made by the
// functions of this package that return one.
type Effect interface {
	// steps is by how much the command raises the group's sequence number; zero means that
	// only a scan shows what was done.
	steps() uint64
	// delta is by how many extents the command changes what is allocatable.
	delta() int64
	// apply makes the rest of the change, and returns the volumes whose report it changed.
	apply(*model) []*Volume
}

// tagged is a command that changes tags, or nothing that is kept here.
type tagged struct{}

// Tagged is the effect of a command that changes tags of one volume.
func Tagged() Effect { return tagged{} }

func (tagged) steps() uint64          { return 1 }
func (tagged) delta() int64           { return 0 }
func (tagged) apply(*model) []*Volume { return nil }

type unknown struct{}

// Unknown is the effect of a command of which a scan shows what it did.
func Unknown() Effect { return unknown{} }

func (unknown) steps() uint64          { return 0 }
func (unknown) delta() int64           { return 0 }
func (unknown) apply(*model) []*Volume { return nil }

type poolGrown struct{ *PoolGrowth }

// PoolGrown is the effect of the command that grew a pool's data. Where the extents were taken, a
// scan shows.
func PoolGrown(g *PoolGrowth) Effect { return poolGrown{g} }

func (poolGrown) steps() uint64  { return 0 }
func (g poolGrown) delta() int64 { return -g.takes }
func (g poolGrown) apply(*model) []*Volume {
	g.release()
	g.pool.extents = g.extents
	return nil
}

// Change is a command that changes a group, from before it to the end of what follows from it. The
// caller has the group's slot.
type Change struct{ group *Group }

// BeginChange is called before a command that changes a group. It fails with apierror.DeviceMissing
// if the group is there and is not used.
func (g *Group) BeginChange() (Change, error) {
	g.m.lock()
	defer g.m.unlock()
	if g.refused != (Refusal{}) {
		return Change{}, apierror.DeviceMissing("volume group %q is not used (%s); the condition of its device class says why", g.name, g.refused.Type)
	}
	g.accounted = false
	return Change{g}, nil
}

// Explains reports whether a group's metadata, as it is now, is explained by the effect alone:
// nothing else happened to the group since it was last looked at. placed is true if lvmd chooses
// where the group's volumes lie.
func (c Change) Explains(e Effect, now ondisk.Metadata) (explains, placed bool) {
	g := c.group
	g.m.lock()
	defer g.m.unlock()
	return !g.stale && e.steps() != 0 && now.Seqno == g.metadata.Seqno+e.steps() && now.Unreadable == g.metadata.Unreadable, g.placed
}

// Commit takes over a change that explains the group's metadata. where is where everything lies
// now, in a group in which lvmd chooses that.
func (c Change) Commit(e Effect, now ondisk.Metadata, where ondisk.Placement) {
	g, m := c.group, c.group.m
	m.lock()
	defer m.unlock()
	g.metadata = now
	delta := e.delta() // The reservations that it is computed of end with apply.
	g.allocatable += delta
	m.relocate(g, where)
	changed := e.apply(m)
	if delta < 0 && !g.accounted {
		g.zeroes = zeroed.Map{}
	}
	m.publish(g, changed...)
}

// CommitUnscanned takes over a change that succeeded in a group that could not be scanned after
// it, until a scan can.
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
