package mount

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/carve-csi/carve/pkg/driver/nofollow"
)

// BelowError means that a mount below one of ours was left. It matches
// unix.EBUSY, the result of unmounting ours.
type BelowError struct {
	Point
	Reason string
}

// Error names the mount.
func (e *BelowError) Error() string {
	return fmt.Sprintf("%s is mounted in it (%s), and is not unmounted: %s", e.Path, e.FSType, e.Reason)
}

// Unwrap returns unix.EBUSY.
func (e *BelowError) Unwrap() error { return unix.EBUSY }

// UnmountBelow implements Interface. It unmounts mounts without children, round
// by round, as another mount may hide one.
//
// An unmount propagates to all copies of the parent mount. A mount attached to
// the one at path was made in one of its copies, which all show the volume. A
// deeper one may be attached to a copy of a host's mount.
func (s System) UnmountBelow(path string, users []string) ([]Point, error) {
	var removed []Point
	for {
		own, err := mountinfo.GetMounts(nil)
		if err != nil {
			return removed, fmt.Errorf("read the mount table: %w", err)
		}
		below := lowest(own, path)
		if len(below) == 0 {
			return removed, nil
		}
		before := len(removed)
		var left error
		for _, m := range below {
			err := s.mayGo(own, m, path, users)
			if err == nil {
				err = s.unmountTop(m)
			}
			if err == nil {
				removed = append(removed, pointOf(m))
			} else if left == nil {
				left = err
			}
		}
		if left != nil && len(removed) == before {
			return removed, left
		}
		// A mount hidden by another cannot be reached by its path, and stays.
		now, err := mountinfo.GetMounts(nil)
		if err != nil {
			return removed, fmt.Errorf("read the mount table: %w", err)
		}
		gone := func(p *mountinfo.Info) bool {
			return !slices.ContainsFunc(now, func(m *mountinfo.Info) bool { return m.ID == p.ID })
		}
		if !slices.ContainsFunc(below, gone) {
			return removed, &BelowError{pointOf(below[0]), "its path leads elsewhere"}
		}
	}
}

// lowest returns childless mounts, longer paths first.
func lowest(own []*mountinfo.Info, path string) []*mountinfo.Info {
	parents := map[int]bool{}
	for _, m := range own {
		parents[m.Parent] = true
	}
	var found []*mountinfo.Info
	for _, m := range own {
		if strings.HasPrefix(m.Mountpoint, path+"/") && !parents[m.ID] {
			found = append(found, m)
		}
	}
	slices.SortStableFunc(found, func(a, b *mountinfo.Info) int { return strings.Compare(b.Mountpoint, a.Mountpoint) })
	return found
}

func (s System) mayGo(own []*mountinfo.Info, m *mountinfo.Info, path string, users []string) error {
	relative := strings.TrimPrefix(m.Mountpoint, path)
	for _, user := range users {
		if slices.ContainsFunc(own, func(o *mountinfo.Info) bool { return o.Mountpoint == user+relative }) {
			return &BelowError{pointOf(m), "it is seen at " + user + relative + " too, where the volume is in use"}
		}
	}
	parent := parentOf(own, m)
	if parent == nil || parent.Mountpoint == path || group(parent, "shared:") == "" {
		return nil
	}
	_, others, err := s.namespaces()
	if err != nil {
		return &BelowError{pointOf(m), fmt.Sprintf("it is not known what else would be unmounted with it: %v", err)}
	}
	all := slices.Concat(others, []namespace{{mounts: own}})
	for at := parent; at.Mountpoint != path && group(at, "shared:") != ""; {
		above := parentOf(own, at)
		if above == nil || !madeIn(above, at, all) {
			return &BelowError{pointOf(m), "it would be unmounted elsewhere on the node too, where the same is mounted as at " + at.Mountpoint +
				". Run mount --make-rprivate and then umount --recursive with that path, on the host and in the node agent's container"}
		}
		at = above
	}
	return nil
}

func parentOf(mounts []*mountinfo.Info, m *mountinfo.Info) *mountinfo.Info {
	i := slices.IndexFunc(mounts, func(p *mountinfo.Info) bool { return p.ID == m.Parent && p != m })
	if i < 0 {
		return nil
	}
	return mounts[i]
}

// madeIn reports whether every copy of m is attached to a copy of above, its
// parent: then all were made together.
func madeIn(above, m *mountinfo.Info, all []namespace) bool {
	copies, around := receiversOf(group(m, "shared:"), all), map[string]bool{}
	if shared := group(above, "shared:"); shared != "" {
		around = receiversOf(shared, all)
	}
	for _, n := range all {
		for _, c := range n.mounts {
			if c == m || !copies[group(c, "shared:")] && !copies[group(c, "master:")] {
				continue
			}
			p := parentOf(n.mounts, c)
			if p == nil || !around[group(p, "shared:")] && !around[group(p, "master:")] {
				return false
			}
		}
	}
	return true
}

// unmountTop's errors are *BelowError.
func (s System) unmountTop(m *mountinfo.Info) error {
	dir, name, err := nofollow.Parent(s.Trusted, m.Mountpoint)
	if err != nil {
		return &BelowError{pointOf(m), err.Error()}
	}
	defer dir.Close()
	err = unix.Unmount(handle(dir)+"/"+name, unix.UMOUNT_NOFOLLOW)
	switch {
	case err == nil, errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return nil // no mount point: another mount hides it
	case errors.Is(err, unix.EBUSY):
		return &BelowError{pointOf(m), "it is in use. Stop what uses it"}
	}
	return &BelowError{pointOf(m), err.Error()}
}
