// Package cgroup finds the cgroups of Pods, and limits their input and output of block
// devices, by the kernel's control groups version 2. It knows nothing of volumes.
package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

var (
	// ErrNotV2 means that the node has no cgroups version 2 at the root. Version 1 does not
	// account what is written through the page cache, so that its limits do not hold.
	ErrNotV2 = errors.New("the node does not use cgroup v2")
	// ErrNoController means that the kernel has no controller "io", or that it cannot be
	// enabled for Pods.
	ErrNoController = errors.New("the cgroup controller io is not available")
	// ErrNoThrottling means that the kernel was built without CONFIG_BLK_DEV_THROTTLING.
	ErrNoThrottling = errors.New("the kernel cannot limit I/O: it has no io.max (CONFIG_BLK_DEV_THROTTLING)")
	// ErrNoPod means that a Pod has no cgroup: it is not there yet, or has ended.
	ErrNoPod = errors.New("the Pod has no cgroup")
	// ErrNoDevice means that the kernel has no such block device.
	ErrNoDevice = errors.New("there is no such device")
)

const (
	controller     = "io"
	controllers    = "cgroup.controllers"
	subtreeControl = "cgroup.subtree_control"
	ioMax          = "io.max"
	// kubepods is how the kubelet calls the parent of all Pods' cgroups: with the cgroupfs
	// driver, and behind the names of its parents and before ".slice" with that of systemd.
	kubepods = "kubepods"
	// depth is how far below the root the kubelet's cgroup may be.
	depth = 4
)

// Root is where the hierarchy of cgroups is mounted, such as /sys/fs/cgroup. Its methods may
// be called concurrently.
type Root string

// Check fails with ErrNotV2 or ErrNoController where no Pod's I/O can be limited.
func (r Root) Check() error {
	has, err := lists(filepath.Join(string(r), controllers))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: there is no %s in %s", ErrNotV2, controllers, string(r))
	case err != nil:
		return err
	case !has:
		return fmt.Errorf("%w: %s of %s does not list it", ErrNoController, controllers, string(r))
	}
	return nil
}

// lists reports whether a file of words has the controller's name.
func lists(file string) (bool, error) {
	text, err := os.ReadFile(file)
	return slices.Contains(strings.Fields(string(text)), controller), err
}

// Pods returns the directories of those Pods of a node that have a cgroup, by UID, of all
// classes of service, and of both cgroup drivers.
func (r Root) Pods(uids []string) (map[string]string, error) {
	wanted := map[string]string{}
	for _, uid := range uids {
		wanted["pod"+uid] = uid
		// systemd's hyphens mean parents.
		wanted["pod"+strings.ReplaceAll(uid, "-", "_")] = uid
	}
	found := map[string]string{}
	err := filepath.WalkDir(string(r), func(path string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // cgroups come and go
		case err != nil:
			return err
		case !entry.IsDir():
			return nil
		}
		below, err := filepath.Rel(string(r), path)
		if err != nil {
			return err
		}
		names := strings.Split(below, string(filepath.Separator))
		at := slices.IndexFunc(names, isKubepods)
		if at < 0 {
			if below != "." && len(names) >= depth {
				return fs.SkipDir
			}
			return nil
		}
		if uid, ok := wanted[podWord(names[len(names)-1])]; ok && len(names) > at+1 {
			found[uid] = path
			return fs.SkipDir
		}
		// Pods are in the parent of all, or in that of their class of service.
		if len(names) > at+2 || len(names) == at+2 && !isClass(names[at+1]) {
			return fs.SkipDir
		}
		return nil
	})
	return found, err
}

func isKubepods(name string) bool {
	name = strings.TrimSuffix(name, ".slice")
	return name == kubepods || strings.HasSuffix(name, "-"+kubepods)
}

// isClass reports whether a child of the parent of all Pods is that of a class of service.
func isClass(name string) bool {
	name = strings.TrimSuffix(name, ".slice")
	return name[strings.LastIndexByte(name, '-')+1:] == "burstable" || name[strings.LastIndexByte(name, '-')+1:] == "besteffort"
}

// podWord is the part of the name of a Pod's cgroup that names the Pod: all of it with the
// cgroupfs driver, what is behind the parents' names with that of systemd.
func podWord(name string) string {
	slice, ok := strings.CutSuffix(name, ".slice")
	if !ok {
		return name
	}
	return slice[strings.LastIndexByte(slice, '-')+1:]
}

// Set limits a device for a cgroup below the root, and reports whether it was limited
// otherwise before. Nothing is written where the limits are in force: the kernel would begin
// to count anew. Where the cgroup's parents do not let it have the controller, they are made
// to. ErrNoPod: the cgroup is gone.
func (r Root) Set(dir, device string, max Max) (changed bool, err error) {
	file := filepath.Join(dir, ioMax)
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) && max != (Max{}) {
		if err := r.enable(dir); err != nil {
			return false, err
		}
		text, err = os.ReadFile(file)
	}
	switch {
	case err != nil && gone(dir):
		return false, fmt.Errorf("%w: %s is gone", ErrNoPod, dir)
	case errors.Is(err, fs.ErrNotExist) && max == (Max{}):
		return false, nil // without the controller nothing is limited
	case errors.Is(err, fs.ErrNotExist):
		return false, ErrNoThrottling
	case err != nil:
		return false, err
	}
	now, err := parse(string(text))
	if err != nil {
		return false, fmt.Errorf("%s: %w", file, err)
	}
	if now[device] == max {
		return false, nil
	}
	err = os.WriteFile(file, []byte(max.line(device)), 0)
	switch {
	case errors.Is(err, syscall.ENODEV):
		return false, fmt.Errorf("%w: %s", ErrNoDevice, device)
	case err != nil && gone(dir):
		return false, fmt.Errorf("%w: %s is gone", ErrNoPod, dir)
	case err != nil:
		return false, err
	}
	return true, nil
}

func gone(dir string) bool {
	_, err := os.Stat(dir)
	return errors.Is(err, fs.ErrNotExist)
}

// enable lets a cgroup have the controller: all its parents must pass it on. The kubelet has
// it so where it may; systemd takes it back from slices for which nothing asked for it.
func (r Root) enable(dir string) error {
	below, err := filepath.Rel(string(r), dir)
	if err != nil || below == "." || !filepath.IsLocal(below) {
		return fmt.Errorf("cgroup %s is not below %s", dir, string(r))
	}
	parent := string(r)
	for _, name := range strings.Split(below, string(filepath.Separator)) {
		file := filepath.Join(parent, subtreeControl)
		has, err := lists(file)
		if err == nil && !has {
			err = os.WriteFile(file, []byte("+"+controller), 0)
		}
		switch {
		case err != nil && gone(dir):
			return fmt.Errorf("%w: %s is gone", ErrNoPod, dir)
		case err != nil:
			return fmt.Errorf("%w: %s does not pass it on: %w", ErrNoController, parent, err)
		}
		parent = filepath.Join(parent, name)
	}
	return nil
}
