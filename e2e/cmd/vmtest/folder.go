package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// folderPattern is how the folders of runs are named.
const folderPattern = "carve-vm-test-"

// makeFolder makes the folder of this run, for the machine's disks and what is
// compiled, and removes those of runs that were killed: the lock on a folder is
// its owner's for as long as the owner runs. The folder goes with remove.
func makeFolder() (dir string, remove func() error, err error) {
	if err := removeAbandoned(); err != nil {
		return "", nil, err
	}
	for {
		dir, err = os.MkdirTemp("", folderPattern)
		if err != nil {
			return "", nil, fmt.Errorf("make a folder: %w", err)
		}
		// Another run may have taken it for abandoned just before it was locked.
		if lock, err := lockFolder(dir); err == nil {
			return dir, func() error { return errors.Join(os.RemoveAll(dir), lock.Close()) }, nil
		}
	}
}

func removeAbandoned() error {
	folders, err := filepath.Glob(filepath.Join(os.TempDir(), folderPattern+"*"))
	if err != nil {
		return err
	}
	for _, folder := range folders {
		lock, err := lockFolder(folder)
		if err != nil {
			continue // It is in use, or just gone.
		}
		if err := errors.Join(os.RemoveAll(folder), lock.Close()); err != nil {
			return fmt.Errorf("remove the folder of a run that was killed: %w", err)
		}
	}
	return nil
}

// lockFolder locks the folder itself, at once or not at all.
func lockFolder(dir string) (*os.File, error) {
	file, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}
