package lvmd

import (
	"errors"
	"slices"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvm"
)

// lookAtRAID asks the kernel how the images of the group's RAID volumes do,
// which changes without any change of the metadata. It runs no command.
func (s *Service) lookAtRAID(g *group) {
	s.model.mu.Lock()
	var ids []string
	for id, v := range s.model.volumes {
		if v.group == g && v.rec.Phase == ready && v.layout.IsRAID() {
			ids = append(ids, id)
		}
	}
	s.model.mu.Unlock()
	if len(ids) == 0 {
		return
	}
	found := map[string][]*lvmdv1.Condition{}
	for _, id := range ids {
		status, err := s.lvm.RAIDStatus(g.name, id)
		switch {
		case err == nil:
			found[id] = raidConditions(status)
		case !errors.Is(err, lvm.ErrNotFound): // That it has no device is told elsewhere.
			s.log.Warn("a RAID volume cannot be asked for its status", "volume", id, "error", err)
		}
	}
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	var changed []*volume
	for _, id := range ids {
		if v := s.model.volumes[id]; v != nil && !sameConditions(v.raid, found[id]) {
			v.raid = found[id]
			changed = append(changed, v)
		}
	}
	if len(changed) > 0 {
		s.model.publish(g, changed...)
	}
}

func sameConditions(a, b []*lvmdv1.Condition) bool {
	return slices.EqualFunc(a, b, func(a, b *lvmdv1.Condition) bool {
		return a.GetType() == b.GetType() && a.GetMessage() == b.GetMessage()
	})
}

// raidConditions translates what the kernel says of a RAID volume. Progress is
// told in steps: each is a message to every watcher.
func raidConditions(s lvm.RAIDStatus) []*lvmdv1.Condition {
	var c []*lvmdv1.Condition
	if s.Failed > 0 {
		c = append(c, condition("Degraded", "%d of the volume's %d devices failed or are missing; one that is back is taken in again by lvchange --refresh", s.Failed, s.Images))
	}
	if s.Synced < s.Total && s.Total > 0 && s.Action != "check" && s.Action != "repair" || s.Behind > 0 {
		const step = 10
		tenths := int64(0)
		if s.Total > 0 {
			tenths = s.Synced / (s.Total/step + 1)
		}
		c = append(c, condition("OutOfSync", "copies or parity are being made true (%s, about %d %% done); until then the loss of a device may lose data",
			s.Action, tenths*step))
	}
	if s.Mismatches > 0 && s.Action != "check" && s.Action != "repair" {
		c = append(c, condition("Mismatches", "a check found %d sectors in which copies or parity differ", s.Mismatches))
	}
	return c
}
