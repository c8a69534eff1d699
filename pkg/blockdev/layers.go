package blockdev

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const loopMajor = 7

// Layer is a block device, or one below it.
type Layer struct {
	Name    string
	Mapping Mapping
	// OverDevice is true for a loop device attached to the node of a block device.
	OverDevice bool
}

// Layers returns a device and all devices below it, at any depth: the disk of a partition, the
// parts of mappings and arrays, and the device to whose node a loop device is attached. An
// error, such as ErrNotFound for a device that has gone, means that some are unknown. The
// driver of a loop device asks the file system of its file, which may never answer.
func Layers(n Number) ([]Layer, error) { return layersOf("/", n, loopFile) }

// layersOf takes "/" as root except in tests, and loopFile as loop.
func layersOf(root string, n Number, loop func(name string, n Number) (Number, error)) ([]Layer, error) {
	var all []Layer
	pending, seen := []Number{n}, map[Number]bool{n: true}
	for len(pending) > 0 {
		n, pending = pending[0], pending[1:]
		layer, below, err := readLayer(root, n, loop)
		if err != nil {
			return nil, fmt.Errorf("what block device %v lies on: %w", n, err)
		}
		all = append(all, layer)
		for _, b := range below {
			if !seen[b] {
				seen[b] = true
				pending = append(pending, b)
			}
		}
	}
	return all, nil
}

func readLayer(root string, n Number, loop func(string, Number) (Number, error)) (layer Layer, below []Number, err error) {
	dir, err := filepath.EvalSymlinks(filepath.Join(root, "sys/dev/block", n.String()))
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	if err != nil {
		return layer, nil, err
	}
	layer = Layer{Name: filepath.Base(dir), Mapping: readMapping(dir)}
	add := func(dir string) error {
		number, err := ParseNumber(attribute(dir, "dev"))
		below = append(below, number)
		return err
	}
	if attribute(dir, "partition") != "" {
		if err := add(filepath.Dir(dir)); err != nil {
			return layer, nil, err
		}
	}
	slaves, err := os.ReadDir(filepath.Join(dir, "slaves"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return layer, nil, err
	}
	for _, s := range slaves {
		if err := add(filepath.Join(dir, "slaves", s.Name())); err != nil {
			return layer, nil, err
		}
	}
	if n.Major == loopMajor && attribute(dir, "partition") == "" {
		file, err := loop(layer.Name, n)
		if err != nil {
			return layer, nil, err
		}
		if file != (Number{}) {
			layer.OverDevice = true
			below = append(below, file)
		}
	}
	return layer, below, nil
}

func readMapping(dir string) Mapping {
	return Mapping{
		Name:          attribute(dir, "dm/name"),
		LogicalVolume: strings.HasPrefix(attribute(dir, "dm/uuid"), logicalVolumeUUID),
	}
}

// loopFile returns the number of the block device to whose node a loop device is attached, or
// zero for a regular file. It asks the driver, which has the file open: the path in sysfs may
// be of another mount namespace, or outdated.
func loopFile(name string, n Number) (Number, error) {
	f, err := os.OpenFile("/dev/"+name, os.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return Number{}, err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return Number{}, fmt.Errorf("%s: %w", f.Name(), err)
	}
	if is := (Number{unix.Major(st.Rdev), unix.Minor(st.Rdev)}); st.Mode&unix.S_IFMT != unix.S_IFBLK || is != n {
		return Number{}, fmt.Errorf("%s: stale device node: it is %v, the loop device is %v: %w", f.Name(), is, n, ErrNotFound)
	}
	info, err := unix.IoctlLoopGetStatus64(int(f.Fd()))
	switch {
	case errors.Is(err, unix.ENXIO):
		return Number{}, fmt.Errorf("loop device %s: %w: it is attached to nothing", f.Name(), ErrNotFound)
	case err != nil:
		return Number{}, fmt.Errorf("the file of loop device %s cannot be read: %w", f.Name(), err)
	}
	// Before Linux 5.14, a regular file has the number of its file system here.
	if info.Rdevice == 0 || info.Rdevice == info.Device {
		return Number{}, nil
	}
	return Number{unix.Major(info.Rdevice), unix.Minor(info.Rdevice)}, nil
}
