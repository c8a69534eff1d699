package volumegroup

import (
	"errors"
	"log/slog"
	"os"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/luks"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvmd/inventory"
	"github.com/carve-csi/carve/pkg/lvmd/journal"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
)

// persist makes the result of a scan durable, and starts the work that follows from it.
func (s *Groups) persist(g *Group, diff inventory.Diff) error {
	for _, h := range diff.Closed {
		_ = h.Close()
	}
	for _, a := range diff.Resumed {
		s.Resume(a)
	}
	if diff.Pinned {
		identity := g.Known().Pinned
		s.LVM.Pin(g.Name(), identity)
		if err := s.Journal.PutIdentity(g.Name(), journal.Identity(identity)); err != nil {
			return err
		}
	}
	for _, r := range diff.Undone {
		if err := s.Journal.PutVolume(r); err != nil {
			return err
		}
	}
	for _, v := range diff.Adopted {
		if err := s.persistAdopted(g, v); err != nil {
			return err
		}
	}
	if len(diff.Undone) > 0 {
		g.Reclaim()
	}
	warnOfKeys(s.LVM, s.Log, diff.Vanished)
	s.Scanned()
	if err := s.Journal.RemoveVolumes(diff.Vanished); err != nil {
		return err
	}
	if diff.WentBack {
		// Otherwise the next start refuses the group again and, once its sequence number reaches
		// the old one, takes the stored zeroed space for current.
		if err := s.Journal.Update(s.Remember(g)); err != nil {
			return err
		}
	}
	if diff.Pinned || diff.WentBack || len(diff.Vanished) > 0 {
		// The acceptance has taken effect, see isPlausible; a crash before this keeps the file.
		_ = os.Remove(acceptFile(s.StateDir, g.Known().Pinned.UUID))
	}
	return nil
}

// contents is the outcome of examining a volume.
type contents int

const (
	// notKnown is for a volume that shows nothing, or cannot be read.
	notKnown contents = iota
	missing
	whole
)

// persistAdopted decides the state of a volume whose completion the journal lacks. A complete one
// becomes ready, handed out or not: the next request of its name finds it. An incomplete one with
// the tag of a creation is undone. Without the tag, it is damaged, or from a version before
// spec.TagMaking that did not complete it: it stays, unfinished and untouched.
func (s *Groups) persistAdopted(g *Group, v *inventory.Volume) error {
	c, ok := v.ClaimUnrecorded()
	if !ok {
		return nil // Its tombstone is in the journal.
	}
	rec := c.Record
	switch found := s.lookAt(c, &rec); {
	case found == missing && c.Making:
		s.Log.Info("an unfinished creation is undone", "volume", rec.ID, "name", rec.Ident.Name)
		v.MarkDeleted(nil)
		err := s.Journal.PutVolume(v.Record())
		g.Reclaim()
		return err
	case found == notKnown && c.Making:
		v.Release() // Retry when a scan finds its device, or at the next start.
		return nil
	case found == missing:
		rec.Phase = spec.Unfinished
	case found == whole:
		rec.Phase = spec.Ready
	}
	if err := s.Journal.PutVolume(rec); err != nil {
		v.Release()
		return err
	}
	v.SetRecord(rec)
	return nil
}

// lookAt checks the volume's contents. It sets rec.Encrypted if the volume is encrypted.
func (s *Options) lookAt(c inventory.Claimed, rec *spec.Record) contents {
	switch {
	case !c.Whole:
		return missing
	case rec.Ident.Snapshot, rec.Ident.Block && !rec.Ident.IsLUKS():
		if c.Making && c.Thin && !c.Unseen && (c.Path != "" || rec.Ident.Snapshot) {
			return whole // One command made or resized it, atomically.
		}
		return notKnown
	case c.Path == "" && rec.Ident.Encryption == names.EncryptionEphemeral && c.Making:
		return missing // Any contents were lost with the key.
	case c.Path == "":
		return notKnown
	case rec.Ident.IsLUKS():
		return s.inspectAdopted(rec, c.Path)
	}
	return s.probeAdopted(rec, c.Path)
}

// probeAdopted looks for the file system. Each mkfs flushes all else before it completes the
// superblock.
func (s *Options) probeAdopted(rec *spec.Record, path string) contents {
	info, err := s.Probe(path)
	switch {
	case errors.Is(err, filesystem.ErrUnformatted):
		return missing
	case err != nil:
		s.Log.Error("adopted volume cannot be read", "volume", rec.ID, "error", err)
		return notKnown
	case info.UUID != rec.Ident.FSUUID:
		// These are signatures of an earlier use of the disk, or an administrator changed the UUID.
		s.Log.Warn("adopted volume holds another file system than the one it was made with; it is not handed out",
			"volume", rec.ID, "want", rec.Ident.FSUUID, "is", info.UUID)
		return missing
	}
	return whole
}

// inspectAdopted looks for the header of a volume that its user encrypts. A header proves that a
// user had the volume; without one the volume is ready for one.
func (s *Options) inspectAdopted(rec *spec.Record, path string) contents {
	state, err := s.Inspect(path, rec.ID)
	switch {
	case err == nil:
		rec.Encrypted = rec.Encrypted || state == luks.Made
		s.Log.Info("adopted an encrypted volume", "volume", rec.ID, "state", state)
		return whole
	case errors.Is(err, luks.ErrForeign), errors.Is(err, luks.ErrDamaged):
		s.Log.Warn("adopted volume does not hold the encrypted volume that it was made for; it is not handed out", "volume", rec.ID, "error", err)
		return missing
	}
	s.Log.Error("adopted volume cannot be read", "volume", rec.ID, "error", err)
	return notKnown
}

// warnOfKeys warns of vanished volumes whose encrypted device exists. LVM refuses to remove those:
// either the volume was renamed, and comes back with its data under its old name while the device
// exists, or its removal was forced.
func warnOfKeys(from lvm.Groups, log *slog.Logger, vanished []string) {
	for _, id := range vanished {
		if d, err := from.CryptDevice(id); err == nil {
			log.Warn("the encrypted device of a volume that is gone is left: find the volume (lvs --all -o+lv_tags) and give the volume its name back; only if its data is not needed, remove the device (dmsetup remove)",
				"volume", id, "device", d.Path)
		}
	}
}
