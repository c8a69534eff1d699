package journal

import "go.etcd.io/bbolt"

var (
	bucketGroups = []byte("groups")
	// bucketUUIDs has the UUID of each group, by name, as it is.
	bucketUUIDs = []byte("volumeGroupUUIDs")
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

// GroupUUIDs returns the UUIDs of the groups that were seen, by name.
func (j *Journal) GroupUUIDs() (map[string]string, error) {
	uuids := map[string]string{}
	err := j.db.View(func(tx *bbolt.Tx) error {
		bucket := tx.Bucket(bucketUUIDs)
		if bucket == nil {
			return nil
		}
		return bucket.ForEach(func(k, v []byte) error {
			uuids[string(k)] = string(v)
			return nil
		})
	})
	return uuids, err
}

// PutGroupUUID stores a group's UUID in place of an earlier one; an empty one removes it.
func (j *Journal) PutGroupUUID(group, uuid string) error {
	return j.Update(func(t *Tx) error {
		if uuid == "" {
			return t.remove(bucketUUIDs, group)
		}
		bucket, err := t.tx.CreateBucketIfNotExists(bucketUUIDs)
		if err != nil {
			return err
		}
		return bucket.Put([]byte(group), []byte(uuid))
	})
}
