package fleet

import (
	"slices"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
)

// reporters are the nodes whose view has a volume, sorted, by the volume's name or id. It is kept in step
// with the views, under Fleet.mu. Mostly it is one node, of which a set would take ten times as much.
type reporters map[string][]string

// update takes in how the keys of a node's volumes changed.
func (r reporters) update(node string, keys keyChange) {
	for _, key := range keys.removed {
		if i, has := slices.BinarySearch(r[key], node); has {
			r[key] = slices.Delete(r[key], i, i+1)
		}
		if len(r[key]) == 0 {
			delete(r, key)
		}
	}
	for _, key := range keys.added {
		if i, has := slices.BinarySearch(r[key], node); !has {
			r[key] = slices.Insert(r[key], i, node)
		}
	}
}

// keyChange is by which keys one map of volumes differs from another.
type keyChange struct{ removed, added []string }

// keysChanged takes time for each volume: it is not called under Fleet.mu for a node that is connected.
func keysChanged(from, to map[string]*lvmdv1.Volume) keyChange {
	return keyChange{removed: missing(from, to), added: missing(to, from)}
}

// missing returns the keys that are in one map and not in the other.
func missing(from, in map[string]*lvmdv1.Volume) (keys []string) {
	for key := range from {
		if _, there := in[key]; !there {
			keys = append(keys, key)
		}
	}
	return keys
}
