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

// making holds the tags that a volume has from its creation until lvmd removes them.
type making struct {
	// tag shows that the volume may never have been handed out; empty once it is removed.
	tag string
	// provisional is true while LVM shows that the volume may be provisional.
	provisional bool
	// whenOff is called once tag is removed; nil unless the volume's creation waits for that.
	whenOff func()
	// offAt is the time to remove the tags of a volume that is ready.
	offAt time.Time
	// cleared counts the bytes of a new volume that need no clearing any more.
	cleared int64
}

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

// isMaking reports whether the volume may never have been handed out, as far as LVM shows. A volume that
// its user has encrypted was, though it still has the tag.
func (v *volumeScan) isMaking() bool { return v.making.tag != "" && !v.tagged }

// showsIfComplete reports whether the contents or the size of a volume show whether it is complete: it
// has a file system or a header, or it is thin, and so complete after the command that creates or
// enlarges it. A copy looks like its source before it is complete.
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

// tagsToTakeOff returns the tags to remove from a complete volume. A provisional volume has its tags until
// it is kept, so that one command removes both.
func tagsToTakeOff(v *Volume) []string {
	switch {
	case v.lifecycle.state == Ready && !isProvisional(v):
		return v.making.tags()
	case v.lifecycle.state == Creating && v.making.tag != "" && v.making.whenOff != nil && v.op != nil && !v.op.cancelled:
		return []string{v.making.tag}
	default:
		return nil
	}
}

// NextToUntag reports whether volumes of a group that were handed out with tags are due to lose them. If
// none is due, retry is the earliest due time, or zero to wait for an event.
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
		case v.group == g && v.lifecycle.state.isClaim() && len(v.making.tags()) > 0:
			// The end of the operation raises no event.
			retry = wakeup.Earlier(retry, now.Add(untagDelay))
		case v.group != g || v.lifecycle.state != Ready || len(tagsToTakeOff(v)) == 0:
		case v.making.offAt.After(now):
			retry = wakeup.Earlier(retry, v.making.offAt)
		default:
			due = true
		}
	}
	return due, retry
}

// ToUntag returns up to most complete volumes of a group with the same tags to remove, first among them
// unless that is nil. It returns none if first has no tag any more.
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

// PostponeUntag delays the next attempt to remove the volumes' tags.
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

// Untagged is the effect of the command that removes tags from volumes.
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
