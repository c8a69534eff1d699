package fleet

import (
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
)

// View is the state of a node at one instant. It is immutable: its maps and messages are shared and
// must not be changed.
type View struct {
	// Node is the Kubernetes node's name.
	Node string
	// Connected is true while the node has an uplink and its reports are accepted.
	Connected bool
	// Refused is the reason why the node's reports are refused, or "". The view then holds the last
	// accepted report, and Connected is false.
	Refused string
	// Epoch and Generation identify the report. Within an epoch, a later report has a higher
	// generation.
	Epoch      string
	Generation uint64
	// Classes holds the device classes by name.
	Classes map[string]*lvmdv1.DeviceClass
	// Volumes holds the volumes by id, ByName the same ones by name.
	Volumes, ByName map[string]*lvmdv1.Volume
	// bytes is the encoded size of Classes and Volumes.
	bytes int
}

// Reported reports whether the node ever reported its state to this process.
func (v *View) Reported() bool { return v.Epoch != "" }

// Class returns the class of that name, or the default class for "".
func (v *View) Class(name string) (*lvmdv1.DeviceClass, bool) {
	if name != "" {
		c, ok := v.Classes[name]
		return c, ok
	}
	for _, c := range v.Classes {
		if c.GetDefault() {
			return c, true
		}
	}
	return nil, false
}

// ClassNames returns the names of the node's classes, sorted.
func (v *View) ClassNames() []string {
	return slices.SortedFunc(maps.Keys(v.Classes), strings.Compare)
}

// apply returns the view after a report. It returns false if the report does not follow the view,
// so that the stream must restart.
func (v *View) apply(r *lvmdv1.WatchResponse) (*View, bool) {
	next := *v
	next.Epoch, next.Generation = r.GetEpoch(), r.GetGeneration()
	if r.GetFull() {
		next.Classes = map[string]*lvmdv1.DeviceClass{}
		next.Volumes = map[string]*lvmdv1.Volume{}
		next.ByName = map[string]*lvmdv1.Volume{}
		next.bytes = 0
	} else {
		if r.GetEpoch() != v.Epoch || r.GetGeneration() <= v.Generation {
			return nil, false
		}
		if len(r.GetClasses())+len(r.GetRemovedClasses()) > 0 {
			next.Classes = maps.Clone(v.Classes)
		}
		if len(r.GetVolumes())+len(r.GetRemovedVolumeIds()) > 0 {
			next.Volumes, next.ByName = maps.Clone(v.Volumes), maps.Clone(v.ByName)
		}
	}
	for _, c := range r.GetClasses() {
		next.bytes += proto.Size(c) - proto.Size(next.Classes[c.GetName()])
		next.Classes[c.GetName()] = c
	}
	for _, name := range r.GetRemovedClasses() {
		next.bytes -= proto.Size(next.Classes[name])
		delete(next.Classes, name)
	}
	for _, id := range r.GetRemovedVolumeIds() {
		next.removeVolume(id)
	}
	for _, vol := range r.GetVolumes() {
		next.removeVolume(vol.GetId()) // its name may have changed
		next.bytes += proto.Size(vol)
		next.Volumes[vol.GetId()] = vol
		if vol.GetName() != "" {
			next.ByName[vol.GetName()] = vol
		}
	}
	return &next, true
}

// removeVolume must not be called on a shared view.
func (v *View) removeVolume(id string) {
	old, there := v.Volumes[id]
	if !there {
		return
	}
	v.bytes -= proto.Size(old)
	delete(v.Volumes, id)
	if v.ByName[old.GetName()].GetId() == id {
		delete(v.ByName, old.GetName())
	}
}
