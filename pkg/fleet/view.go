package fleet

import (
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
)

// View is what a node reported, at one instant. It is immutable: all maps and
// messages are shared and must not be changed.
type View struct {
	// Node is the Kubernetes node's name.
	Node string
	// Connected says whether the node can be called now.
	Connected bool
	// Refused says why the node's report is not taken in, or is empty. The view is
	// what the node reported before, and the node is not offered as connected.
	Refused string
	// Epoch and Generation name the report; a later one of the same epoch has
	// a higher generation.
	Epoch      string
	Generation uint64
	// Classes are the device classes by name.
	Classes map[string]*lvmdv1.DeviceClass
	// Volumes are the volumes by id, ByName the same ones by name.
	Volumes, ByName map[string]*lvmdv1.Volume
	// bytes is how much Classes and Volumes are, encoded.
	bytes int
}

// Reported says whether the node ever reported its state to this process.
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

// apply returns the view after a report, or false when the report does not
// follow from the view and the stream must be started again.
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
		next.removeVolume(vol.GetId()) // it may have had another name
		next.bytes += proto.Size(vol)
		next.Volumes[vol.GetId()] = vol
		if vol.GetName() != "" {
			next.ByName[vol.GetName()] = vol
		}
	}
	return &next, true
}

// removeVolume removes a volume from a view that is not shared yet.
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
