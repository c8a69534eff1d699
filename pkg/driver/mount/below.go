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

// BelowError says that a mount below one of ours was left. It matches unix.EBUSY, which is what
// unmounting ours ends with.
type BelowError struct {
	Point
	// Reason says why the mount was left.
	Reason string
}

// Error names the mount.
func (e *BelowError) Error() string {
	return fmt.Sprintf("%s is mounted in it (%s), and is not unmounted: %s", e.Path, e.FSType, e.Reason)
}

// Unwrap returns unix.EBUSY.
func (e *BelowError) Unwrap() error { return unix.EBUSY }

// UnmountBelow implements Interface. It takes off mounts that have none below them, round by
// round, as such a mount can be hidden by another.
//
// What is unmounted here is unmounted in all copies of the mount that it is attached to. A mount
// attached to the one at the path was made in a copy of that, as all copies are of the volume.
// Deeper ones can be attached to a copy of what is the host's.
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
		// One that is hidden by another is not reached by its path, and is not gone.
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

// lowest returns the mounts below a path that have no mount below them, those with longer paths
// before those that they lie in.
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

// mayGo fails unless a mount below a path can be unmounted without harm elsewhere.
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

// madeIn reports whether all copies of a mount are attached to copies of the mount that it is
// attached to itself: nothing is a copy of it that was not made with it.
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

// unmountTop unmounts the topmost layer at the path of a mount, which fails with a *BelowError.
func (s System) unmountTop(m *mountinfo.Info) error {
	dir, name, err := nofollow.Parent(s.Trusted, m.Mountpoint)
	if err != nil {
		return &BelowError{pointOf(m), err.Error()}
	}
	defer dir.Close()
	err = unix.Unmount(handle(dir)+"/"+name, unix.UMOUNT_NOFOLLOW)
	switch {
	case err == nil, errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return nil // if it is not a mount point, it is hidden by another mount
	case errors.Is(err, unix.EBUSY):
		return &BelowError{pointOf(m), "it is in use. Stop what uses it"}
	}
	return &BelowError{pointOf(m), err.Error()}
}
