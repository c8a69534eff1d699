package journal

import (
	"fmt"
	"strconv"

	"go.etcd.io/bbolt"
)

// A step makes the next format of a file in the one before. It runs in the transaction that also
// writes the format's number: a file has the one format or the other, wherever lvmd is killed.
type step func(tx *bbolt.Tx) error

// steps are all of them: steps[i] makes format i+2 of format i+1. A field that is added to a
// record, with a zero value that means what its absence did, and a bucket that is added, need no
// step: a version that does not know them leaves them out. What it would misread needs one. After a
// step, a version that does not know it refuses the file: see
// docs/decisions/crashes.md, "A version leaves alone what a later one wrote".
var steps = []step{}

// FormatError is returned for a file that a later version of lvmd wrote. Nothing was
// changed in it.
type FormatError struct {
	Path string
	// Found is the file's format, and Known the newest that this version knows.
	Found, Known int
}

func (e *FormatError) Error() string {
	return fmt.Sprintf("journal %s has format %d, and this version of lvmd knows formats up to %d: a later version wrote it, and nothing was changed in it; "+
		"install that version again, or move the file away: the volumes are then found by their tags, and wipes begin again", e.Path, e.Found, e.Known)
}

// formatOf reads a file's format; zero is that of a file in which nothing is yet.
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

// migrate makes a file's format the newest, in one transaction. It writes nothing to a file that
// has it: the disk may be full.
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
