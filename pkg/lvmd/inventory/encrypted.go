package inventory

import (
	"time"

	"github.com/carve-csi/carve/pkg/lvmd/spec"
	"github.com/carve-csi/carve/pkg/lvmd/wakeup"
)

// Header locates the LUKS header of a volume that its user encrypts.
type Header struct {
	Volume, Device string
	// Noted is true if the journal has the volume as encrypted.
	Noted bool
}

// HeadersNotTagged returns the group's headers that LVM's tags do not show as made.
func (g *Group) HeadersNotTagged() (found []Header) {
	m := g.m
	m.lock()
	defer m.unlock()
	for _, v := range m.ordered() {
		if v.group == g && v.rec.Ident.IsLUKS() && v.rec.Phase == spec.Ready && !v.tagged && v.device.Path != "" {
			found = append(found, Header{v.rec.ID, v.device.Path, v.rec.Encrypted})
		}
	}
	return found
}

type taggedEncrypted struct {
	tagged
	v *Volume
}

// TaggedEncrypted is the effect of the command that tags a volume as encrypted.
func TaggedEncrypted(v *Volume) Effect { return taggedEncrypted{v: v} }

func (e taggedEncrypted) apply(*model) []*Volume { e.v.tagged = true; return nil }

// ClaimKeyless claims the encrypted volumes without a device. retry is the earliest time at which
// further ones are due, or zero.
func (m *Inventory) ClaimKeyless() (claimed []*Volume, retry time.Time) {
	now := time.Now()
	m.lock()
	defer m.unlock()
	for _, v := range m.volumes {
		without := v.rec.Phase == spec.DataLost || v.rec.Phase == spec.Ready && v.device.Path == ""
		switch {
		case !v.IsEncrypted() || !without || v.isBusy() || !v.group.present || !v.group.exists[v.rec.ID]:
		case v.retryAt.After(now):
			retry = wakeup.Earlier(retry, v.retryAt)
		default:
			m.enter(v, Checking)
			claimed = append(claimed, v)
		}
	}
	return claimed, retry
}

// EncryptedVolumes returns the usable volumes with an encrypted device.
func (m *Inventory) EncryptedVolumes() []*Volume {
	m.lock()
	defer m.unlock()
	var all []*Volume
	for _, v := range m.volumes {
		if v.IsEncrypted() && v.rec.Phase == spec.Ready && v.device.Path != "" {
			all = append(all, v)
		}
	}
	return all
}
