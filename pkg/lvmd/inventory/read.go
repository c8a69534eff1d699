package inventory

import (
	"slices"
	"strings"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
)

// ReadVolume returns the volume that exactly one of id and name names, and reports it.
func (m *Inventory) ReadVolume(id, name string) (*Volume, *lvmdv1.Volume, error) {
	m.lock()
	defer m.unlock()
	v, err := m.lookup(id, name, false)
	if err != nil {
		return nil, nil, err
	}
	return v, v.proto(), nil
}

// Report is what is reported of a volume.
func (v *Volume) Report() *lvmdv1.Volume {
	m := v.group.m
	m.lock()
	defer m.unlock()
	return v.proto()
}

// ReadSnapshot reports the snapshot that exactly one of id and name names.
func (m *Inventory) ReadSnapshot(id, name string) (*lvmdv1.Snapshot, error) {
	m.lock()
	defer m.unlock()
	v, err := m.lookup(id, name, true)
	if err != nil {
		return nil, err
	}
	return v.snapshotProto(), nil
}

// ReportSnapshot is what is reported of a snapshot.
func (v *Volume) ReportSnapshot() *lvmdv1.Snapshot {
	m := v.group.m
	m.lock()
	defer m.unlock()
	return v.snapshotProto()
}

// Volumes reports at most limit volumes whose ids follow after, in the order of their ids. more is
// true when others follow.
func (m *Inventory) Volumes(after string, limit int) (page []*lvmdv1.Volume, more bool) {
	return pageOf(m, after, limit, (*Volume).proto, func(i *spec.Identity) bool { return !i.Snapshot })
}

// Snapshots is Volumes for the snapshots of a volume, or of all where it is empty.
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

// following are the volumes whose ids follow one, in order.
func (x *index) following(id string) []*Volume {
	all := x.ordered()
	i, _ := slices.BinarySearchFunc(all, id+"\x00", func(v *Volume, id string) int { return strings.Compare(v.rec.ID, id) })
	return all[i:]
}

// Classes reports the classes that are offered.
func (m *Inventory) Classes() []*lvmdv1.DeviceClass {
	m.lock()
	defer m.unlock()
	var offered []*lvmdv1.DeviceClass
	for _, c := range m.classes {
		if c.reported != nil {
			// What was reported is replaced when it changes, never written to.
			offered = append(offered, c.reported)
		}
	}
	return offered
}
