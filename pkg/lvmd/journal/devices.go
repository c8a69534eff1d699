package journal

import "maps"

var bucketDevices = []byte("devices")

// Device is a physical volume that lvmd made: an intent until it has joined its group, and then the
// memory of that.
type Device struct {
	// UUID is the physical volume's, chosen before it was made.
	UUID string `json:"uuid"`
	// Group is the volume group's name.
	Group string `json:"group"`
	// Device is the path at that time.
	Device string `json:"device"`
	Joined bool   `json:"joined,omitempty"`
}

// Devices returns the records of a group's devices, by UUID.
func (j *Journal) Devices(group string) (map[string]Device, error) {
	records, err := readBucket[Device](j, bucketDevices, fail("device"))
	maps.DeleteFunc(records, func(_ string, d Device) bool { return d.Group != group })
	return records, err
}

// PutDevices stores records, replacing those of the same UUIDs.
func (j *Journal) PutDevices(records ...Device) error {
	if len(records) == 0 {
		return nil
	}
	return j.Update(func(t *Tx) error {
		for _, r := range records {
			if err := t.put(bucketDevices, r.UUID, r); err != nil {
				return err
			}
		}
		return nil
	})
}

// RemoveDevices removes records by UUID, existing or not.
func (j *Journal) RemoveDevices(uuids ...string) error {
	if len(uuids) == 0 {
		return nil
	}
	return j.Update(func(t *Tx) error { return t.remove(bucketDevices, uuids...) })
}
