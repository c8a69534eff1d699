package driver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"reflect"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/carve-csi/carve/api/conditions"
	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/driver/kubelet"
	"github.com/carve-csi/carve/pkg/driver/lvmdclient"
	"github.com/carve-csi/carve/pkg/driver/mount"
	"github.com/carve-csi/carve/pkg/iolimit"
)

// ReasonIOLimitsNotApplied says that a Pod reads and writes the volume faster than its limits allow.
const ReasonIOLimitsNotApplied = conditions.IOLimitsNotApplied

// limitsInterval is how often lvmd and the mount table are read for the request of limits: a
// changed limit is requested so much later. What the plugin publishes is requested at once.
const limitsInterval = 2 * time.Second

// IOLimitDirs are the directories that the node plugin shares with the component that limits
// I/O; the zero value means that there is no such component on the node.
type IOLimitDirs struct {
	// Requests is written by the node plugin, Reports by the component.
	Requests, Reports string
}

// ioLimits requests that the I/O of Pods be limited, and reads the component's reports. The
// request is derived from lvmd and the mount table, so a restart loses nothing.
type ioLimits struct {
	dirs       IOLimitDirs
	mounts     mount.Interface
	kubelet    kubelet.Dir
	volumes    lvmdclient.Client
	devices    *devices
	encryption *encryption
	log        *slog.Logger
	// began is when the plugin started: for iolimit.StaleAfter from then on, a missing report is
	// no problem.
	began time.Time
	now   func() time.Time
	// wake has run look at once. It is a channel of one.
	wake chan struct{}
}

// published wakes run after a volume was published: its limits are requested at once.
func (l *ioLimits) published() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// run keeps the request current until ctx is done.
func (l *ioLimits) run(ctx context.Context) {
	if l.dirs == (IOLimitDirs{}) {
		return
	}
	ticker := time.NewTicker(limitsInterval)
	defer ticker.Stop()
	var last *iolimit.Request
	for failing := false; ; {
		err := l.requestOnce(ctx, &last)
		if err != nil && ctx.Err() == nil && !failing {
			l.log.Warn("limits of I/O cannot be requested; it is tried again", "error", err)
		}
		failing = err != nil
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-l.wake:
		}
	}
}

// requestOnce writes the request, unless last is the same.
func (l *ioLimits) requestOnce(ctx context.Context, last **iolimit.Request) error {
	request, err := l.request(ctx)
	if err != nil || *last != nil && reflect.DeepEqual(request, **last) {
		return err
	}
	if err := request.Write(l.dirs.Requests); err != nil {
		return err
	}
	*last = &request
	return nil
}

// request lists the volumes that Pods use.
func (l *ioLimits) request(ctx context.Context) (iolimit.Request, error) {
	var request iolimit.Request
	volumes, err := l.volumes.AllReady(ctx)
	if err != nil {
		return request, err
	}
	points, err := l.mounts.Below(string(l.kubelet))
	if err != nil {
		return request, err
	}
	users := l.users(points)
	for _, v := range volumes {
		// Of an encrypted volume the kernel sees the Pods' requests at the mapping; below it
		// they are the kernel's own.
		plain, open, err := l.encryption.opened(v)
		if err != nil {
			return request, fmt.Errorf("volume %s: %w", v.GetId(), err)
		}
		device := deviceOf(plain)
		if !open || len(users[device]) == 0 {
			continue
		}
		request.Volumes = append(request.Volumes, iolimit.Volume{
			ID: v.GetId(), Device: iolimit.Device{Major: device.Major, Minor: device.Minor}, Pods: users[device], Limits: iolimit.FromProto(v.GetIoLimits()),
		})
	}
	return request, nil
}

// users returns the UIDs of the Pods that have each device, sorted.
func (l *ioLimits) users(points []mount.Point) map[mount.Device][]string {
	all := map[mount.Device][]string{}
	for _, p := range points {
		pod, ok := l.kubelet.UserOf(p.Path)
		if !ok {
			continue
		}
		if device, whole := l.devices.deviceShown(p); whole && !slices.Contains(all[device], pod) {
			all[device] = append(all[device], pod)
		}
	}
	for _, pods := range all {
		slices.Sort(pods)
	}
	return all
}

// health says why the limits of a volume that a Pod uses are not applied, or nothing. v is
// as its users see it.
func (l *ioLimits) health(v *lvmdv1.Volume, points []mount.Point) *csi.VolumeHealth_VolumeHealthEntry {
	if v.GetIoLimits() == nil || len(l.users(points)[deviceOf(v)]) == 0 {
		return nil
	}
	problem := l.problem(v.GetId())
	if problem == "" {
		return nil
	}
	return &csi.VolumeHealth_VolumeHealthEntry{Status: csi.VolumeHealthErrorType_DEGRADED, Reason: ReasonIOLimitsNotApplied, Message: cut(problem)}
}

func (l *ioLimits) problem(id string) string {
	if l.dirs == (IOLimitDirs{}) {
		return "the volume has I/O limits, and the component that applies them is not installed on the node"
	}
	report, err := iolimit.ReadReport(l.dirs.Reports)
	now := l.now()
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return "what limits I/O on the node left no readable report: " + err.Error()
	case err != nil && now.Sub(l.began) < iolimit.StaleAfter:
		return ""
	case err != nil || now.Sub(report.At) > iolimit.StaleAfter:
		return "the container io-limits of the node's Pod carve-node does not run"
	}
	if report.Problem != "" {
		return report.Problem
	}
	return report.Failures[id]
}
