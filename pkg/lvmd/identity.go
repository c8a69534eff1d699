package lvmd

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.etcd.io/bbolt"

	"github.com/carve-csi/carve/api/config"
	"github.com/carve-csi/carve/pkg/lvm"
)

// A volume group's name proves nothing: any disk may hold a group of any name. So a group
// is known by its UUID, which the journal keeps from when the group was first seen. Another
// group of the name is not taken for it, and what the journal has of the group's volumes
// stays, unless one of these is true:
//
//   - The configuration lists the other group's UUID.
//   - The journal has no volume of the group, so that none can be lost.
//   - The state directory has a file acceptPrefix + UUID, which an administrator made.

// acceptPrefix begins the name of a file that accepts another volume group.
const acceptPrefix = "accept-volume-group-"

// bucketPins has the UUID of each group, by name.
var bucketPins = []byte("volumeGroupUUIDs")

// pins returns the UUIDs of the groups that were seen.
func (j *journal) pins() (map[string]string, error) {
	pins := map[string]string{}
	err := j.db.View(func(tx *bbolt.Tx) error {
		bucket := tx.Bucket(bucketPins)
		if bucket == nil {
			return nil
		}
		return bucket.ForEach(func(k, v []byte) error {
			pins[string(k)] = string(v)
			return nil
		})
	})
	return pins, err
}

// putPin stores a group's UUID in place of an earlier one; an empty one is removed.
func (j *journal) putPin(group, uuid string) error {
	return j.do(func(tx *bbolt.Tx) error {
		bucket, err := tx.CreateBucketIfNotExists(bucketPins)
		if err != nil {
			return err
		}
		if uuid == "" {
			return bucket.Delete([]byte(group))
		}
		return bucket.Put([]byte(group), []byte(uuid))
	})
}

// recallPins has LVM take only the groups that the journal and the configuration know.
func (s *Service) recallPins(c *config.Config, names []string, states map[string]groupRecord) error {
	pins, err := s.journal.pins()
	if err != nil {
		return err
	}
	for name, state := range states {
		if pins[name] == "" {
			pins[name] = state.UUID // an earlier version kept no other
		}
	}
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	for _, name := range names {
		s.model.groups[name].pinned = pins[name]
		if listed := listedUUIDs(c, name); len(listed) > 0 && !slices.Contains(listed, pins[name]) {
			pins[name] = listed[0] // No other is taken before scan has looked at the list.
		}
	}
	for name, uuid := range pins {
		s.lvm.Pin(name, uuid)
	}
	return nil
}

// listedUUIDs are the UUIDs that the configuration allows for a group; none means any.
func listedUUIDs(c *config.Config, group string) []string {
	var listed []string
	for i := range c.Classes {
		if slices.Contains(c.Classes[i].VolumeGroups, group) {
			listed = append(listed, c.Classes[i].VolumeGroupUUIDs...)
		}
	}
	return listed
}

// scan scans groups, and once more when another group of a name is accepted.
func (s *Service) scan(ctx context.Context, names []string) ([]lvm.Group, error) {
	found, err := s.lvm.Scan(ctx, names)
	if err != nil {
		return nil, err
	}
	again := false
	for _, name := range names {
		if slices.ContainsFunc(found, func(g lvm.Group) bool { return g.Name == name }) {
			continue
		}
		accepted, err := s.acceptable(name, s.lvm.Others(name))
		if err != nil {
			return nil, err
		}
		if accepted == "" {
			continue
		}
		s.log.Warn("another volume group of the same name is accepted", "group", name, "uuid", accepted)
		if err := s.journal.putPin(name, accepted); err != nil {
			return nil, err
		}
		s.lvm.Pin(name, accepted)
		// The journal has it now. A file that stays accepts what is accepted already.
		_ = os.Remove(s.acceptFile(accepted))
		again = true
	}
	if !again {
		return found, nil
	}
	return s.lvm.Scan(ctx, names)
}

// acceptable returns which of the groups of a name is to be taken for the one that is not
// found, or nothing.
func (s *Service) acceptable(name string, others []string) (uuid string, err error) {
	if len(others) == 0 {
		return "", nil
	}
	s.model.mu.Lock()
	listed := listedUUIDs(s.model.config, name)
	s.model.mu.Unlock()
	isListed := func(uuid string) bool { return slices.Contains(listed, uuid) }
	isAccepted := func(uuid string) bool {
		_, err := os.Stat(s.acceptFile(uuid))
		return err == nil && (len(listed) == 0 || isListed(uuid))
	}
	for _, allowed := range []func(uuid string) bool{isAccepted, isListed} {
		if fit := slices.DeleteFunc(slices.Clone(others), func(o string) bool { return !allowed(o) }); len(fit) == 1 {
			return fit[0], nil
		}
	}
	if len(others) > 1 || len(listed) > 0 {
		return "", nil
	}
	records, err := s.journal.all()
	if err != nil {
		return "", err
	}
	for _, r := range records {
		if r.Group == name {
			return "", nil
		}
	}
	return others[0], nil
}

func (s *Service) acceptFile(uuid string) string {
	return filepath.Join(s.stateDir, acceptPrefix+filepath.Base(uuid))
}

// refusal says why the groups of a name are not taken for the one with the pinned UUID, or
// nothing when there are none.
func (s *Service) refusal(name, pinned string) string {
	others := s.lvm.Others(name)
	if len(others) == 0 {
		return ""
	}
	wanted := "no UUID of it is known yet, or is none of volumeGroupUUIDs"
	if pinned != "" {
		wanted = "this node's has the UUID " + pinned
	}
	return fmt.Sprintf("volume group %q is not found: %s, and disks of this machine have another group of that name, with the UUID %s. "+
		"Nothing is done to either. Take away, or rename, what is not this node's; or, if it is to be used from now on, "+
		"and the volumes of the former group are lost, run: touch %s",
		name, wanted, strings.Join(others, " and "), s.acceptFile(others[0]))
}

// pin makes durable, and tells LVM, which group was seen.
func (s *Service) pin(g *group) error {
	s.model.mu.Lock()
	uuid := g.pinned
	s.model.mu.Unlock()
	s.lvm.Pin(g.name, uuid)
	return s.journal.putPin(g.name, uuid)
}

// unpin forgets which group there was: lvmd makes another in its place.
func (s *Service) unpin(g *group) error {
	if err := s.journal.putPin(g.name, ""); err != nil {
		return err
	}
	s.lvm.Pin(g.name, "")
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	g.pinned = ""
	return nil
}
