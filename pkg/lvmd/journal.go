package lvmd

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
)

const (
	journalFormat = "1"
	// journalLockWait bounds the wait for the file's lock, which only another
	// lvmd could hold.
	journalLockWait = time.Second
)

var (
	bucketMeta    = []byte("meta")
	bucketVolumes = []byte("volumes")
	keyFormat     = []byte("format")
)

// journal is the durable memory of operations: one record per volume, in a
// bbolt file. Every method that returns nil has made its effect durable. It
// is safe for concurrent use.
type journal struct {
	db *database
}

// errJournal marks errors of the journal: nothing was done.
var errJournal = errors.New("the journal cannot be written")

// openJournal opens or makes the file. found is false when there was none
// that could be used: it was absent or empty, or it was damaged and has been
// moved aside to the returned path. What the kernel refuses (no space, an I/O
// error, too many open files) says nothing of what is in the file: it stays, and
// the error is returned.
func openJournal(path string) (j *journal, found bool, aside string, err error) {
	info, statErr := os.Stat(path)
	found = statErr == nil && info.Size() > 0
	j, err = tryOpen(path)
	var refused syscall.Errno
	if err == nil || !found || errors.Is(err, bolterrors.ErrTimeout) || errors.As(err, &refused) {
		return j, found, "", err
	}
	damage := err
	aside = fmt.Sprintf("%s.damaged-%s", path, time.Now().UTC().Format("20060102T150405.000"))
	if err := os.Rename(path, aside); err != nil {
		return nil, false, "", fmt.Errorf("journal is damaged (%w) and cannot be moved aside: %w", damage, err)
	}
	j, err = tryOpen(path)
	return j, false, aside, err
}

// tryOpen opens the file and reads all of it, so that damage is found now.
func tryOpen(path string) (j *journal, err error) {
	var db *bbolt.DB
	// Reading a file that was cut off faults where the map has no file.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		// bbolt panics on pages that make no sense.
		if r := recover(); r != nil {
			err = fmt.Errorf("journal %s: %v", path, r)
		}
		if err != nil && db != nil {
			_ = db.Close()
		}
	}()
	db, err = bbolt.Open(path, 0o600, &bbolt.Options{Timeout: journalLockWait})
	if err != nil {
		return nil, fmt.Errorf("journal %s: %w", path, err)
	}
	if err := prepare(db); err != nil {
		return nil, fmt.Errorf("journal %s: %w", path, err)
	}
	if err := db.View(readAll); err != nil {
		return nil, fmt.Errorf("journal %s: %w", path, err)
	}
	j = &journal{db: &database{DB: db}}
	if _, err := j.all(); err != nil {
		return nil, err
	}
	return j, nil
}

// prepare makes the buckets of a new file. It writes nothing to one that has them:
// the disk may be full.
func prepare(db *bbolt.DB) error {
	var format string
	err := db.View(func(tx *bbolt.Tx) error {
		if meta := tx.Bucket(bucketMeta); meta != nil && tx.Bucket(bucketVolumes) != nil {
			format = string(meta.Get(keyFormat))
		}
		return nil
	})
	if err != nil || format == journalFormat {
		return err
	}
	if format != "" {
		return fmt.Errorf("format %q is not known to this version", format)
	}
	return db.Update(func(tx *bbolt.Tx) error {
		for _, name := range [][]byte{bucketMeta, bucketVolumes} {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		return tx.Bucket(bucketMeta).Put(keyFormat, []byte(journalFormat))
	})
}

// readAll reads every page that is in use, and checks that each is used once:
// what is damaged now would else be found in the middle of an operation.
func readAll(tx *bbolt.Tx) error {
	err := tx.ForEach(func(_ []byte, b *bbolt.Bucket) error {
		return b.ForEach(func(_, _ []byte) error { return nil })
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

func (j *journal) close() error { return j.db.Close() }

// put stores a record in place of the volume's earlier one, and does the rest
// in the same transaction.
func (j *journal) put(r record, also ...func(*bbolt.Tx) error) error {
	b, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("journal: volume %s: %w", r.ID, err)
	}
	err = j.db.Update(func(tx *bbolt.Tx) error {
		if err := tx.Bucket(bucketVolumes).Put([]byte(r.ID), b); err != nil {
			return err
		}
		return each(tx, also)
	})
	if err != nil {
		return fmt.Errorf("%w: %w", errJournal, err)
	}
	return nil
}

// each does all of what is to be done in a transaction.
func each(tx *bbolt.Tx, also []func(*bbolt.Tx) error) error {
	for _, f := range also {
		if err := f(tx); err != nil {
			return err
		}
	}
	return nil
}

// do does something in a transaction of its own.
func (j *journal) do(what func(*bbolt.Tx) error) error {
	if err := j.db.Update(what); err != nil {
		return fmt.Errorf("%w: %w", errJournal, err)
	}
	return nil
}

// remove forgets volumes, known or not, and does the rest in the same
// transaction.
func (j *journal) remove(ids []string, also ...func(*bbolt.Tx) error) error {
	if len(ids) == 0 && len(also) == 0 {
		return nil
	}
	err := j.db.Update(func(tx *bbolt.Tx) error {
		for _, id := range ids {
			if err := tx.Bucket(bucketVolumes).Delete([]byte(id)); err != nil {
				return err
			}
		}
		return each(tx, also)
	})
	if err != nil {
		return fmt.Errorf("%w: %w", errJournal, err)
	}
	return nil
}

// all returns every record by id.
func (j *journal) all() (map[string]record, error) {
	records := map[string]record{}
	err := j.db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketVolumes).ForEach(func(k, v []byte) error {
			var r record
			if err := json.Unmarshal(v, &r); err != nil {
				return fmt.Errorf("journal: record %q: %w", k, err)
			}
			if r.ID != string(k) {
				return fmt.Errorf("journal: record %q says it is of %q", k, r.ID)
			}
			records[r.ID] = r
			return nil
		})
	})
	return records, err
}

// size is the file's size in bytes.
func (j *journal) size() int64 {
	info, err := os.Stat(j.db.Path())
	if err != nil {
		return 0
	}
	return info.Size()
}
