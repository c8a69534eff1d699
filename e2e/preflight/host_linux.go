package preflight

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

const (
	tunDevice    = "/dev/net/tun"
	kvmDevice    = "/dev/kvm"
	sharedMemory = "/dev/shm"
)

// look finds out what this machine has.
func look(needs Needs) (host, error) {
	h := host{system: runtime.GOOS, processor: runtime.GOARCH, root: os.Geteuid() == 0}
	cacheFolder, err := os.UserCacheDir()
	if err != nil {
		return h, err
	}
	cacheFolder = filepath.Join(cacheFolder, "carve")
	_, err = os.Stat(filepath.Join(cacheFolder, "kubernetes"))
	h.cold = errors.Is(err, fs.ErrNotExist)
	if h.cache, err = free(cacheFolder); err != nil {
		return h, err
	}
	if h.temp, err = free(os.TempDir()); err != nil {
		return h, err
	}
	if h.shared, err = free(sharedMemory); err != nil {
		return h, err
	}
	h.kvm = openable(kvmDevice)
	meminfo, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return h, err
	}
	if h.memoryMiB, err = available(string(meminfo)); err != nil {
		return h, err
	}
	if h.root && needs.Network {
		h.namespaces, h.tun = namespaces(), openable(tunDevice)
	}
	for program := range programs {
		if _, err := exec.LookPath(program); err != nil {
			h.absent = append(h.absent, program)
		}
	}
	slices.Sort(h.absent)
	return h, nil
}

func free(folder string) (space, error) {
	var stat syscall.Statfs_t
	if err := syscall.Statfs(nearest(folder), &stat); err != nil {
		return space{}, fmt.Errorf("free space of %s: %w", folder, err)
	}
	return space{folder, int(stat.Bavail * uint64(stat.Bsize) >> 20)}, nil
}

// available reads MemAvailable, in MiB.
func available(meminfo string) (int, error) {
	for line := range strings.Lines(meminfo) {
		fields := strings.Fields(line)
		if len(fields) == 3 && fields[0] == "MemAvailable:" && fields[2] == "kB" {
			kib, err := strconv.Atoi(fields[1])
			return kib >> 10, err
		}
	}
	return 0, errors.New("/proc/meminfo does not say how much memory is available")
}

// namespaces says why no network namespace can be made; nothing if one can.
func namespaces() string {
	made := make(chan error, 1)
	go func() {
		// The thread is in another namespace then. It is not unlocked, and so ends with
		// the goroutine.
		runtime.LockOSThread()
		made <- syscall.Unshare(syscall.CLONE_NEWNET)
	}()
	if err := <-made; err != nil {
		return "none can be made: " + err.Error()
	}
	return ""
}

// openable says why a device cannot be opened; nothing if it can.
func openable(device string) string {
	f, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		return err.Error()
	}
	_ = f.Close()
	return ""
}
