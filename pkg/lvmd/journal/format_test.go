package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/carve-csi/carve/pkg/lvmd/spec"
	"github.com/carve-csi/carve/pkg/must"
)

// renamed simulates two future steps: one writes the volumes' groups in capital letters, the next
// reads these.
func renamed(calls *int, during func(call int)) []step {
	rename := func(from, to string) step {
		return func(tx *bbolt.Tx) error {
			b := tx.Bucket(bucketVolumes)
			records := map[string]spec.Record{}
			err := b.ForEach(func(k, v []byte) error {
				var r spec.Record
				err := json.Unmarshal(v, &r)
				records[string(k)] = r
				return err
			})
			if err != nil {
				return err
			}
			for k, r := range records {
				if r.Group != from {
					return errors.New("group " + r.Group)
				}
				r.Group = to
				encoded, err := json.Marshal(r)
				if err != nil {
					return err
				}
				if err := b.Put([]byte(k), encoded); err != nil {
					return err
				}
			}
			*calls++
			if during != nil {
				during(*calls)
			}
			return nil
		}
	}
	return []step{rename("g", "G"), rename("G", "H")}
}

func written(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "journal.db")
	j := open(t, path)
	for _, id := range []string{"cv1", "cv2", "cv3"} {
		must.Succeed(t, j.PutVolume(spec.Record{ID: id, Group: "g", Phase: spec.Deleting, Wiped: 4096}))
	}
	must.Succeed(t, j.Close())
	return path
}

func groups(t *testing.T, path string, steps []step) []string {
	t.Helper()
	j, found, aside, err := openWith(path, steps)
	if err != nil || !found || aside != "" {
		t.Fatalf("found %v, moved aside %q, error %v", found, aside, err)
	}
	defer j.Close()
	records := must.Get(j.Volumes())(t)
	if len(records) != 3 {
		t.Errorf("%d volumes, want 3", len(records))
	}
	names := map[string]bool{}
	for _, r := range records {
		if names[r.Group] = true; r.Wiped != 4096 || r.Phase != spec.Deleting {
			t.Errorf("record %+v", r)
		}
	}
	return slices.Sorted(maps.Keys(names))
}

func TestAJournalOfAnEarlierFormatIsMigratedStepByStepAndOnce(t *testing.T) {
	path, calls := written(t), 0
	steps := renamed(&calls, nil)
	for i, c := range []struct {
		known []step
		want  string
		calls int
	}{{steps[:0], "g", 0}, {steps[:1], "G", 1}, {steps[:1], "G", 1}, {steps, "H", 2}, {steps, "H", 2}} {
		if got := groups(t, path, c.known); !slices.Equal(got, []string{c.want}) || calls != c.calls {
			t.Errorf("opening %d: groups %q, %d steps so far; want %q, %d", i, got, calls, c.want, c.calls)
		}
	}
	path, calls = written(t), 0
	if got := groups(t, path, renamed(&calls, nil)); !slices.Equal(got, []string{"H"}) || calls != 2 {
		t.Errorf("over two formats at once: groups %q, %d steps", got, calls)
	}
	// A new file has nothing to migrate.
	calls = 0
	j, found, _, err := openWith(filepath.Join(t.TempDir(), "journal.db"), renamed(&calls, nil))
	if err != nil || found || calls != 0 {
		t.Fatalf("a new file: found %v, %d steps, error %v", found, calls, err)
	}
	must.Succeed(t, j.Close())
}

// It covers what a kill leaves in each step, and each mixture of old and new pages that a power cut
// leaves during the commit: bbolt writes the file's two heads last.
func TestAMigrationThatIsInterruptedIsAsIfItHadNotBegun(t *testing.T) {
	path, calls := written(t), 0
	before := must.Get(os.ReadFile(path))(t)
	left := map[string][]byte{}
	groups(t, path, renamed(&calls, func(call int) {
		left[[]string{"", "in the first step", "in the second step"}[call]] = must.Get(os.ReadFile(path))(t)
	}))
	after := must.Get(os.ReadFile(path))(t)
	heads := 2 * os.Getpagesize()
	if bytes.Equal(before[:heads], after[:heads]) || bytes.Equal(before[heads:], after[heads:len(before)]) {
		t.Fatal("the migration changed no head, or no page")
	}
	left["with all pages written, and no head"] = append(bytes.Clone(before[:heads]), after[heads:]...)
	middle := heads + (len(after)-heads)/2/os.Getpagesize()*os.Getpagesize()
	left["with half of the pages written"] = slices.Concat(before[:heads], after[heads:middle], before[min(middle, len(before)):])
	for when, content := range left {
		t.Run(when, func(t *testing.T) {
			calls = 0
			for _, c := range []struct {
				known []step
				want  string
			}{{nil, "g"}, {renamed(&calls, nil), "H"}} {
				must.Succeed(t, os.WriteFile(path, content, 0o600))
				if got := groups(t, path, c.known); !slices.Equal(got, []string{c.want}) {
					t.Errorf("a version that knows %d steps reads the groups %q, want %q", len(c.known), got, c.want)
				}
			}
		})
	}
}

func TestAJournalOfALaterFormatIsRefusedAndLeftAsItIs(t *testing.T) {
	path, calls := written(t), 0
	groups(t, path, renamed(&calls, nil))
	before := must.Get(os.ReadFile(path))(t)
	j, found, aside, err := Open(path)
	if later, ok := errors.AsType[*FormatError](err); j != nil || !found || aside != "" || !ok || *later != (FormatError{Path: path, Found: 3, Known: 1}) {
		t.Fatalf("opened %v, found %v, moved aside %q, error %v", j, found, aside, err)
	}
	for _, part := range []string{path, "format 3", "formats up to 1", "install that version again", "by their tags"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error does not say %q: %v", part, err)
		}
	}
	if now := must.Get(os.ReadFile(path))(t); !bytes.Equal(before, now) {
		t.Error("the file was changed")
	}
	if got := groups(t, path, renamed(&calls, nil)); !slices.Equal(got, []string{"H"}) {
		t.Errorf("the later version then reads %q", got)
	}
}

func TestAFormatThatIsNoNumberIsDamage(t *testing.T) {
	for _, format := range []string{"x", "0", "-1", ""} {
		path := written(t)
		j := open(t, path)
		must.Succeed(t, j.Update(func(tx *Tx) error { return tx.tx.Bucket(bucketMeta).Put(keyFormat, []byte(format)) }))
		must.Succeed(t, j.Close())
		j, found, aside, err := Open(path)
		if err != nil || found || aside == "" {
			t.Fatalf("format %q: found %v, moved aside %q, error %v", format, found, aside, err)
		}
		must.Succeed(t, j.Close())
		must.Get(os.Stat(aside))(t)
	}
}
