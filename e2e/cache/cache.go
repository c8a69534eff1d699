// Package cache keeps what is slow to make (the Kubernetes binary, the kernel,
// root file systems, container images) in the user's cache folder, so that a
// second clone on the same machine finds it warm.
//
// An entry is a directory named by a kind and a key; the key is a digest of
// everything that went into it, so an entry never changes once it is made.
// Several processes may ask for the same entry at once: one makes it, under a
// file lock, the others wait. An entry appears by rename, so a crash leaves no
// half-made one.
package cache

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Root returns the cache folder: $XDG_CACHE_HOME/carve or ~/.cache/carve.
func Root() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the user's cache folder: %w", err)
	}
	return filepath.Join(base, "carve"), nil
}

// Key digests parts into a key. The order and the boundaries of the parts
// count.
func Key(parts ...string) string {
	h := sha256.New()
	for _, part := range parts {
		fmt.Fprintf(h, "%d:%s", len(part), part)
	}
	return hex.EncodeToString(h.Sum(nil))[:20]
}

// FileKey digests the contents of files, in the order given.
func FileKey(paths ...string) (string, error) {
	h := sha256.New()
	for _, path := range paths {
		if err := addFile(h, path); err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(h.Sum(nil))[:20], nil
}

func addFile(h io.Writer, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("digest a file: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("digest a file: %w", err)
	}
	fmt.Fprintf(h, "%d:", info.Size())
	if _, err := io.Copy(h, f); err != nil {
		return fmt.Errorf("digest %s: %w", path, err)
	}
	return nil
}

// Entry returns the directory of the entry kind/key, calling build to make it
// when it is not there. build fills the empty directory it is given, which is
// not the final path. The caller must not write to the returned directory.
func Entry(ctx context.Context, kind, key string, build func(ctx context.Context, dir string) error) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	parent := filepath.Join(root, kind)
	final := filepath.Join(parent, key)
	if _, err := os.Stat(final); err == nil {
		return final, nil
	}
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return "", fmt.Errorf("make the cache folder: %w", err)
	}
	unlock, err := lock(ctx, final+".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(final); err == nil {
		return final, nil
	}
	partial := final + ".partial"
	if err := os.RemoveAll(partial); err != nil {
		return "", fmt.Errorf("remove what an interrupted build left: %w", err)
	}
	if err := os.Mkdir(partial, 0o755); err != nil {
		return "", fmt.Errorf("make the cache entry: %w", err)
	}
	if err := build(ctx, partial); err != nil {
		return "", errors.Join(fmt.Errorf("make %s: %w", kind, err), os.RemoveAll(partial))
	}
	if err := os.Rename(partial, final); err != nil {
		return "", fmt.Errorf("publish the cache entry: %w", err)
	}
	return final, nil
}

// lock takes an exclusive lock on the file at path, polling so that ctx is
// honoured. The kernel drops the lock when the process dies.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the lock: %w", err)
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			_ = f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		select {
		case <-ctx.Done():
			_ = f.Close()
			return nil, fmt.Errorf("wait for another process that makes %s: %w", filepath.Base(path), ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}
