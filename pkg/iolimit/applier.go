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
	// applyInterval is how often the request is read: a changed limit is in force so much later.
	applyInterval = time.Second
	// reportInterval is how often a report is written that says the same as the one before.
	reportInterval = 10 * time.Second
	// StaleAfter is the age at which a report says nothing any more.
	StaleAfter = time.Minute
)

// Options configure an Applier. All are required.
type Options struct {
	// Cgroups is where the node's hierarchy is mounted.
	Cgroups cgroup.Root
	// RequestDir is where the node plugin writes its Request, ReportDir where the Report is
	// written.
	RequestDir, ReportDir string
	Log                   *slog.Logger
}

// Applier writes the limits of a Request to the Pods' cgroups, and repairs them when something
// else changed them. It is not safe for concurrent use.
type Applier struct {
	o Options
	// limited are the limits that this run wrote, for those that the request lacks later.
	limited map[target]bool
	// last is the last report that was written.
	last Report
	now  func() time.Time
}

// target is a device in a Pod's cgroup.
type target struct{ dir, device string }

// NewApplier makes an Applier.
func NewApplier(o Options) *Applier {
	return &Applier{o: o, limited: map[target]bool{}, now: time.Now}
}

// Run applies what is requested until ctx is done. Nothing is taken back then: limits hold
// while the program restarts.
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

// Apply does once what Run does. All but the first of two equal calls write nothing to cgroups.
func (a *Applier) Apply() {
	request, err := ReadRequest(a.o.RequestDir)
	report := Report{At: a.now()}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// The node plugin has not begun. It does not know of any problem either.
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
				// Where there is no cgroup, nothing runs that could exceed a limit; the Pod ends,
				// or its cgroup is where it is not looked for.
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
	// A number can become that of another volume.
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

// set makes the limits of a device in a Pod's cgroup those that are given.
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

// write writes a report that says something new, or is due.
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
