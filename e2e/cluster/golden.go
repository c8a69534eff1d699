package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carve-csi/carve/e2e/cache"
	"github.com/carve-csi/carve/e2e/vm"
	"github.com/carve-csi/carve/e2e/vm/guest"
)

const (
	// stateSize is the size of a node's state disk in bytes; it takes space as it fills.
	stateSize = 16 << 30
	// goldenRevision is part of the cache key; raise it when the way in which the
	// disk is made changes.
	goldenRevision = "3"
	// goldenBound bounds the making of the disk, on a busy host.
	goldenBound = 5 * time.Minute
)

// goldenState returns the path of a state disk with the images, tars as docker
// save writes them, in its containerd. Unpacking them once, in a machine of its
// own, is what makes a cluster's nodes ready soon.
func goldenState(ctx context.Context, progress io.Writer, a assets, images []string) (string, error) {
	digest, err := cache.FileKey(images...)
	if err != nil {
		return "", err
	}
	key := cache.Key(goldenRevision, digest, a.platform.Base.RootDisk, containerdConfig)
	dir, err := cache.Entry(ctx, "node-state", key, func(ctx context.Context, dir string) error {
		fmt.Fprintln(progress, "making a node's state disk with the cluster's images")
		return makeGolden(ctx, a, images, dir)
	})
	return filepath.Join(dir, stateDisk), err
}

func makeGolden(ctx context.Context, a assets, images []string, dir string) error {
	disk := filepath.Join(dir, stateDisk)
	if err := makeStateDisk(ctx, disk); err != nil {
		return err
	}
	run, err := os.MkdirTemp(dir, "run-")
	if err != nil {
		return err
	}
	shared := filepath.Join(run, imagesTag)
	staged := map[string]string{} // by their marks
	for i, path := range images {
		file, err := stage(ctx, path, shared, fmt.Sprint(i))
		if err != nil {
			return err
		}
		name, digest, err := identify(path)
		if err != nil {
			return err
		}
		staged[imageMark(name, digest)] = filepath.Base(file)
	}
	share := vm.Share{Tag: imagesTag, Path: shared, ReadOnly: true}
	config := vm.Config{
		Name: "carve-golden", Dir: run, MemoryMiB: 1024,
		Disks:  []vm.Disk{{Path: disk, Serial: "state", Volatile: true}},
		Shares: []vm.Share{share},
		Guest: guest.Config{
			Modules:  []string{"loop"},
			Files:    []guest.File{containerdFile()},
			Steps:    append(stateSteps("/dev/vdb"), share.MountSteps(a.platform.Accelerator, imagesFolder)...),
			Services: []guest.Service{containerdService()},
		},
	}
	a.platform.Apply(&config)
	machine, err := vm.Start(config)
	if err != nil {
		return err
	}
	defer machine.Kill()
	ctx, cancel := context.WithTimeout(ctx, goldenBound)
	defer cancel()
	if err := machine.WaitReady(ctx, nil); err != nil {
		return err
	}
	for mark, file := range staged {
		if err := importOnce(ctx, machine.Agent(), mark, file); err != nil {
			return err
		}
	}
	return errors.Join(machine.PowerOff(ctx), os.RemoveAll(run))
}

// makeStateDisk makes an empty state disk.
func makeStateDisk(ctx context.Context, path string) error {
	if err := vm.MakeSparse(path, stateSize); err != nil {
		return err
	}
	output, err := exec.CommandContext(ctx, "mke2fs", "-q", "-F", "-t", "ext4", "-m", "0",
		"-E", "lazy_itable_init=1,lazy_journal_init=1", path).CombinedOutput()
	if err != nil {
		return fmt.Errorf("make a file system: %w: %s", err, output)
	}
	return nil
}

// copySparse copies a file without its holes.
func copySparse(ctx context.Context, source, destination string) error {
	from, err := os.Open(source)
	if err != nil {
		return err
	}
	defer from.Close()
	info, err := from.Stat()
	if err != nil {
		return err
	}
	to, err := os.OpenFile(destination, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer to.Close()
	if err := to.Truncate(info.Size()); err != nil {
		return err
	}
	for offset := int64(0); ctx.Err() == nil; {
		start, err := unix.Seek(int(from.Fd()), offset, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return to.Close() // Nothing but a hole is left.
		}
		if err != nil {
			return fmt.Errorf("copy %s: %w", source, err)
		}
		end, err := unix.Seek(int(from.Fd()), start, unix.SEEK_HOLE)
		if err != nil {
			return fmt.Errorf("copy %s: %w", source, err)
		}
		section := io.NewSectionReader(from, start, end-start)
		if _, err := io.Copy(io.NewOffsetWriter(to, start), section); err != nil {
			return fmt.Errorf("copy %s: %w", source, err)
		}
		offset = end
	}
	return ctx.Err()
}
