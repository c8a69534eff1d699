package lvm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func TestAGroupThatACommandHasLockedIsNotLocked(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "lock", "lvm")
	unlock, err := lockGroup(dir, "carve")
	if err != nil {
		t.Fatalf("error %v", err)
	}
	if _, err := lockGroup(dir, "carve"); !errors.Is(err, ErrBusy) {
		t.Errorf("it is locked twice, error %v", err)
	}
	if other, err := lockGroup(dir, "other"); err != nil {
		t.Errorf("another group is locked, too, error %v", err)
	} else {
		other()
	}
	unlock()
	theirs, err := os.Open(filepath.Join(dir, "V_carve"))
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	if err := unix.Flock(int(theirs.Fd()), unix.LOCK_SH|unix.LOCK_NB); err != nil {
		t.Errorf("it stays locked: %v", err)
	}
	if _, err := lockGroup(dir, "carve"); !errors.Is(err, ErrBusy) {
		t.Errorf("it is locked beside a reader, error %v", err)
	}
}

func TestALockIsWaitedForUntilTheDeadline(t *testing.T) {
	dir := t.TempDir()
	unlock := must.Get(lockGroup(dir, "carve"))(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := waitForLock(ctx, dir, "carve"); !errors.Is(err, ErrTimedOut) || errors.Is(err, ErrBusy) {
		t.Errorf("at the deadline: error %v, want ErrTimedOut", err)
	}
	locked := make(chan error, 1)
	go func() {
		lock, err := waitForLock(t.Context(), dir, "carve")
		locked <- errors.Join(err, lock.Close())
	}()
	unlock()
	must.Succeed(t, <-locked)
}

func TestACommandKeepsTheLockThatItHolds(t *testing.T) {
	dir := t.TempDir()
	begun, goOn, program := filepath.Join(dir, "begun"), filepath.Join(dir, "go"), filepath.Join(dir, "lvm")
	script := fmt.Sprintf("#!/bin/sh\n: > %s\nwhile [ ! -e %s ]; do sleep 0.01; done\n", begun, goOn)
	must.Succeed(t, os.WriteFile(program, []byte(script), 0o700)) //nolint:gosec // it is run
	lock := must.Get(openLock(dir, "carve"))(t)
	defer lock.Close()
	fd, null := int(lock.Fd()), must.Get(os.Open(os.DevNull))(t)
	defer null.Close()
	ended := make(chan error, 1)
	go func() {
		r := &Runner{Binary: program, Timeout: time.Minute}
		_, err := r.runHolding(t.Context(), lock, "lvextend")
		ended <- err
	}()
	waittest.Succeeds(t, "the command begins", func() error { _, err := os.Stat(begun); return err })
	// This closes it here. Close must not run concurrently with the command's start.
	must.Succeed(t, unix.Dup3(int(null.Fd()), fd, unix.O_CLOEXEC))
	if _, err := lockGroup(dir, "carve"); !errors.Is(err, ErrBusy) {
		t.Errorf("while the command runs, the group is locked with error %v, want ErrBusy", err)
	}
	must.Succeed(t, os.WriteFile(goOn, nil, 0o600))
	must.Succeed(t, <-ended)
	waittest.Succeeds(t, "the lock is free", func() error {
		unlock, err := lockGroup(dir, "carve")
		if err == nil {
			unlock()
		}
		return err
	})
}
