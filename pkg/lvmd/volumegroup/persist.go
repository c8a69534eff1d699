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

// persist makes durable what a scan found, and begins what follows from it.
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
		// The next start would refuse it again, and could take the number, once it is reached
		// again, for that of what is known to be zero.
		if err := s.Journal.Update(s.Remember(g)); err != nil {
			return err
		}
	}
	if diff.Pinned || diff.WentBack || len(diff.Vanished) > 0 {
		// If an administrator accepted that, it is done: see isPlausible. Until then the file is
		// there, wherever lvmd is killed.
		_ = os.Remove(acceptFile(s.StateDir, g.Known().Pinned.UUID))
	}
	return nil
}

// contents are what a look at a volume finds of what should be on it.
type contents int

const (
	// notKnown is of what shows nothing, or cannot be looked at.
	notKnown contents = iota
	missing
	whole
)

// persistAdopted decides how far a volume had come of which the journal did not know that it is
// complete. One that is complete is ready, handed out or not: the next request of its name finds it.
// One that is not is undone while it has the tag of what was never handed out. Without the tag it is
// damaged, or a version before spec.TagMaking did not come to completing it: it stays, as
// unfinished, and nothing on it is touched.
func (s *Groups) persistAdopted(g *Group, v *inventory.Volume) error {
	c, ok := v.ClaimUnrecorded()
	if !ok {
		return nil // Its undoing is journaled.
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
		v.Release() // The scan that finds its device looks again, or the next start.
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

// lookAt looks for what should be on a volume. It notes in the record that the volume is encrypted.
func (s *Options) lookAt(c inventory.Claimed, rec *spec.Record) contents {
	switch {
	case !c.Whole:
		return missing
	case rec.Ident.Snapshot, rec.Ident.Block && !rec.Ident.IsLUKS():
		if c.Making && c.Thin && !c.Unseen && (c.Path != "" || rec.Ident.Snapshot) {
			return whole // It is so since the command that made it, or gave it its size.
		}
		return notKnown
	case c.Path == "" && rec.Ident.Encryption == names.EncryptionEphemeral && c.Making:
		return missing // What it may have held is gone with its key.
	case c.Path == "":
		return notKnown
	case rec.Ident.IsLUKS():
		return s.inspectAdopted(rec, c.Path)
	}
	return s.probeAdopted(rec, c.Path)
}

// probeAdopted looks for the volume's file system. Each mkfs completes the superblock last, after
// it has flushed all else.
func (s *Options) probeAdopted(rec *spec.Record, path string) contents {
	info, err := s.Probe(path)
	switch {
	case errors.Is(err, filesystem.ErrUnformatted):
		return missing
	case err != nil:
		s.Log.Error("adopted volume cannot be read", "volume", rec.ID, "error", err)
		return notKnown
	case info.UUID != rec.Ident.FSUUID:
		// Signatures of an earlier use of the disk, or an administrator changed the UUID.
		s.Log.Warn("adopted volume holds another file system than the one it was made with; it is not handed out",
			"volume", rec.ID, "want", rec.Ident.FSUUID, "is", info.UUID)
		return missing
	}
	return whole
}

// inspectAdopted is probeAdopted for a volume that its user encrypts. A header shows that a user
// had it, whatever of it was made; without one it is fit for one.
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

// warnOfKeys warns of volumes that are gone but for their encrypted devices. LVM
// removes no volume that has one: it was renamed, and comes back by its name with
// all that it holds as long as the device is not removed, or it was forced away.
func warnOfKeys(from lvm.Groups, log *slog.Logger, vanished []string) {
	for _, id := range vanished {
		if d, err := from.CryptDevice(id); err == nil {
			log.Warn("the encrypted device of a volume that is gone is left: find the volume (lvs --all -o+lv_tags) and give the volume its name back; only if its data is not needed, remove the device (dmsetup remove)",
				"volume", id, "device", d.Path)
		}
	}
}
