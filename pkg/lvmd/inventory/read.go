package inventory

import (
	"slices"
	"strings"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
)

// ReadVolume returns the volume that exactly one of id and name names, and its report.
func (m *Inventory) ReadVolume(id, name string) (*Volume, *lvmdv1.Volume, error) {
	m.lock()
	defer m.unlock()
	v, err := m.lookup(id, name, false)
	if err != nil {
		return nil, nil, err
	}
	return v, v.proto(), nil
}

// Report returns the report of the volume.
func (v *Volume) Report() *lvmdv1.Volume {
	m := v.group.m
	m.lock()
	defer m.unlock()
	return v.proto()
}

// ReadSnapshot returns the report of the snapshot that exactly one of id and name names.
func (m *Inventory) ReadSnapshot(id, name string) (*lvmdv1.Snapshot, error) {
	m.lock()
	defer m.unlock()
	v, err := m.lookup(id, name, true)
	if err != nil {
		return nil, err
	}
	return v.snapshotProto(), nil
}

// ReportSnapshot returns the report of the snapshot.
func (v *Volume) ReportSnapshot() *lvmdv1.Snapshot {
	m := v.group.m
	m.lock()
	defer m.unlock()
	return v.snapshotProto()
}

// Volumes returns the reports of up to limit volumes with ids above after, by id. more is true if
// others follow.
func (m *Inventory) Volumes(after string, limit int) (page []*lvmdv1.Volume, more bool) {
	return pageOf(m, after, limit, (*Volume).proto, func(i *spec.Identity) bool { return !i.Snapshot })
}

// Snapshots is Volumes for the snapshots of a volume, or for all if of is empty.
func (m *Inventory) Snapshots(of, after string, limit int) (page []*lvmdv1.Snapshot, more bool) {
	return pageOf(m, after, limit, (*Volume).snapshotProto, func(i *spec.Identity) bool { return i.Snapshot && (of == "" || of == i.Source) })
}

func pageOf[T any](m *Inventory, after string, limit int, report func(*Volume) T, has func(*spec.Identity) bool) (page []T, more bool) {
	m.lock()
	defer m.unlock()
	for _, v := range m.following(after) {
		switch {
		case v.rec.Phase == spec.Deleting || !has(&v.rec.Ident):
		case len(page) == limit:
			return page, true
		default:
			page = append(page, report(v))
		}
	}
	return page, false
}

func (x *index) following(id string) []*Volume {
	all := x.ordered()
	i, _ := slices.BinarySearchFunc(all, id+"\x00", func(v *Volume, id string) int { return strings.Compare(v.rec.ID, id) })
	return all[i:]
}

// Classes returns the reports of the offered classes.
func (m *Inventory) Classes() []*lvmdv1.DeviceClass {
	m.lock()
	defer m.unlock()
	var offered []*lvmdv1.DeviceClass
	for _, c := range m.classes {
		if c.reported != nil {
			// Reports are replaced when they change, never written to.
			offered = append(offered, c.reported)
		}
	}
	return offered
}
