package luks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carve-csi/carve/pkg/devmapper"
	"github.com/carve-csi/carve/pkg/filesystem"
)

// Mapping implements Interface with one ioctl. It ignores devices with that
// name that cryptsetup did not make.
func (c *Cryptsetup) Mapping(volume string) (Mapping, bool, error) {
	name := MappingPrefix + volume
	if len(name) > devmapper.MaxName {
		return Mapping{}, false, nil
	}
	d, err := devmapper.Status(name)
	switch {
	case none(err):
		return Mapping{}, false, nil
	case err != nil:
		return Mapping{}, false, fmt.Errorf("ask for the mapping of volume %s: %w", volume, err)
	case !strings.HasPrefix(d.UUID, UUIDPrefix):
		return Mapping{}, false, nil
	}
	return Mapping{Major: d.Major, Minor: d.Minor, Whole: d.Active && !d.Suspended}, true, nil
}

// none reports whether the device does not exist, or device-mapper itself does
// not.
func none(err error) bool {
	return errors.Is(err, devmapper.ErrNotFound) || errors.Is(err, fs.ErrNotExist)
}

// Mappings implements Interface.
func (c *Cryptsetup) Mappings() ([]string, error) {
	all, err := devmapper.List()
	switch {
	case none(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("look for mappings: %w", err)
	}
	var volumes []string
	for _, device := range all {
		volume, ours := strings.CutPrefix(device.Name, MappingPrefix)
		if !ours {
			continue
		}
		_, there, err := c.Mapping(volume)
		if err != nil {
			return nil, err
		}
		if there {
			volumes = append(volumes, volume)
		}
	}
	return volumes, nil
}

const (
	// busyTimeout is the time that Close waits for other processes to close the
	// mapping, such as programs that probe new devices.
	busyTimeout  = 2 * time.Second
	busyInterval = 50 * time.Millisecond
)

// Close implements Interface. It does not read the device, which may be dead.
// cryptsetup would read the header first, retry for seconds on a mapping in
// use, and not remove a mapping without a table, as left when it is killed.
func (c *Cryptsetup) Close(ctx context.Context, volume string) error {
	wrap := func(err error) error { return fmt.Errorf("close the encrypted volume %s: %w", volume, err) }
	if _, there, err := c.Mapping(volume); err != nil || !there {
		return wrap(cmp.Or(err, devmapper.ErrNotFound))
	}
	for begin := time.Now(); ; {
		err := devmapper.Remove(MappingPrefix + volume)
		switch {
		case err == nil:
			// A leftover node would later stand for another device.
			if err := os.Remove(Path(volume)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return wrap(err)
			}
			return nil
		case !errors.Is(err, devmapper.ErrBusy):
			return wrap(err)
		case time.Since(begin) > busyTimeout:
			return wrap(fmt.Errorf("%w: %w", ErrInUse, err))
		}
		select {
		case <-ctx.Done():
			return wrap(context.Cause(ctx))
		case <-time.After(busyInterval):
		}
	}
}

// cleared is the number of bytes that Clear overwrites at each end. All known
// signatures lie within.
const cleared = 1 << 20

// Clear implements Interface. If it times out, its operation keeps the mapping
// open, so nothing can close it.
func (c *Cryptsetup) Clear(device string) error {
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	if err := clearWithin(ctx, device); err != nil {
		return fmt.Errorf("clear the encrypted volume: %w", err)
	}
	return nil
}

func clearWithin(ctx context.Context, device string) error {
	_, err := filesystem.Do(ctx, device, func() (struct{}, error) { return struct{}{}, clearEnds(ctx, device) })
	return err
}

// clearEnds writes nothing if ctx is done once the device is open: the device
// may be another volume's by then.
func clearEnds(ctx context.Context, device string) error {
	// O_EXCL fails while a file system is mounted.
	f, err := os.OpenFile(device, os.O_WRONLY|unix.O_EXCL, 0)
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		return errors.Join(context.Cause(ctx), f.Close())
	}
	size, err := f.Seek(0, io.SeekEnd)
	if err == nil {
		zeroes := make([]byte, min(cleared, size))
		for _, at := range []int64{0, size - int64(len(zeroes))} {
			if _, writeErr := f.WriteAt(zeroes, at); writeErr != nil {
				err = writeErr
			}
		}
	}
	return errors.Join(err, f.Sync(), f.Close())
}
