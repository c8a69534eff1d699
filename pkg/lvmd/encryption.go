package lvmd

import (
	"context"
	"errors"
	"fmt"
	"time"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
	"github.com/carve-csi/carve/pkg/lvmd/inventory"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
	"github.com/carve-csi/carve/pkg/lvmd/volumegroup"
	"github.com/carve-csi/carve/pkg/lvmd/zeroed"
)

// tagTimeout bounds the wait for the group's exclusive slot. The Pod of the volume waits, too.
const tagTimeout = 10 * time.Second

// NoteEncrypted implements lvmdv1.LVMDServer. It records the encryption in the journal, and in
// a tag in case the journal is lost. Failing to tag is not an error.
func (s *Service) NoteEncrypted(ctx context.Context, r *lvmdv1.NoteEncryptedRequest) (*lvmdv1.NoteEncryptedResponse, error) {
	release, err := s.admit()
	if err != nil {
		return nil, err
	}
	v, done, err := s.inventory.ClaimToNote(r.GetId(), inventory.Encrypted)
	release()
	if err != nil || done {
		return &lvmdv1.NoteEncryptedResponse{}, err
	}
	noted := v.Record()
	noted.Encrypted = true
	err = s.journal.PutVolume(noted)
	s.crash("note: written")
	if err != nil {
		v.Release()
		return nil, apierror.From("noting that volume "+noted.ID+" is encrypted", err)
	}
	if err := s.tagEncrypted(ctx, v); err != nil {
		s.log.Warn("that a volume is encrypted is in the journal only", "volume", noted.ID, "error", err)
	}
	v.SetRecord(noted)
	return &lvmdv1.NoteEncryptedResponse{}, nil
}

func (c *core) tagEncrypted(ctx context.Context, v *inventory.Volume) error {
	ctx, cancel := context.WithTimeout(onBehalfOf(ctx, v), tagTimeout)
	defer cancel()
	g := c.groups.Of(v)
	err := c.groups.Change(ctx, g, func(ctx context.Context) (inventory.Effect, error) {
		return inventory.TaggedEncrypted(v), c.lvm.Tag(volumegroup.ForClassOf(ctx, v), g.Name(), []string{v.ID()}, spec.TagEncrypted)
	})
	c.crash("note: tagged")
	return err
}

// A volume that lvmd encrypts has a second device, see lvm.Crypt, for its user. Only the kernel
// has the key, and nothing is journaled about it: if the device is missing, the data is lost
// and the volume is reformatted. With names.EncryptionLUKS the user encrypts, with a key that
// lvmd never sees: lvmd hands out blank space for the header, and overwrites the header on
// deletion.

// encrypt replaces any encrypted device by one with a new key, under which old data reads as
// noise. It zeroes the ends of a raw volume so that no signature is found there.
func (s *creator) encrypt(ctx context.Context, v *inventory.Volume) (lvm.Device, error) {
	if err := s.lvm.ForgetKey(v.ID()); err != nil {
		return lvm.Device{}, fmt.Errorf("forgetting an earlier key: %w", err)
	}
	if _, err := s.lvm.Encrypt(v.Group().Name(), v.ID(), lvm.CryptOptions{Discards: v.Ident().Discards}); err != nil {
		return lvm.Device{}, fmt.Errorf("encrypting: %w", err)
	}
	s.crash("encrypt: key made")
	if v.Ident().Block {
		h, err := s.groups.Open(ctx, v)
		if err != nil {
			return lvm.Device{}, fmt.Errorf("the new volume's encrypted device: %w", err)
		}
		all := zeroed.Set{}.Plus(zeroed.Span{From: 0, To: h.Size()})
		err = s.zero(ctx, h, endsOf(all, headAndTail, h.Size()), nil)
		if err = errors.Join(err, h.Close()); err != nil {
			return lvm.Device{}, fmt.Errorf("clearing the ends of the new volume: %w", err)
		}
	}
	return s.groups.Device(v)
}

func (c *core) growEncrypted(v *inventory.Volume) error {
	if !v.IsEncrypted() {
		return nil
	}
	return c.lvm.GrowCrypt(v.Group().Name(), v.ID())
}

func (s *creator) keyLoop(ctx context.Context) {
	s.finishGrowingEncrypted()
	for {
		claimed, retry := s.inventory.ClaimKeyless()
		for _, v := range claimed {
			s.spawn(func() {
				defer s.keyless.Set()
				if err := s.checkKey(ctx, v); err != nil && ctx.Err() == nil {
					s.log.Error("an encrypted volume without a key could not be reformatted; it will be tried again", "volume", v.ID(), "error", err)
					s.inventory.Postpone(v)
				}
			})
		}
		if !s.keyless.Wait(ctx, retry) {
			return
		}
	}
}

// finishGrowingEncrypted completes expansions that a previous process run left after LVM's
// commit.
func (s *creator) finishGrowingEncrypted() {
	for _, v := range s.inventory.EncryptedVolumes() {
		if err := s.growEncrypted(v); err != nil {
			s.log.Error("an encrypted volume is not as large as it should be until its expansion is requested again", "volume", v.ID(), "error", err)
		}
	}
}

// checkKey reformats a claimed volume whose key is gone. Only the kernel knows that: a node
// under /dev may be missing, and the journal may be older than the key, or lack the end of a
// reformat.
func (s *creator) checkKey(ctx context.Context, v *inventory.Volume) error {
	_, err := s.lvm.Device(v.Group().Name(), v.ID())
	if err != nil {
		v.Release()
		return err
	}
	device, err := s.groups.Device(v)
	switch {
	case errors.Is(err, lvm.ErrNotFound):
		return s.reformat(ctx, v)
	case err != nil:
		v.Release()
		return err
	}
	rec := v.Record()
	if rec.Phase != spec.DataLost {
		v.SetDevice(device)
		v.SetRecord(rec)
		return nil
	}
	whole, err := s.isReformatted(v, device)
	switch {
	case err != nil:
		v.Release()
		return err
	case !whole:
		return s.reformat(ctx, v)
	}
	v.SetDevice(device)
	return s.runReformat(ctx, v, rec.Reformatted, s.complete)
}

// isReformatted accepts every raw volume with a key: it shows noise, or its user's later
// writes, and must not get another key.
func (s *creator) isReformatted(v *inventory.Volume, device lvm.Device) (bool, error) {
	if v.Ident().Block {
		return true, nil
	}
	info, err := s.probe(device.Path)
	if errors.Is(err, filesystem.ErrUnformatted) {
		return false, nil
	}
	return info.UUID == v.Ident().FSUUID, err
}

func (s *creator) reformat(ctx context.Context, v *inventory.Volume) error {
	intent := v.Record()
	intent.Phase, intent.Reformatted = spec.DataLost, time.Now().UTC().Truncate(time.Millisecond)
	if err := s.journal.PutVolume(intent); err != nil {
		v.Release()
		return err
	}
	s.crash("encrypt: loss noted")
	owner := &v.Ident().Owner
	s.log.Warn("the key of an encrypted volume is gone, and what it held with it: the machine was started again; the volume is made again, empty",
		"volume", v.ID(), "name", v.Ident().Name, "claim", owner.Namespace+"/"+owner.Claim)
	return s.runReformat(ctx, v, intent.Reformatted, s.finish)
}

func (s *creator) runReformat(ctx context.Context, v *inventory.Volume, lost time.Time, take steps) error {
	op := v.BeginReformat(lost)
	s.begin(inventory.Admission{Volume: v, Creation: op}, take)
	_, err := wait(ctx, op)
	return err
}
