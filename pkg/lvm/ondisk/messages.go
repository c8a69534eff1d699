package ondisk

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Pool describes a thin pool and its volumes by the metadata.
type Pool struct {
	Name string
	// Transaction is the number that the pool should have.
	Transaction uint64
	// Numbers are device IDs, by volume.
	Numbers   map[string]int64
	Snapshots map[string]bool
	// Creates and Deletes are unsent messages: volumes by name, and numbers.
	Creates []string
	Deletes []int64
}

// NoVolume is a number that no volume of a pool has: LVM counts up from 1.
const NoVolume = 1<<24 - 2

// PoolsWithMessages returns the thin pools with messages, sorted by name.
func PoolsWithMessages(text []byte) ([]Pool, error) {
	if !bytes.Contains(text, []byte("message1")) {
		return nil, nil // The usual case. Do not parse: the text may be long.
	}
	vg, err := parseGroup(text)
	if err != nil {
		return nil, err
	}
	volumes, ok := vg["logical_volumes"].(section)
	if !ok {
		return nil, errors.New("metadata: a group with messages and without volumes")
	}
	var waiting []Pool
	for name := range volumes {
		segment := firstSegment(volumes, name)
		if _, ok := segment["message1"].(section); !ok || segment["type"] != "thin-pool" {
			continue
		}
		p, err := parsePool(name, segment, volumes)
		if err != nil {
			return nil, fmt.Errorf("metadata: thin pool %q: %w", name, err)
		}
		waiting = append(waiting, p)
	}
	slices.SortFunc(waiting, func(a, b Pool) int { return strings.Compare(a.Name, b.Name) })
	return waiting, nil
}

// VolumeNames returns the names of all volumes, hidden ones included.
func VolumeNames(text []byte) (map[string]bool, error) {
	vg, err := parseGroup(text)
	names := map[string]bool{}
	all, _ := vg["logical_volumes"].(section)
	for name := range all {
		names[name] = true
	}
	return names, err
}

// MergingSnapshots maps origins to the snapshots with a size of their own that merge into them,
// or wait for that. LVM's reports omit these.
func MergingSnapshots(text []byte) (map[string]string, error) {
	vg, err := parseGroup(text)
	merging := map[string]string{}
	all, _ := vg["logical_volumes"].(section)
	for name := range all {
		segment := firstSegment(all, name)
		snapshot, isMerging := segment["merging_store"].(string)
		if origin, ok := segment["origin"].(string); ok && isMerging {
			merging[origin] = snapshot
		}
	}
	return merging, err
}

// Caches maps caches, volumes or pools, to the volumes that have them, hidden ones included.
func Caches(text []byte) (map[string]string, error) {
	vg, err := parseGroup(text)
	caches := map[string]string{}
	all, _ := vg["logical_volumes"].(section)
	for name := range all {
		segment := firstSegment(all, name)
		for _, key := range []string{"cache_pool", "writecache"} {
			if cache, ok := segment[key].(string); ok {
				caches[cache] = name
			}
		}
	}
	return caches, err
}

// firstSegment returns nil if there is none.
func firstSegment(volumes section, name string) section {
	volume, _ := volumes[name].(section)
	segment, _ := volume["segment1"].(section)
	return segment
}

func parsePool(name string, pool, volumes section) (Pool, error) {
	transaction, ok := pool["transaction_id"].(int64)
	if !ok || transaction < 0 {
		return Pool{}, fmt.Errorf("its transaction is %v", pool["transaction_id"])
	}
	p := Pool{Name: name, Transaction: uint64(transaction), Numbers: map[string]int64{}, Snapshots: map[string]bool{}}
	for volume := range volumes {
		segment := firstSegment(volumes, volume)
		if segment["type"] != "thin" || segment["thin_pool"] != name {
			continue
		}
		number, ok := segment["device_id"].(int64)
		if !ok || number < 0 || number >= NoVolume {
			return Pool{}, fmt.Errorf("volume %q has the number %v", volume, segment["device_id"])
		}
		p.Numbers[volume] = number
		_, p.Snapshots[volume] = segment["origin"].(string)
	}
	for i := 1; ; i++ {
		message, ok := pool[fmt.Sprintf("message%d", i)].(section)
		if !ok {
			return p, nil
		}
		create, isCreate := message["create"].(string)
		number, isDelete := message["delete"].(int64)
		switch {
		case isCreate && p.Numbers[create] != 0:
			p.Creates = append(p.Creates, create)
		case isDelete:
			p.Deletes = append(p.Deletes, number)
		default:
			return Pool{}, fmt.Errorf("message %d is %v", i, message)
		}
	}
}
