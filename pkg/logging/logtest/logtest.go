// Package logtest keeps what is logged, for tests to read.
package logtest

import (
	"context"
	"log/slog"
	"slices"
	"sync"
)

// Record is a line of a log.
type Record struct {
	Message string
	// Attributes are those of the line and those that its logger was given with With.
	Attributes map[string]any
}

// Error is the line's attribute "error", or nil.
func (r Record) Error() error {
	err, _ := r.Attributes["error"].(error)
	return err
}

// Recorder is a slog.Handler that keeps every line. Its zero value is ready, and may be
// used concurrently.
type Recorder struct {
	mu      sync.Mutex
	records []Record
}

// Logger returns a logger that writes to r.
func (r *Recorder) Logger() *slog.Logger { return slog.New(handler{to: r}) }

// Find returns the lines that match, oldest first.
func (r *Recorder) Find(match func(Record) bool) []Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(r.records), func(one Record) bool { return !match(one) })
}

// handler is a Recorder with the attributes of a logger.
type handler struct {
	to    *Recorder
	attrs []slog.Attr
}

func (handler) Enabled(context.Context, slog.Level) bool { return true }

func (h handler) Handle(_ context.Context, line slog.Record) error {
	one := Record{Message: line.Message, Attributes: map[string]any{}}
	for _, attr := range h.attrs {
		one.Attributes[attr.Key] = attr.Value.Any()
	}
	line.Attrs(func(attr slog.Attr) bool { one.Attributes[attr.Key] = attr.Value.Any(); return true })
	h.to.mu.Lock()
	defer h.to.mu.Unlock()
	h.to.records = append(h.to.records, one)
	return nil
}

func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return handler{to: h.to, attrs: slices.Concat(h.attrs, attrs)}
}

func (h handler) WithGroup(string) slog.Handler { return h } // no group is used here
