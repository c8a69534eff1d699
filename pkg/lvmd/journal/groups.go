package journal

import (
	"errors"

	"go.etcd.io/bbolt"
)

var (
	bucketGroups = []byte("groups")
	// bucketUUIDs has the UUID of each group, by name, as it is, and bucketIdentities that and
	// those of its physical volumes: an earlier version knows the former only.
	bucketUUIDs      = []byte("volumeGroupUUIDs")
	bucketIdentities = []byte("volumeGroupIdentities")
)

// Group is what is remembered of a volume group. Without it, or with one that is out of date, no
// space is known to hold zeroes.
type Group struct {
	UUID  string `json:"uuid"`
	Seqno uint64 `json:"seqno"`
	// Zeroed has, for each physical volume, starts and ends alternately, in bytes.
	Zeroed map[string][]int64 `json:"clean,omitempty"`
}

// Groups returns what is remembered of each group, by name. What cannot be understood is left
// out.
func (j *Journal) Groups() (map[string]Group, error) {
	return readBucket[Group](j, bucketGroups, forget)
}

// PutGroup stores what is remembered of a group.
func (t *Tx) PutGroup(name string, g Group) error { return t.put(bucketGroups, name, g) }

// Identity is what a group is known by: its UUID, and those of its physical volumes, which are
// not known in a journal of an earlier version.
type Identity struct {
	UUID    string   `json:"uuid"`
	Devices []string `json:"devices,omitempty"`
}

// Identities returns those of the groups that were seen, by name.
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

// PutIdentity stores what a group is known by in place of what it was; one without a UUID
// removes it.
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
