package inventory

import (
	"time"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
)

// Note is a change to the record of a volume in use.
type Note int

const (
	// Encrypted records that the node plugin has encrypted the volume.
	Encrypted Note = iota
	// Kept records that the volume is no longer provisional.
	Kept
)

// ClaimToNote claims a volume until SetRecord or Release, so that no deletion writes its record
// concurrently. If nothing is left to record, done is true and nothing is claimed.
func (m *Inventory) ClaimToNote(id string, note Note) (v *Volume, done bool, err error) {
	m.lock()
	defer m.unlock()
	v, err = m.lookup(id, "", false)
	switch {
	case err != nil:
		return nil, false, err
	case note == Encrypted && v.rec.Ident.Encryption != names.EncryptionLUKS:
		return nil, false, apierror.InvalidField("id", "volume %s has encryption %q; only volumes with %q are noted", id, v.rec.Ident.Encryption, names.EncryptionLUKS)
	case note == Encrypted && v.rec.Encrypted && v.tagged, note == Kept && !v.rec.Provisional:
		return v, true, nil
	case v.rec.Phase != spec.Ready || v.isBusy():
		return nil, false, apierror.OperationPending("another operation on volume %s is under way", id)
	}
	m.enter(v, Noting)
	return v, false, nil
}

// SetRecord applies the journal's record of a claimed volume, and releases it. It never unsets
// Encrypted, which a scan may have set since the record was read.
func (v *Volume) SetRecord(rec spec.Record) {
	m := v.group.m
	m.lock()
	defer m.unlock()
	m.enter(v, v.lifecycle.released())
	m.enter(v, recalled(rec.Phase))
	if v.rec.Provisional && !rec.Provisional {
		v.making.offAt = time.Now().Add(untagDelay)
	}
	v.rec.Provisional, v.rec.AdoptedFrom = rec.Provisional, rec.AdoptedFrom
	v.rec.Encrypted = v.rec.Encrypted || rec.Encrypted
	m.publish(v.group, v)
}

// isProvisional requires both the journal and LVM to say so: a journal older than the volume's use
// says so, too.
func isProvisional(v *Volume) bool { return v.rec.Provisional && v.making.provisional }
