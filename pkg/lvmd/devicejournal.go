package lvmd

import (
	"encoding/json"
	"fmt"

	"go.etcd.io/bbolt"
)

var bucketDevices = []byte("devices")

// deviceRecord is what the journal keeps of a physical volume that lvmd made:
// an intent until it has joined its group, and then the memory that the group
// was there.
type deviceRecord struct {
	// UUID is the physical volume's, chosen before it was made.
	UUID string `json:"uuid"`
	// Group is the volume group's name.
	Group string `json:"group"`
	// Device is the path it had.
	Device string `json:"device"`
	Joined bool   `json:"joined,omitempty"`
}

// putDevices stores records in place of earlier ones of the same UUIDs.
func (j *journal) putDevices(records ...deviceRecord) error {
	if len(records) == 0 {
		return nil
	}
	return j.do(func(tx *bbolt.Tx) error {
		b, err := tx.CreateBucketIfNotExists(bucketDevices)
		if err != nil {
			return err
		}
		for _, r := range records {
			value, err := json.Marshal(r)
			if err != nil {
				return err
			}
			if err := b.Put([]byte(r.UUID), value); err != nil {
				return err
			}
		}
		return nil
	})
}

// forgetDevices removes records, known or not.
func (j *journal) forgetDevices(uuids ...string) error {
	if len(uuids) == 0 {
		return nil
	}
	return j.do(func(tx *bbolt.Tx) error {
		b := tx.Bucket(bucketDevices)
		if b == nil {
			return nil
		}
		for _, uuid := range uuids {
			if err := b.Delete([]byte(uuid)); err != nil {
				return err
			}
		}
		return nil
	})
}

// devices returns the records of a group's devices by UUID.
func (j *journal) devices(group string) (map[string]deviceRecord, error) {
	records := map[string]deviceRecord{}
	err := j.db.View(func(tx *bbolt.Tx) error {
		b := tx.Bucket(bucketDevices)
		if b == nil {
			return nil
		}
		return b.ForEach(func(k, v []byte) error {
			var r deviceRecord
			if err := json.Unmarshal(v, &r); err != nil {
				return fmt.Errorf("journal: device %q: %w", k, err)
			}
			if r.Group == group {
				records[r.UUID] = r
			}
			return nil
		})
	})
	return records, err
}
