package inventory

import (
	"time"

	"github.com/carve-csi/carve/pkg/lvmd/spec"
	"github.com/carve-csi/carve/pkg/lvmd/wakeup"
)

// Header is where the header of a volume is that its user encrypts.
type Header struct {
	Volume, Device string
	// Noted is true when the journal has that the volume is encrypted.
	Noted bool
}

// HeadersNotTagged are those in a group of which LVM does not show that they were made.
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

// ClaimKeyless claims the encrypted volumes that have no device. When some must wait,
// it returns until when.
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

// EncryptedVolumes are the volumes with an encrypted device that can be used.
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
