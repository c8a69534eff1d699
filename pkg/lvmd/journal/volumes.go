package journal

import (
	"fmt"

	"github.com/carve-csi/carve/pkg/lvmd/spec"
)

// Volumes returns all records by id.
func (j *Journal) Volumes() (map[string]spec.Record, error) {
	records, err := readBucket[spec.Record](j, bucketVolumes, fail("record"))
	for key, r := range records {
		if r.ID != key {
			return nil, fmt.Errorf("journal: record %q says it is of %q", key, r.ID)
		}
	}
	return records, err
}

// PutVolume replaces a volume's record, and runs also in the same transaction.
func (j *Journal) PutVolume(r spec.Record, also ...func(*Tx) error) error {
	return j.Update(func(t *Tx) error {
		if err := t.put(bucketVolumes, r.ID, r); err != nil {
			return err
		}
		return t.each(also)
	})
}

// RemoveVolumes removes records, existing or not, and runs also in the same transaction.
func (j *Journal) RemoveVolumes(ids []string, also ...func(*Tx) error) error {
	if len(ids) == 0 && len(also) == 0 {
		return nil
	}
	return j.Update(func(t *Tx) error {
		if err := t.remove(bucketVolumes, ids...); err != nil {
			return err
		}
		return t.each(also)
	})
}

func (t *Tx) each(also []func(*Tx) error) error {
	for _, f := range also {
		if err := f(t); err != nil {
			return err
		}
	}
	return nil
}
