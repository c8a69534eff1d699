package journal

import (
	"fmt"
	"strconv"

	"go.etcd.io/bbolt"
)

// A step migrates a file to the next format, in the transaction that also writes the format's
// number: no crash leaves a mixture.
type step func(tx *bbolt.Tx) error

// steps[i] migrates format i+1 to i+2. New buckets, and new fields whose zero value means the same
// as their absence, need no step, as earlier versions ignore them. Anything they would misread
// does: after a step, they reject the file, see docs/decisions/crashes.md, "A version leaves alone
// what a later one wrote".
var steps = []step{}

// FormatError means that a later version of lvmd wrote the file, which is unchanged.
type FormatError struct {
	Path string
	// Known is the newest format of this version.
	Found, Known int
}

func (e *FormatError) Error() string {
	return fmt.Sprintf("journal %s has format %d, and this version of lvmd knows formats up to %d: a later version wrote it, and nothing was changed in it; "+
		"install that version again, or move the file away: the volumes are then found by their tags, and wipes begin again", e.Path, e.Found, e.Known)
}

// formatOf returns zero for an empty file.
func formatOf(db *bbolt.DB) (format int, err error) {
	err = db.View(func(tx *bbolt.Tx) error {
		meta := tx.Bucket(bucketMeta)
		if meta == nil || meta.Get(keyFormat) == nil {
			return nil
		}
		if format, err = strconv.Atoi(string(meta.Get(keyFormat))); err != nil || format < 1 {
			return fmt.Errorf("%q is no format", meta.Get(keyFormat))
		}
		return nil
	})
	return format, err
}

// migrate runs in one transaction. It does not write to a file of the newest format: the disk may
// be full.
func migrate(db *bbolt.DB, from int, steps []step) error {
	newest := 1 + len(steps)
	if from == newest {
		return nil
	}
	return db.Update(func(tx *bbolt.Tx) error {
		for _, name := range [][]byte{bucketMeta, bucketVolumes} {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		for at := from; at > 0 && at < newest; at++ {
			if err := steps[at-1](tx); err != nil {
				return fmt.Errorf("migrate from format %d to %d: %w", at, at+1, err)
			}
		}
		return tx.Bucket(bucketMeta).Put(keyFormat, []byte(strconv.Itoa(newest)))
	})
}
