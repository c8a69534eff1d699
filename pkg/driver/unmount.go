package driver

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/driver/csierror"
	"github.com/carve-csi/carve/pkg/driver/kubelet"
	"github.com/carve-csi/carve/pkg/driver/mount"
	"github.com/carve-csi/carve/pkg/driver/nofollow"
)

// unmounter is safe for concurrent use, except for calls with the same path.
type unmounter struct {
	mounts  mount.Interface
	kubelet kubelet.Dir
	devices *devices
	log     *slog.Logger

	mu      sync.Mutex
	thawing map[string]bool
	// waiting maps paths to the reason why the last attempt failed.
	waiting map[string]waiting
}

// waiting is the reason why a volume is still at a path. id is the kubelet's.
type waiting struct{ id, why string }

// leave turns a failure into a condition of the volume.
func (u *unmounter) leave(id, path string) error {
	err := u.unmount(id, path)
	if err != nil {
		err = fmt.Errorf("volume %s: %w", id, err)
	}
	u.note(id, path, err)
	return err
}

// unmount also unmounts below the path: a Pod with Bidirectional mount
// propagation leaves its own mounts in the volume, and the container runtime's,
// such as the termination message file.
func (u *unmounter) unmount(id, path string) error {
	err := u.mounts.Unmount(path)
	if !errors.Is(err, syscall.EBUSY) {
		return err
	}
	users, usersErr := u.usersBeside(path)
	if usersErr != nil {
		return errors.Join(err, usersErr)
	}
	removed, leftErr := u.mounts.UnmountBelow(path, users)
	for _, p := range removed {
		u.log.Info("unmounted what was mounted in a volume that is unmounted", "volume", id, "path", p.Path, "type", p.FSType)
	}
	switch {
	case leftErr != nil:
		return fmt.Errorf("umount %s: %w", path, leftErr)
	case len(removed) == 0:
		return err
	}
	return u.mounts.Unmount(path)
}

const thawTimeout = 20 * time.Second

// thaw thaws the file system at a path if no other path has it mounted. A
// frozen file system (fsfreeze(8)) outlives its last mount in the kernel, and
// the next mount shows it, still frozen. Failures are only logged, as a dead
// device must be unmounted all the same. A thaw that hangs is an error: until
// it returns, nothing may be done with the volume.
func (u *unmounter) thaw(id, path string) error {
	alone, err := u.alone(path)
	if err != nil || !alone {
		return err
	}
	if done := u.beginThaw(id, path); done != nil {
		select {
		case <-done:
			return nil
		case <-time.After(thawTimeout):
		}
	}
	return csierror.New(codes.DeadlineExceeded, fmt.Errorf("volume %s: thaw the file system at %s: its device does not answer", id, path))
}

// beginThaw starts a thaw, or returns nil if one is running.
func (u *unmounter) beginThaw(id, path string) (done chan struct{}) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.thawing[id] {
		return nil
	}
	if u.thawing == nil {
		u.thawing = map[string]bool{}
	}
	u.thawing[id], done = true, make(chan struct{})
	go func() {
		defer close(done)
		thawed, err := u.mounts.Thaw(path)
		switch {
		case err != nil:
			u.log.Warn("it is not known whether a file system is frozen", "volume", id, "path", path, "error", err)
		case thawed:
			u.log.Warn("thawed a file system that was left frozen", "volume", id, "path", path)
		}
		u.mu.Lock()
		defer u.mu.Unlock()
		delete(u.thawing, id)
	}()
	return done
}

func (u *unmounter) alone(path string) (bool, error) {
	device, shown, err := u.devices.shownAt(path)
	if err != nil || !shown {
		return false, err
	}
	points, err := u.mounts.Below(string(u.kubelet))
	return !slices.ContainsFunc(points, func(p mount.Point) bool { return p.Device == device && p.Path != path }), err
}

func (u *unmounter) usersBeside(path string) ([]string, error) {
	points, err := u.mounts.Below(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	for _, p := range points {
		device, whole := u.devices.deviceShown(p)
		if p.Path != path || !whole {
			continue
		}
		if name, uuid, err := u.mounts.Mapped(device); err != nil {
			return nil, err
		} else if volumeOf(name, uuid) == "" {
			continue
		}
		shown, err := u.devices.layersOf(device)
		var users []string
		for _, user := range shown {
			if _, ofPod := u.kubelet.UserOf(user); ofPod && user != path && !u.waits(user) {
				users = append(users, user)
			}
		}
		return users, err
	}
	return nil, fmt.Errorf("no volume is mounted at %s: what is mounted there is left alone", path)
}

const shownStray = 3

// removeTarget keeps a nonempty directory: its contents were written while
// nothing was mounted, and are not ours to delete.
func (u *unmounter) removeTarget(id, path string) error {
	err := nofollow.Remove(string(u.kubelet), path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = nil
	case errors.Is(err, syscall.ENOTEMPTY):
		err = csierror.New(codes.FailedPrecondition, fmt.Errorf("volume %s is unmounted from its target path, which is kept, "+
			"because it has %s, written while the volume was not mounted. Move that elsewhere or delete it: %w", id, stray(path), err))
	case err != nil:
		err = fmt.Errorf("volume %s is unmounted from its target path: %w", id, err)
	}
	u.note(id, path, err)
	return err
}

func stray(path string) string {
	dir, err := os.Open(path)
	if err != nil {
		return "files"
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(shownStray + 1)
	more := ""
	if len(names) > shownStray {
		names, more = names[:shownStray], " and more"
	}
	for i, name := range names {
		names[i] = fmt.Sprintf("%.100q", name)
	}
	return strings.Join(names, ", ") + more
}

// note clears the reason if err is nil.
func (u *unmounter) note(id, path string, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if err == nil {
		delete(u.waiting, path)
		return
	}
	if u.waiting == nil {
		u.waiting = map[string]waiting{}
	}
	u.waiting[path] = waiting{id, err.Error()}
}

func (u *unmounter) waits(path string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	_, is := u.waiting[path]
	return is
}

// health returns the reason why a volume could not be unmounted, or nil. With
// several paths it always picks the same: every new message is recorded and
// reported.
func (u *unmounter) health(v *lvmdv1.Volume) *csi.VolumeHealth_VolumeHealthEntry {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, path := range slices.Sorted(maps.Keys(u.waiting)) {
		w := u.waiting[path]
		if w.id != v.GetId() && w.id != v.GetName() {
			continue
		}
		message := w.why
		if pod, ok := u.kubelet.UserOf(path); ok {
			message = fmt.Sprintf("Pod %s ends when this is resolved: %s", pod, message)
		}
		return &csi.VolumeHealth_VolumeHealthEntry{
			Status: csi.VolumeHealthErrorType_DEGRADED, Reason: ReasonUnmountFails, Message: cut(message),
		}
	}
	return nil
}
