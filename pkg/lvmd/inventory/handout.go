package inventory

import (
	"slices"
	"time"

	"github.com/carve-csi/carve/pkg/lvmd/spec"
	"github.com/carve-csi/carve/pkg/lvmd/wakeup"
)

// untagDelay is how long a volume that was handed out may keep its tags, so that one command takes
// them off all that are made meanwhile.
const untagDelay = time.Second

// making is how a volume is handed out.
type making struct {
	// tag is what shows that it may never have been handed out. It is on the volume from the command
	// that makes it until it is taken off; empty after that.
	tag string
	// provisional is true while LVM shows that the volume may be provisional.
	provisional bool
	// whenOff is set for a new volume that is handed out only without the tag, and called when that
	// is off.
	whenOff func()
	// offAt is when the tags are to be taken off a volume that is ready.
	offAt time.Time
}

// tags are those of both kinds that the volume has.
func (m *making) tags() []string {
	var tags []string
	if m.tag != "" {
		tags = append(tags, m.tag)
	}
	if m.provisional {
		tags = append(tags, spec.TagProvisional)
	}
	return tags
}

// isMaking reports whether LVM shows that the volume may never have been handed out. What a user has
// encrypted was, though its tag is not off yet.
func (v *volumeScan) isMaking() bool { return v.making.tag != "" && !v.tagged }

// showsIfComplete reports whether what is on a volume, or its size, shows whether it is complete: a
// file system, a header, or thin volumes, which hold what they are to hold from the command on that
// makes them or gives them their size. A copy shows what its source does before it is complete.
func showsIfComplete(v *Volume) bool {
	i := &v.rec.Ident
	return v.making.tag == spec.TagMaking && !v.halfMade && (!i.Block || i.IsLUKS() || v.pool != nil && !v.IsEncrypted())
}

// Complete marks a new volume as complete, and reports whether its tag must go before it is handed
// out: it has one, and nothing else shows that the volume is complete. Then whenOff, which must not
// block, is called once a command has removed the tag.
func Complete(v *Volume, whenOff func()) (tagged bool) {
	m := v.group.m
	m.lock()
	defer m.unlock()
	if v.making.tag == "" || showsIfComplete(v) {
		return false
	}
	v.making.whenOff = whenOff
	return true
}

// tagsToTakeOff are those of a volume that is complete. A provisional volume keeps all that it was handed
// out with until it is kept, so that one command takes them off.
func tagsToTakeOff(v *Volume) []string {
	switch {
	case v.lifecycle.State() == Ready && !isProvisional(v):
		return v.making.tags()
	case v.lifecycle.State() == Creating && v.making.tag != "" && v.making.whenOff != nil && v.op != nil && !v.op.cancelled:
		return []string{v.making.tag}
	default:
		return nil
	}
}

// NextToUntag reports whether tags are to be taken off volumes of a group that were handed out with
// them. When all of them may keep theirs yet, it returns until when; the zero time means for an event.
func NextToUntag(g *Group) (due bool, retry time.Time) {
	m := g.m
	now := time.Now()
	m.lock()
	defer m.unlock()
	if !g.canFree() {
		return false, time.Time{}
	}
	for _, v := range m.volumes {
		switch {
		case v.group == g && v.lifecycle.State().IsClaim() && len(v.making.tags()) > 0:
			// There is no event when the operation that has it ends.
			retry = wakeup.Earlier(retry, now.Add(untagDelay))
		case v.group != g || v.lifecycle.State() != Ready || len(tagsToTakeOff(v)) == 0:
		case v.making.offAt.After(now):
			retry = wakeup.Earlier(retry, v.making.offAt)
		default:
			due = true
		}
	}
	return due, retry
}

// ToUntag are at most so many complete volumes of a group that have the same tags to be taken off.
// There are none if first is not nil and was handed out with others.
func ToUntag(g *Group, first *Volume, most int) (batch []*Volume, tags []string) {
	m := g.m
	m.lock()
	defer m.unlock()
	if first != nil {
		if first.making.tag == "" {
			return nil, nil
		}
		batch, tags = append(batch, first), []string{first.making.tag}
	}
	for _, v := range m.volumes {
		if len(batch) == most || v == first || v.group != g {
			continue
		}
		if off := tagsToTakeOff(v); len(off) > 0 && (len(batch) == 0 || slices.Equal(off, tags)) {
			batch, tags = append(batch, v), off
		}
	}
	return batch, tags
}

// PostponeUntag delays the next attempt on volumes that still have their tags.
func PostponeUntag(batch []*Volume) {
	m := batch[0].group.m
	m.lock()
	defer m.unlock()
	for _, v := range batch {
		v.making.offAt = time.Now().Add(lastRetry)
	}
}

type untagged struct {
	batch []*Volume
	tags  []string
}

// Untagged is the effect of the command that takes tags off volumes.
func Untagged(batch []*Volume, tags []string) Effect { return untagged{batch, tags} }

func (e untagged) steps() uint64 { return uint64(len(e.batch)) }
func (e untagged) delta() int64  { return 0 }
func (e untagged) apply(*model) []*Volume {
	for _, v := range e.batch {
		if slices.Contains(e.tags, spec.TagProvisional) {
			v.making.provisional = false
		}
		if !slices.Contains(e.tags, v.making.tag) {
			continue
		}
		v.making.tag = ""
		if v.making.whenOff != nil {
			v.making.whenOff()
			v.making.whenOff = nil // An administrator may put the tag on again.
		}
	}
	return nil
}
