package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/carve-csi/carve/pkg/lvmd/apierror"
)

// lockTimeout bounds the wait for the file's lock, which only another lvmd could hold.
const lockTimeout = time.Second

var (
	bucketMeta    = []byte("meta")
	bucketVolumes = []byte("volumes")
	keyFormat     = []byte("format")
)

// Journal is an open journal.
type Journal struct {
	db         *bbolt.DB
	crashPoint func(point string)
}

// Open opens or creates the file, and migrates an earlier format. found is false if the file was
// absent, empty or damaged; aside is the path that it moved a damaged file to. An error of the
// kernel (no space, I/O error, too many open files) proves no damage: Open returns it and leaves
// the file. It does the same for a file of a later version, with a *FormatError.
func Open(path string) (j *Journal, found bool, aside string, err error) {
	return openWith(path, steps)
}

func openWith(path string, steps []step) (j *Journal, found bool, aside string, err error) {
	info, statErr := os.Stat(path)
	found = statErr == nil && info.Size() > 0
	j, err = tryOpen(path, steps)
	_, refused := errors.AsType[syscall.Errno](err)
	_, later := errors.AsType[*FormatError](err)
	if err == nil || !found || errors.Is(err, bolterrors.ErrTimeout) || refused || later {
		return j, found, "", err
	}
	damage := err
	aside = fmt.Sprintf("%s.damaged-%s", path, time.Now().UTC().Format("20060102T150405.000"))
	if err := os.Rename(path, aside); err != nil {
		return nil, false, "", fmt.Errorf("journal is damaged (%w) and cannot be moved aside: %w", damage, err)
	}
	j, err = tryOpen(path, steps)
	return j, false, aside, err
}

// tryOpen reads all of the file, to detect damage now.
func tryOpen(path string, steps []step) (j *Journal, err error) {
	var db *bbolt.DB
	// Reading a truncated file faults where the map extends beyond it.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		// bbolt panics on inconsistent pages.
		if r := recover(); r != nil {
			err = fmt.Errorf("journal %s: %v", path, r)
		}
		if err != nil && db != nil {
			_ = db.Close()
		}
	}()
	db, err = bbolt.Open(path, 0o600, &bbolt.Options{Timeout: lockTimeout})
	if err != nil {
		return nil, fmt.Errorf("journal %s: %w", path, err)
	}
	format, err := formatOf(db)
	if err != nil {
		return nil, fmt.Errorf("journal %s: %w", path, err)
	}
	if newest := 1 + len(steps); format > newest {
		return nil, &FormatError{Path: path, Found: format, Known: newest}
	}
	if err := db.View(readAll); err != nil {
		return nil, fmt.Errorf("journal %s: %w", path, err)
	}
	if err := migrate(db, format, steps); err != nil {
		return nil, fmt.Errorf("journal %s: %w", path, err)
	}
	j = &Journal{db: db}
	if _, err := j.Volumes(); err != nil {
		return nil, err
	}
	return j, nil
}

// readAll reads every page in use, and checks that each is used once: otherwise damage would show
// during an operation.
func readAll(tx *bbolt.Tx) error {
	var value []byte
	err := tx.ForEach(func(_ []byte, b *bbolt.Bucket) error {
		return b.ForEach(func(_, v []byte) error {
			value = append(value[:0], v...) // Copy it: a large value lies on pages that reading its key does not touch.
			return nil
		})
	})
	if err != nil {
		return err
	}
	var problems []error
	for problem := range tx.Check() {
		problems = append(problems, problem)
	}
	return errors.Join(problems...)
}

// Close closes the file.
func (j *Journal) Close() error { return j.db.Close() }

// Size returns the file's size in bytes, or zero if it is unknown.
func (j *Journal) Size() int64 {
	info, err := os.Stat(j.db.Path())
	if err != nil {
		return 0
	}
	return info.Size()
}

// SetCrashPoint sets the function to call before and after each commit, with the crash point's
// name, where tests may kill lvmd. It must precede all other use of the journal.
func (j *Journal) SetCrashPoint(f func(point string)) { j.crashPoint = f }

// Tx is a transaction that writes, valid only during the call that gets it.
type Tx struct{ tx *bbolt.Tx }

// Update runs a transaction, which has no effect if it returns an error.
func (j *Journal) Update(what func(*Tx) error) error {
	j.crash("journal: before a commit")
	err := j.db.Update(func(tx *bbolt.Tx) error { return what(&Tx{tx}) })
	j.crash("journal: after a commit")
	if err != nil {
		return fmt.Errorf("%w: %w", apierror.ErrNotStored, err)
	}
	return nil
}

func (j *Journal) crash(point string) {
	if j.crashPoint != nil {
		j.crashPoint(point)
	}
}

// put stores JSON, in a new bucket if need be.
func (t *Tx) put(bucket []byte, key string, value any) error {
	b, err := t.tx.CreateBucketIfNotExists(bucket)
	if err != nil {
		return err
	}
	encoded, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("%s %q: %w", bucket, key, err)
	}
	return b.Put([]byte(key), encoded)
}

func (t *Tx) remove(bucket []byte, keys ...string) error {
	b := t.tx.Bucket(bucket)
	if b == nil {
		return nil
	}
	for _, key := range keys {
		if err := b.Delete([]byte(key)); err != nil {
			return err
		}
	}
	return nil
}

// readBucket decodes a bucket's values, by key. damaged handles a value that cannot be decoded;
// with nil, that is left out.
func readBucket[T any](j *Journal, bucket []byte, damaged func(key string, err error) error) (map[string]T, error) {
	values := map[string]T{}
	err := j.db.View(func(tx *bbolt.Tx) error {
		b := tx.Bucket(bucket)
		if b == nil {
			return nil
		}
		return b.ForEach(func(k, encoded []byte) error {
			var value T
			if err := json.Unmarshal(encoded, &value); err != nil {
				return damaged(string(k), err)
			}
			values[string(k)] = value
			return nil
		})
	})
	return values, err
}

// forget is for buckets whose damaged values are dispensable.
func forget(string, error) error { return nil }

// fail is for buckets that must be complete.
func fail(what string) func(key string, err error) error {
	return func(key string, err error) error { return fmt.Errorf("journal: %s %q: %w", what, key, err) }
}
