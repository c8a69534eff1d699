package filesystem

import "fmt"

// Profile is the worth of a file system's data.
type Profile string

const (
	// Usual keeps synchronized data over a crash of the machine.
	Usual Profile = ""
	// Scratch is for data that is not missed after a crash. The journal is not
	// flushed, fsync does not wait for the medium's write cache, and a file
	// system that was not unmounted cleanly is reformatted instead of repaired.
	// The journal exists only for speed (see ext4.mkfs) and is never replayed,
	// so bugs in the replay of fast commits do not matter. xfs shows only in
	// its log that it was not unmounted, and btrfs is consistent by design:
	// both could give up little.
	Scratch Profile = "scratch"
)

// Use is the purpose of a file system.
type Use struct {
	Type Type
	// DAX maps files directly from persistent memory.
	DAX     bool
	Profile Profile
}

// Check fails unless the type supports the use.
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

// mountOptions returns the profile's options, which precede the class's.
// nobarrier: do not flush the medium's cache. noauto_da_alloc: do not write out
// a file that replaces another by renaming.
func (u Use) mountOptions() []string {
	if u.Profile != Scratch {
		return nil
	}
	return []string{"noatime", "nobarrier", "noauto_da_alloc"}
}

// JournalOptions returns the profile's mount options for a file system as
// probed; they precede the class's. The kernel refuses journal options if there
// is no journal. data=writeback: file data and journal do not wait for each
// other. commit: seconds between journal commits. noinit_itable: do not zero
// unused inode tables in the background.
func (u Use) JournalOptions(i Info) []string {
	if u.Profile != Scratch || !i.Journal {
		return nil
	}
	return []string{"data=writeback", "commit=300", "noinit_itable"}
}
