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
	sweepInterval = 5 * time.Minute
	// unmountTimeout bounds the wait for one leak before the next. If a device
	// does not answer, umount(2) may never return.
	unmountTimeout = time.Minute
)

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

// sweepAll unmounts leaked mounts. It removes a layer only if it is certainly
// Carve's and certainly unused, which requires all of this:
//
//   - its path has the form that the kubelet gives to CSI drivers: a Pod's
//     volume, the publish path of a raw block volume, or a staging path with
//     this driver's name in it;
//   - it shows a whole volume with an id that lvmd generates;
//   - the kubelet has no record beside the path. The record exists from before
//     the first call until after the last, restarts included; the kubelet
//     unmounts by itself whatever has a record;
//   - the kubelet's records are found in place: at least one Pod, at least one
//     record of any driver, and nothing unknown beside the path;
//   - nothing else uses it: for a Pod's volume no container's subpath, for a
//     staging path no layer at all, and no mount in another mount namespace,
//     such as a container's, that would remain;
//   - no call for the volume runs, and the kernel does not report it busy.
//
// It then closes unused encrypted volumes, see sweepMappings.
//
// It needs no other component, so it works in any state of lvmd and while calls
// are served. It also releases volumes deleted meanwhile for wiping.
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

// run sweeps at once and every sweepInterval until ctx is done. A leak kept as
// uncertain or in use may be removable later.
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
		// It holds the volume's lock: until it ends, no sweep or call touches
		// the volume.
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
	// Recheck under the lock: a call may have arrived. Later ones get Aborted
	// and are retried.
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
	// No unmount call will arrive to clear the condition.
	s.unmounter.note(id, l.Path, nil)
	if l.Published {
		if err := nofollow.Remove(string(s.kubelet), l.Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return id, false, fmt.Errorf("it is unmounted, but its path is left: %w", err)
		}
	}
	return id, true, nil
}

func (s *sweeper) withBelow(err error, path string) error {
	points, tableErr := s.mounts.Below(path)
	if tableErr != nil || len(points) == 0 {
		return err
	}
	return fmt.Errorf("%w: unmount %s first, which is mounted in it", err, points[len(points)-1].Path)
}

func rank(l kubelet.Mount) int {
	if l.Published {
		return 0
	}
	return 1
}

// refuseUsed fails if anything else uses the leak's device, here or in another
// mount namespace. A device node in another namespace does not count.
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
