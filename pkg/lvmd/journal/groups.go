package journal

import (
	"errors"

	"go.etcd.io/bbolt"
)

var (
	bucketGroups = []byte("groups")
	// An earlier version reads bucketUUIDs only, which has the groups' raw UUIDs, by name.
	// bucketIdentities adds those of the physical volumes.
	bucketUUIDs      = []byte("volumeGroupUUIDs")
	bucketIdentities = []byte("volumeGroupIdentities")
)

// Group is the journal's memory of a volume group. If it is missing or outdated, no space counts as
// zeroed.
type Group struct {
	UUID  string `json:"uuid"`
	Seqno uint64 `json:"seqno"`
	// Zeroed has alternate starts and ends of stretches, in bytes, by physical volume.
	Zeroed map[string][]int64 `json:"clean,omitempty"`
}

// Groups returns the groups by name, without those that cannot be decoded.
func (j *Journal) Groups() (map[string]Group, error) {
	return readBucket[Group](j, bucketGroups, forget)
}

// PutGroup stores a group.
func (t *Tx) PutGroup(name string, g Group) error { return t.put(bucketGroups, name, g) }

// Identity identifies a volume group by UUIDs. Devices, its physical volumes, is empty in a journal
// of an earlier version.
type Identity struct {
	UUID    string   `json:"uuid"`
	Devices []string `json:"devices,omitempty"`
}

// Identities returns those of all groups seen, by name.
func (j *Journal) Identities() (map[string]Identity, error) {
	whole, err := readBucket[Identity](j, bucketIdentities, forget)
	if err != nil {
		return nil, err
	}
	identities := map[string]Identity{}
	err = j.db.View(func(tx *bbolt.Tx) error {
		bucket := tx.Bucket(bucketUUIDs)
		if bucket == nil {
			return nil
		}
		return bucket.ForEach(func(k, v []byte) error {
			i := Identity{UUID: string(v)}
			// An earlier version may have accepted another group since.
			if w := whole[string(k)]; w.UUID == i.UUID {
				i = w
			}
			identities[string(k)] = i
			return nil
		})
	})
	return identities, err
}

// PutIdentity replaces a group's identity, and removes it if i has no UUID.
func (j *Journal) PutIdentity(group string, i Identity) error {
	return j.Update(func(t *Tx) error {
		if i.UUID == "" {
			return errors.Join(t.remove(bucketUUIDs, group), t.remove(bucketIdentities, group))
		}
		bucket, err := t.tx.CreateBucketIfNotExists(bucketUUIDs)
		if err != nil {
			return err
		}
		return errors.Join(bucket.Put([]byte(group), []byte(i.UUID)), t.put(bucketIdentities, group, i))
	})
}
