package filesystem

import "fmt"

// Profile says what the data of a file system are worth.
type Profile string

const (
	// Usual keeps what was written and synchronised over a crash of the machine.
	Usual Profile = ""
	// Scratch is for data that is not missed after a crash: the journal is not flushed,
	// fsync does not wait for the medium's write cache, and a file system that
	// was not unmounted cleanly is reformatted, empty, instead of being repaired. The journal is
	// there for speed (see ext4.mkfs) and never replayed, so faults in the replay of fast commits
	// do not matter. xfs shows only by its log that it was not unmounted, and btrfs is consistent by
	// design: these could give up little.
	Scratch Profile = "scratch"
)

// Use is what a file system is made and mounted for.
type Use struct {
	Type Type
	// DAX: files are mapped directly from persistent memory.
	DAX     bool
	Profile Profile
}

// Check fails unless the type can serve the use.
func (u Use) Check() error {
	if _, err := kindOf(u.Type); err != nil {
		return err
	}
	switch {
	case u.Profile != Usual && u.Profile != Scratch:
		return fmt.Errorf("profile %q is not known: allowed is %s, or none", u.Profile, Scratch)
	case u.Profile == Scratch && u.Type != Ext4:
		return fmt.Errorf("profile %s cannot be had with %s, which never does without its consistency: allowed is %s", Scratch, u.Type, Ext4)
	case u.DAX && u.Type == Btrfs:
		return fmt.Errorf("file system %s cannot be used on persistent memory: allowed are %s, %s", u.Type, Ext4, XFS)
	}
	return nil
}

// mountOptions are those that the profile adds, before those of the class.
// nobarrier: no flush of the medium's cache. noauto_da_alloc: a file that
// replaces another one by its name is not written out for it.
func (u Use) mountOptions() []string {
	if u.Profile != Scratch {
		return nil
	}
	return []string{"noatime", "nobarrier", "noauto_da_alloc"}
}

// JournalOptions are the mount options that the profile adds, before those of the class,
// for a file system as Probe finds it: the kernel refuses options of a journal where there
// is none.
// data=writeback: what is written to files does not wait for the journal, nor the other
// way round. commit: the journal commits every so many seconds only.
// noinit_itable: unused inode tables are not zeroed in the background.
func (u Use) JournalOptions(i Info) []string {
	if u.Profile != Scratch || !i.Journal {
		return nil
	}
	return []string{"data=writeback", "commit=300", "noinit_itable"}
}
