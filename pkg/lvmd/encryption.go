package lvmd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/lvm"
)

// An encrypted volume has a second device, see lvm.Crypt, which is the one that
// its user is told of. Its key is nowhere but in the kernel. Nothing is written
// about whether there is one: the device is there, or what the volume held is
// lost, and the volume is made anew.

// readEncryption reads what a request says about encryption.
func (i *identity) readEncryption(r *lvmdv1.CreateVolumeRequest) error {
	i.Encryption, i.Discards = r.GetEncryption(), r.GetEncryptionDiscards()
	switch {
	case i.Encryption != "" && i.Encryption != names.EncryptionEphemeral && i.Encryption != names.EncryptionLUKS:
		return invalidField("encryption", "%q is not known; allowed are %s, %s, or nothing", i.Encryption, names.EncryptionEphemeral, names.EncryptionLUKS)
	case i.Encryption == "" && i.Discards:
		return invalidField("encryption_discards", "it is set for a volume that is not encrypted")
	case i.Encryption != "" && i.Source != "":
		return invalidField("encryption", "%q for a volume that is made of another one; encrypted volumes begin empty", i.Encryption)
	}
	return nil
}

// isEncrypted tells whether lvmd encrypts a volume, with a key that the kernel
// keeps. One that its user encrypts, see luks.go, is as any other to the kernel.
func (v *volume) isEncrypted() bool { return v.rec.Ident.Encryption == names.EncryptionEphemeral }

// notMapped refuses encryption where files are mapped directly into memory,
// which leaves nothing in between that could encrypt.
func (i identity) notMapped() error {
	if i.Encryption != "" && i.DAX {
		return invalidField("encryption", "%q in device class %q, whose files are mapped directly into memory and cannot be encrypted; use another class, or mode BLOCK",
			i.Encryption, i.Class)
	}
	return nil
}

// notEncrypted refuses to make something of an encrypted volume.
func (v *volume) notEncrypted(field string) error {
	if v.rec.Ident.Encryption != "" {
		return invalidField(field, "volume %s is encrypted with a key that nothing else may have: it is neither copied nor snapshotted", v.rec.ID)
	}
	return nil
}

// deviceOf asks the kernel for the device that a volume's user is told of.
func (s *Service) deviceOf(group, id string, encrypted bool) (lvm.Device, error) {
	if encrypted {
		return s.lvm.CryptDevice(id)
	}
	return s.lvm.Device(group, id)
}

// openDevice opens that device for lvmd alone.
func (s *Service) openDevice(v *volume) (lvm.Handle, error) {
	if v.isEncrypted() {
		return s.lvm.OpenCrypt(v.rec.ID)
	}
	return s.lvm.Open(v.group.name, v.rec.ID)
}

// encrypt gives a volume an encrypted device with a new key, whatever was there
// before, and returns it. What lay on the disks before shows as noise, but for
// the ends of a raw volume, which are empty: nobody shall find a signature.
func (s *Service) encrypt(ctx context.Context, v *volume) (lvm.Device, error) {
	id := v.rec.ID
	if err := s.lvm.ForgetKey(id); err != nil {
		return lvm.Device{}, fmt.Errorf("forgetting an earlier key: %w", err)
	}
	if _, err := s.lvm.Encrypt(v.group.name, id, lvm.CryptOptions{Discards: v.rec.Ident.Discards}); err != nil {
		return lvm.Device{}, fmt.Errorf("encrypting: %w", err)
	}
	s.crash("encrypt: key made")
	if v.rec.Ident.Block {
		h, err := s.open(ctx, v)
		if err != nil {
			return lvm.Device{}, fmt.Errorf("the new volume's encrypted device: %w", err)
		}
		ends := spans{}.plus(span{0, h.Size()})
		if h.Size() > 2*headAndTail {
			ends = ends.minus(span{headAndTail, h.Size() - headAndTail})
		}
		err = s.zero(ctx, h, ends)
		if err = errors.Join(err, h.Close()); err != nil {
			return lvm.Device{}, fmt.Errorf("clearing the ends of the new volume: %w", err)
		}
	}
	return s.lvm.CryptDevice(id)
}

// eraseKey ends what a volume holds, as soon as it is a tombstone. The handle is
// of its device, or nil, and is closed: what it returns is what is left of it.
// When it fails, the wipe loop does it.
func (s *Service) eraseKey(v *volume, h lvm.Handle) lvm.Handle {
	if !v.isEncrypted() {
		return h
	}
	if h != nil {
		if err := h.Close(); err != nil {
			s.log.Warn("closing a deleted volume", "volume", v.rec.ID, "error", err)
		}
	}
	if err := s.lvm.ForgetKey(v.rec.ID); err != nil {
		s.log.Warn("the key of a deleted volume could not be forgotten yet", "volume", v.rec.ID, "error", err)
		return nil
	}
	s.crash("delete: key forgotten")
	return nil
}

// tellOfKeys tells of volumes that are gone but for their encrypted devices. LVM
// removes no volume that has one: it was renamed, and comes back by its name with
// all that it holds as long as nobody removes the device, or it was forced away.
func (s *Service) tellOfKeys(vanished []string) {
	for _, id := range vanished {
		if d, err := s.lvm.CryptDevice(id); err == nil {
			s.log.Warn("the encrypted device of a volume that is gone is left: give the volume its name back, or remove the device (dmsetup remove)",
				"volume", id, "device", d.Path)
		}
	}
}

// growEncrypted makes what an encrypted volume was grown by available.
func (s *Service) growEncrypted(v *volume) error {
	if !v.isEncrypted() {
		return nil
	}
	return s.lvm.GrowCrypt(v.group.name, v.rec.ID)
}

// keyLoop makes encrypted volumes anew whose key is gone, until ctx is done.
func (s *Service) keyLoop(ctx context.Context) {
	s.finishGrowingEncrypted()
	for {
		lost, retry := s.keyless()
		for _, v := range lost {
			s.spawn(func() {
				defer wake(s.lost)
				if err := s.makeAnew(ctx, v); err != nil && ctx.Err() == nil {
					s.log.Error("an encrypted volume without a key could not be made anew; it will be tried again", "volume", v.rec.ID, "error", err)
					s.postpone(v)
				}
			})
		}
		if !sleepUntil(ctx, s.lost, retry) {
			return
		}
	}
}

// finishGrowingEncrypted does what an expansion may have left undone when lvmd
// ended.
func (s *Service) finishGrowingEncrypted() {
	s.model.mu.Lock()
	var all []*volume
	for _, v := range s.model.volumes {
		if v.isEncrypted() && v.rec.Phase == ready && v.device.Path != "" {
			all = append(all, v)
		}
	}
	s.model.mu.Unlock()
	for _, v := range all {
		if err := s.growEncrypted(v); err != nil {
			s.log.Error("an encrypted volume is not as large as it should be until its expansion is asked for again", "volume", v.rec.ID, "error", err)
		}
	}
}

// keyless claims the encrypted volumes that have no device. When some must wait,
// it returns until when.
func (s *Service) keyless() (lost []*volume, retry time.Time) {
	now := time.Now()
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	for _, v := range s.model.volumes {
		without := v.rec.Phase == emptied || v.rec.Phase == ready && v.device.Path == ""
		switch {
		case !v.isEncrypted() || !without || v.op != nil || v.claimed || !v.group.present || !v.group.exists[v.rec.ID]:
		case v.retryAt.After(now):
			retry = earlier(retry, v.retryAt)
		default:
			v.claimed = true
			lost = append(lost, v)
		}
	}
	return lost, retry
}

// makeAnew makes a claimed volume as it was when it was created: empty. That the
// key is gone is for the kernel to say, not for a node under /dev that is missing.
func (s *Service) makeAnew(ctx context.Context, v *volume) error {
	id := v.rec.ID
	_, err := s.lvm.Device(v.group.name, id)
	var device lvm.Device
	if err == nil {
		device, err = s.lvm.CryptDevice(id)
		if v.rec.Phase == emptied || errors.Is(err, lvm.ErrNotFound) {
			return s.refill(ctx, v)
		}
	}
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	v.claimed = false
	if err == nil {
		v.activeAt(device)
		s.model.publish(v.group, v)
	}
	return err
}

// refill notes that what the volume held is gone, and then makes it again.
func (s *Service) refill(ctx context.Context, v *volume) error {
	intent := v.rec
	intent.Phase = emptied
	if err := s.journal.put(intent); err != nil {
		s.unclaim(v)
		return err
	}
	s.crash("encrypt: loss noted")
	s.log.Warn("the key of an encrypted volume is gone, and what it held with it: the machine was started anew; the volume is made again, empty",
		"volume", v.rec.ID, "name", v.rec.Ident.Name, "claim", v.rec.Ident.Owner.Namespace+"/"+v.rec.Ident.Owner.Claim)
	s.model.mu.Lock()
	v.rec.Phase, v.claimed = emptied, false
	op := s.begin(v, s.finishCreation)
	s.model.publish(v.group, v)
	s.model.mu.Unlock()
	select {
	case <-op.done:
		if op.err == nil {
			s.metrics.emptied.Inc()
		}
		return op.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// activeAt notes a volume's device. The caller holds the model's lock.
func (v *volume) activeAt(d lvm.Device) {
	v.device = d
	v.conditions = slices.DeleteFunc(slices.Clone(v.conditions), func(c *lvmdv1.Condition) bool { return c.GetType() == "Inactive" })
}
