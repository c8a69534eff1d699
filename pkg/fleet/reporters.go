package fleet

import (
	"slices"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
)

// reporters maps a volume's name or id to the nodes that report it, sorted. Fleet.mu guards it
// together with the views. Most entries have one node, for which a set would take ten times the
// memory.
type reporters map[string][]string

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

type keyChange struct{ removed, added []string }

// keysChanged takes time in proportion to the volumes: do not call it under Fleet.mu for a
// connected node.
func keysChanged(from, to map[string]*lvmdv1.Volume) keyChange {
	return keyChange{removed: missing(from, to), added: missing(to, from)}
}

func missing(from, in map[string]*lvmdv1.Volume) (keys []string) {
	for key := range from {
		if _, there := in[key]; !there {
			keys = append(keys, key)
		}
	}
	return keys
}
