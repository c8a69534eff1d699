package volumegroup

import (
	"errors"
	"log/slog"
	"os"

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
	for _, r := range diff.Resumed {
		s.Resume(r.Volume, r.Creation)
	}
	if diff.Pinned {
		identity := g.Pinned()
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
		if err := s.persistAdopted(v); err != nil {
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
		// If an administrator accepted that, it is done: see believes. Until then the file is
		// there, wherever lvmd is killed.
		_ = os.Remove(acceptFile(s.StateDir, g.Pinned().UUID))
	}
	return nil
}

// persistAdopted decides how far a volume had come that the journal did not
// know. A raw volume has nothing to finish. A file system that a probe does
// not find was never handed out, or is damaged: the volume stays, as
// unfinished, and nothing on it is touched until it is requested again by its name.
func (s *Groups) persistAdopted(v inventory.Adopted) error {
	rec, path := v.Known()
	switch {
	case rec.Phase == spec.Creating || rec.Phase == spec.Deleting:
		return nil // Its undoing is journaled.
	case path == "":
	case rec.Ident.IsLUKS():
		s.inspectAdopted(&rec, path)
	case !rec.Ident.Block:
		s.probeAdopted(&rec, path)
	}
	if err := s.Journal.PutVolume(rec); err != nil {
		return err
	}
	v.Set(rec)
	return nil
}

func (s *Groups) probeAdopted(rec *spec.Record, path string) {
	info, err := s.Probe(path)
	switch {
	case errors.Is(err, filesystem.ErrUnformatted):
		rec.Phase = spec.Unfinished
	case err != nil:
		s.Log.Error("adopted volume cannot be read", "volume", rec.ID, "error", err)
	case info.UUID != rec.Ident.FSUUID:
		// Signatures of an earlier use of the disk, or an administrator changed the UUID.
		rec.Phase = spec.Unfinished
		s.Log.Warn("adopted volume holds another file system than the one it was made with; it is not handed out",
			"volume", rec.ID, "want", rec.Ident.FSUUID, "is", info.UUID)
	}
}

// inspectAdopted is probeAdopted for a volume that its user encrypts. A header shows that a user
// had it, whatever of it was made. Only where it is
// another volume's, as what lay there before, was the creation never finished.
func (s *Groups) inspectAdopted(rec *spec.Record, path string) {
	state, err := s.Inspect(path, rec.ID)
	switch {
	case err == nil:
		rec.Encrypted = rec.Encrypted || state == luks.Made
		s.Log.Info("adopted an encrypted volume", "volume", rec.ID, "state", state)
	case errors.Is(err, luks.ErrForeign), errors.Is(err, luks.ErrDamaged):
		rec.Phase = spec.Unfinished
		s.Log.Warn("adopted volume does not hold the encrypted volume that it was made for; it is not handed out", "volume", rec.ID, "error", err)
	default:
		s.Log.Error("adopted volume cannot be read", "volume", rec.ID, "error", err)
	}
}

// warnOfKeys warns of volumes that are gone but for their encrypted devices. LVM
// removes no volume that has one: it was renamed, and comes back by its name with
// all that it holds as long as the device is not removed, or it was forced away.
func warnOfKeys(from lvm.Groups, log *slog.Logger, vanished []string) {
	for _, id := range vanished {
		if d, err := from.CryptDevice(id); err == nil {
			log.Warn("the encrypted device of a volume that is gone is left: give the volume its name back, or remove the device (dmsetup remove)",
				"volume", id, "device", d.Path)
		}
	}
}
