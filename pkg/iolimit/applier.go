package iolimit

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/carve-csi/carve/pkg/iolimit/cgroup"
)

const (
	// applyInterval is the time between reads of the request, and so the delay
	// of a changed limit.
	applyInterval = time.Second
	// reportInterval is the time between identical reports.
	reportInterval = 10 * time.Second
	// StaleAfter is the age from which a report is meaningless.
	StaleAfter = time.Minute
)

// Options configure an Applier. All fields are required.
type Options struct {
	// Cgroups is the mount point of the node's hierarchy.
	Cgroups cgroup.Root
	// The node plugin writes its Request to RequestDir, the Applier its Report
	// to ReportDir.
	RequestDir, ReportDir string
	Log                   *slog.Logger
}

// Applier writes the limits of a Request to the Pods' cgroups, and restores
// them if something else changes them. It is not safe for concurrent use.
type Applier struct {
	o Options
	// limited has the limits that this run wrote, to lift them when the request
	// lacks them.
	limited map[target]bool
	last    Report
	now     func() time.Time
}

type target struct{ dir, device string }

// NewApplier returns an Applier.
func NewApplier(o Options) *Applier {
	return &Applier{o: o, limited: map[target]bool{}, now: time.Now}
}

// Run applies requests until ctx is done. It leaves the limits then, so they
// hold while the program restarts.
func (a *Applier) Run(ctx context.Context) {
	ticker := time.NewTicker(applyInterval)
	defer ticker.Stop()
	for {
		a.Apply()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// Apply applies the request once. Repeated calls write nothing to unchanged
// cgroups.
func (a *Applier) Apply() {
	request, err := ReadRequest(a.o.RequestDir)
	report := Report{At: a.now()}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// The node plugin has not started, so there is nothing to report.
	case err != nil:
		report.Problem = "the node plugin's request cannot be read: " + err.Error()
	default:
		a.apply(request, &report)
	}
	a.write(report)
}

func (a *Applier) apply(request Request, report *Report) {
	if err := a.o.Cgroups.Check(); err != nil {
		report.Problem = err.Error()
		return
	}
	pods, err := a.o.Cgroups.Pods(podsOf(request))
	if err != nil {
		report.Problem = "the cgroups of Pods cannot be listed: " + err.Error()
		return
	}
	known := map[target]bool{}
	for _, v := range request.Volumes {
		var failures []string
		for _, pod := range v.Pods {
			dir, ok := pods[pod]
			if !ok {
				// Without a cgroup nothing runs that could exceed a limit: the
				// Pod is ending, unless its cgroup is in an unexpected place.
				if !v.Limits.IsZero() {
					failures = append(failures, "Pod "+pod+": "+cgroup.ErrNoPod.Error())
				}
				continue
			}
			at := target{dir, v.Device.String()}
			known[at] = true
			if err := a.set(at, v.Limits); err != nil && !v.Limits.IsZero() {
				failures = append(failures, "Pod "+pod+": "+err.Error())
			}
		}
		if len(failures) > 0 {
			if report.Failures == nil {
				report.Failures = map[string]string{}
			}
			report.Failures[v.ID] = strings.Join(failures, "; ")
		}
	}
	// Lift other limits: a device number may be reused for another volume.
	for at := range a.limited {
		if !known[at] {
			if err := a.set(at, Limits{}); err == nil || errors.Is(err, cgroup.ErrNoPod) || errors.Is(err, cgroup.ErrNoDevice) {
				delete(a.limited, at)
			}
		}
	}
}

func podsOf(r Request) []string {
	all := map[string]bool{}
	for _, v := range r.Volumes {
		for _, pod := range v.Pods {
			all[pod] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

func (a *Applier) set(at target, l Limits) error {
	changed, err := a.o.Cgroups.Set(at.dir, at.device, cgroup.Max(l))
	if err != nil {
		return err
	}
	if changed {
		a.o.Log.Info("limited I/O", "cgroup", at.dir, "device", at.device, "limits", l.String())
	}
	if l.IsZero() {
		delete(a.limited, at)
	} else {
		a.limited[at] = true
	}
	return nil
}

// write skips a report that is neither new nor due.
func (a *Applier) write(r Report) {
	same := r.Problem == a.last.Problem && maps.Equal(r.Failures, a.last.Failures)
	if same && r.At.Sub(a.last.At) < reportInterval {
		return
	}
	if !same {
		a.logChanges(r)
	}
	if err := r.Write(a.o.ReportDir); err != nil {
		a.o.Log.Error("the report cannot be written; it is tried again", "error", err)
		return
	}
	a.last = r
}

func (a *Applier) logChanges(r Report) {
	if r.Problem != a.last.Problem && r.Problem != "" {
		a.o.Log.Error("no limits can be applied on this node", "reason", r.Problem)
	}
	for id, message := range r.Failures {
		if a.last.Failures[id] != message {
			a.o.Log.Warn("the limits of a volume are not applied", "volume", id, "reason", message)
		}
	}
}
