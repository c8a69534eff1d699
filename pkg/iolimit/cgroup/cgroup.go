// Package cgroup finds the cgroups of Pods and limits their block device I/O,
// with cgroup v2. It knows nothing of volumes.
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
	// ErrNotV2 means that the root has no cgroup v2. Version 1 does not account
	// for writes through the page cache, so its limits do not hold.
	ErrNotV2 = errors.New("the node does not use cgroup v2")
	// ErrNoController means that the controller "io" is missing or cannot be
	// enabled for Pods.
	ErrNoController = errors.New("the cgroup controller io is not available")
	// ErrNoThrottling means that the kernel was built without CONFIG_BLK_DEV_THROTTLING.
	ErrNoThrottling = errors.New("the kernel cannot limit I/O: it has no io.max (CONFIG_BLK_DEV_THROTTLING)")
	// ErrNoPod means that a Pod has no cgroup, not yet or no longer.
	ErrNoPod = errors.New("the Pod has no cgroup")
	// ErrNoDevice means that the kernel has no such block device.
	ErrNoDevice = errors.New("there is no such device")
)

const (
	controller     = "io"
	controllers    = "cgroup.controllers"
	subtreeControl = "cgroup.subtree_control"
	ioMax          = "io.max"
	// kubepods is the kubelet's name for the parent of all Pods' cgroups. The
	// systemd driver adds the parents' names before it and ".slice" behind.
	kubepods = "kubepods"
	depth    = 4
)

// Root is the mount point of the cgroup hierarchy, such as /sys/fs/cgroup.
// Methods may be called concurrently.
type Root string

// Check returns ErrNotV2 or ErrNoController if no Pod's I/O can be limited.
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

func lists(file string) (bool, error) {
	text, err := os.ReadFile(file)
	return slices.Contains(strings.Fields(string(text)), controller), err
}

// Pods maps the UIDs of Pods that have a cgroup to its directory, for all QoS
// classes and both cgroup drivers.
func (r Root) Pods(uids []string) (map[string]string, error) {
	wanted := map[string]string{}
	for _, uid := range uids {
		wanted["pod"+uid] = uid
		// In systemd's names hyphens separate parents.
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
		// Pods are below the common parent, or below their QoS class.
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

func isClass(name string) bool {
	name = strings.TrimSuffix(name, ".slice")
	return name[strings.LastIndexByte(name, '-')+1:] == "burstable" || name[strings.LastIndexByte(name, '-')+1:] == "besteffort"
}

// podWord returns the Pod's part of a cgroup's name. With systemd it follows
// the parents' names.
func podWord(name string) string {
	slice, ok := strings.CutSuffix(name, ".slice")
	if !ok {
		return name
	}
	return slice[strings.LastIndexByte(slice, '-')+1:]
}

// Set limits a device in a cgroup below the root and reports whether it changed
// the limits. It does not rewrite limits in force, which would restart the
// kernel's accounting. If needed it enables the controller in the parents.
// ErrNoPod means that the cgroup is gone.
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

// enable enables the controller in all parents of a cgroup. The kubelet does so
// if it can, but systemd disables it in slices that have not requested it.
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
