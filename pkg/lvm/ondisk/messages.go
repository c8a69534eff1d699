package ondisk

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Pool is what the metadata say of a thin pool and of what is in it.
type Pool struct {
	Name string
	// Transaction is the number that the pool's is to be.
	Transaction uint64
	// Numbers are those of the pool's volumes, by name.
	Numbers map[string]int64
	// Snapshots are the volumes made of another one.
	Snapshots map[string]bool
	// Creates and Deletes are messages that are yet to be sent: volumes by name, and
	// numbers.
	Creates []string
	Deletes []int64
}

// NoVolume is a number that no volume of a pool has: LVM begins with 1, and goes on
// after the highest.
const NoVolume = 1<<24 - 2

// PoolsWithMessages finds the thin pools with messages in a group's metadata,
// sorted by name.
func PoolsWithMessages(text []byte) ([]Pool, error) {
	if !bytes.Contains(text, []byte("message1")) {
		return nil, nil // as nearly always, and the text may be long
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

// VolumeNames are the names of all volumes in a group's metadata, hidden ones too.
func VolumeNames(text []byte) (map[string]bool, error) {
	vg, err := parseGroup(text)
	names := map[string]bool{}
	all, _ := vg["logical_volumes"].(section)
	for name := range all {
		names[name] = true
	}
	return names, err
}

// MergingSnapshots are the snapshots with a size of their own that are merged into their origins, or wait for
// that, by the origins' names. LVM reports none of them.
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

// Caches are the volumes that have a cache, hidden ones too, by the name of the volume or pool that is the cache.
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

// firstSegment is the first segment of a volume, or nil.
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
