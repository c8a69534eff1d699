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

// ReasonIOLimitsNotApplied means that Pods may exceed the volume's I/O limits.
const ReasonIOLimitsNotApplied = conditions.IOLimitsNotApplied

// limitsInterval is the time between reads of lvmd and the mount table, and so
// the delay of a changed limit. A publish triggers a read at once.
const limitsInterval = 2 * time.Second

// IOLimitDirs are the directories that the node plugin shares with the
// component that limits I/O. The zero value means that the node has no such
// component.
type IOLimitDirs struct {
	// The node plugin writes Requests, the component Reports.
	Requests, Reports string
}

// ioLimits requests I/O limits for Pods and reads the component's reports. It
// derives the request from lvmd and the mount table, so a restart loses
// nothing.
type ioLimits struct {
	dirs       IOLimitDirs
	mounts     mount.Interface
	kubelet    kubelet.Dir
	volumes    lvmdclient.Client
	devices    *devices
	encryption *encryption
	log        *slog.Logger
	// began is the plugin's start time. For iolimit.StaleAfter from then on, a
	// missing report is no problem.
	began time.Time
	now   func() time.Time
	// wake has capacity 1.
	wake chan struct{}
}

func (l *ioLimits) published() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

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
		// Limit an encrypted volume at its mapping, where the kernel sees the
		// Pods' requests; below it the requests are the kernel's own.
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

// health expects v as its users see it.
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
