package inventory

import (
	"time"

	"github.com/carve-csi/carve/pkg/lvmd/apierror"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
)

// isProvisional reports whether both the journal and LVM say that the volume is provisional. A journal that
// is older than the volume's use says so, too.
func isProvisional(v *Volume) bool { return v.rec.Provisional && v.making.provisional }

// ClaimToKeep claims a provisional volume, so that no deletion writes its record meanwhile. It returns
// true when the volume is not provisional, and claims nothing then.
func ClaimToKeep(in *Inventory, id string) (v *Volume, done bool, err error) {
	in.lock()
	defer in.unlock()
	v, err = in.lookup(id, "", false)
	switch {
	case err != nil:
		return nil, false, err
	case !v.rec.Provisional:
		return v, true, nil
	case v.rec.Phase != spec.Ready || v.isBusy():
		return nil, false, apierror.OperationPending("another operation on volume %s is under way", id)
	}
	in.enter(v, Noting)
	return v, false, nil
}

// Keep notes that a claimed volume is provisional no more, and releases it. Its tags are to be taken off.
func Keep(v *Volume) {
	m := v.group.m
	m.lock()
	defer m.unlock()
	m.enter(v, v.lifecycle.Released())
	v.rec.Provisional = false
	v.making.offAt = time.Now().Add(untagDelay)
	m.publish(v.group, v)
}
