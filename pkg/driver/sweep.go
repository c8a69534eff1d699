package driver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"time"

	"github.com/carve-csi/carve/pkg/driver/kubelet"
	"github.com/carve-csi/carve/pkg/driver/mount"
	"github.com/carve-csi/carve/pkg/driver/nofollow"
	"github.com/carve-csi/carve/pkg/luks"
)

const (
	// sweepInterval is how often the node is searched for what leaked.
	sweepInterval = 5 * time.Minute
	// unmountTimeout is how long the others wait for one leak to be unmounted. A device that does not
	// answer may keep umount(2) for ever.
	unmountTimeout = time.Minute
)

// sweeper unmounts and closes what only a previous run of the plugin can have left.
type sweeper struct {
	mounts     mount.Interface
	luks       luks.Interface
	kubelet    kubelet.Dir
	locks      *locks
	devices    *devices
	unmounter  *unmounter
	encryption *encryption
	metrics    *Metrics
	log        *slog.Logger
}

// sweepAll unmounts what a previous run left mounted. A layer is removed only if
// it is certainly ours and certainly unused, which is when all of this holds:
//
//   - it is at a path of the form that the kubelet gives to CSI drivers: a
//     Pod's volume, the publish path of a raw block volume, or a staging path
//     with this driver's name in it;
//   - it shows the whole of a volume with an id of ours;
//   - the kubelet has no record beside the path. It has one from before the
//     first call until after the last, restarts included; it has
//     unmounted by itself what it has a record of;
//   - the kubelet's records are where they are looked for: there is a Pod, at least
//     one record of whatever driver, and nothing unknown beside the path;
//   - nothing else uses it: no container's subpath of a Pod's volume, no layer of
//     any kind for a staging path, and no mount in another mount namespace, such as
//     a container's, that would stay;
//   - no call for the volume runs, and the kernel does not find it busy.
//
// Then it closes encrypted volumes that nothing has open and the kubelet has no
// record of, see sweepMappings.
//
// It asks no other component, so it can run whatever state lvmd is in, at the same time as
// calls are served. A volume that was deleted in the meantime is free for
// wiping afterwards.
func (s *sweeper) sweepAll(ctx context.Context) {
	points, err := s.mounts.Below(string(s.kubelet))
	if err != nil {
		s.log.Error("cannot look for mounts that leaked", "error", err)
		return
	}
	var leaks []kubelet.Mount
	seen := map[string]bool{}
	for _, p := range points {
		if l, ok := s.kubelet.Forgotten(p.Path); ok && !seen[p.Path] {
			seen[p.Path] = true
			leaks = append(leaks, l)
		}
	}
	slices.SortStableFunc(leaks, func(a, b kubelet.Mount) int { return cmp.Compare(rank(a), rank(b)) })
	s.sweepMounts(ctx, leaks)
	s.sweepMappings(ctx)
}

// run sweeps at once, and again and again until ctx is done: what
// could not be judged, or was in use, may have become certain.
func (s *sweeper) run(ctx context.Context) {
	ticker := time.NewTicker(sweepInterval)
	defer ticker.Stop()
	for {
		s.sweepAll(ctx)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (s *sweeper) sweepMounts(ctx context.Context, leaks []kubelet.Mount) {
	for _, l := range leaks {
		if ctx.Err() != nil {
			return
		}
		done := make(chan struct{})
		// It has the volume's lock: it is not begun again, nor does a call touch the volume, until it ends.
		go func() {
			defer close(done)
			s.sweepOne(l)
		}()
		select {
		case <-done:
		case <-ctx.Done():
		case <-time.After(unmountTimeout):
			s.log.Warn("a mount that leaked is not unmounted yet: its device does not answer", "path", l.Path, "after", unmountTimeout)
		}
	}
}

func (s *sweeper) sweepOne(l kubelet.Mount) {
	id, removed, err := s.sweep(l)
	switch {
	case err != nil:
		s.metrics.swept(l.Kind(), "kept")
		s.log.Warn("a mount that leaked is left alone", "volume", id, "path", l.Path, "error", err)
	case removed:
		s.metrics.swept(l.Kind(), "removed")
		s.log.Info("removed a mount that leaked", "volume", id, "path", l.Path)
	}
}

// sweep unmounts one leak, unless it turns out to be none; then it changes
// nothing and returns false.
func (s *sweeper) sweep(l kubelet.Mount) (id string, removed bool, err error) {
	device, ok, err := s.devices.shownAt(l.Path)
	if err != nil || !ok {
		return "", false, err
	}
	name, uuid, err := s.mounts.Mapped(device)
	if err != nil {
		return "", false, err
	}
	if id = volumeOf(name, uuid); id == "" {
		return "", false, nil
	}
	release, err := s.locks.take(id)
	if err != nil {
		return id, false, err
	}
	defer release()
	// Under the lock once more: a call may have come meanwhile. One that comes
	// from now on is answered with Aborted, and comes again.
	if _, still := s.kubelet.Forgotten(l.Path); !still {
		return id, false, nil
	}
	if again, ok, err := s.devices.shownAt(l.Path); err != nil || !ok || again != device {
		return id, false, err
	}
	if err := s.kubelet.AbsenceReliable(l); err != nil {
		return id, false, err
	}
	if err := s.refuseUsed(device, l); err != nil {
		return id, false, err
	}
	if err := s.unmounter.thaw(id, l.Path); err != nil {
		return id, false, err
	}
	if err := s.mounts.Unmount(l.Path); err != nil {
		return id, false, s.withBelow(err, l.Path)
	}
	// No call to unmount it will come that would end the condition.
	s.unmounter.note(id, l.Path, nil)
	if l.Published {
		if err := nofollow.Remove(string(s.kubelet), l.Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return id, false, fmt.Errorf("it is unmounted, but its path is left: %w", err)
		}
	}
	return id, true, nil
}

// withBelow adds to the error of an unmount what is mounted below the path.
func (s *sweeper) withBelow(err error, path string) error {
	points, tableErr := s.mounts.Below(path)
	if tableErr != nil || len(points) == 0 {
		return err
	}
	return fmt.Errorf("%w: unmount %s first, which is mounted in it", err, points[len(points)-1].Path)
}

// rank orders leaks: what is published is unmounted before what is staged.
func rank(l kubelet.Mount) int {
	if l.Published {
		return 0
	}
	return 1
}

// refuseUsed fails if a leak's device is in use otherwise, here or in another mount
// namespace. A device node holds nothing in another one.
func (s *sweeper) refuseUsed(device mount.Device, l kubelet.Mount) error {
	user, err := s.userOf(device, l)
	if err == nil && user != "" {
		err = fmt.Errorf("it is in use at %s", user)
	}
	if err != nil {
		return err
	}
	inUse, err := s.mounts.InUse(device)
	if err != nil || !inUse {
		return err
	}
	holders, err := s.mounts.Holders(device, l.Path)
	switch {
	case err != nil:
		return fmt.Errorf("it is not known whether a container uses it: %w", err)
	case len(holders) > 0:
		return fmt.Errorf("it is in use: %s", holders[0])
	}
	return nil
}

// userOf returns a path at which a leak's device is in use otherwise, or "".
func (s *sweeper) userOf(device mount.Device, l kubelet.Mount) (string, error) {
	points, err := s.mounts.Below(l.Users)
	if err != nil {
		return "", err
	}
	for _, p := range points {
		if p.Path == l.Path {
			continue
		}
		if shown, whole := s.devices.deviceShown(p); shown == device && (whole || !memory(p)) {
			return p.Path, nil
		}
	}
	return "", nil
}
