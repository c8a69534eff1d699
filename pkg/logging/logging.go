// Package logging sets up structured logs (log/slog) for Carve's programs and
// routes klog, which the Kubernetes libraries use, into the same stream.
package logging

import (
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	"k8s.io/klog/v2"
)

// Options are the logging flags of a program.
type Options struct {
	level  string
	format string
}

// AddFlags registers --log-level and --log-format.
func AddFlags(flags *pflag.FlagSet) *Options {
	o := &Options{}
	flags.StringVar(&o.level, "log-level", "info", "least severity that is logged: debug, info, warn or error")
	flags.StringVar(&o.format, "log-format", "json", "how log lines are written: json or text")
	return o
}

// Logger makes the program's logger, which writes to w, and sends klog's lines
// to it too. It is called once, after the flags were parsed.
func (o *Options) Logger(w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(o.level)); err != nil {
		return nil, fmt.Errorf("--log-level: %q is not one of debug, info, warn, error", o.level)
	}
	var handler slog.Handler
	options := &slog.HandlerOptions{Level: level, ReplaceAttr: readable}
	switch o.format {
	case "json":
		handler = slog.NewJSONHandler(w, options)
	case "text":
		handler = slog.NewTextHandler(w, options)
	default:
		return nil, fmt.Errorf("--log-format: %q is not one of json, text", o.format)
	}
	klog.SetLogger(logr.FromSlogHandler(handler))
	return slog.New(handler), nil
}

// readable writes durations as people do, 168ms, in both formats: slog's JSON has bare
// nanoseconds.
func readable(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(rounded(a.Value.Duration()).String())
	}
	return a
}

// rounded leaves the first four digits of a duration, and whole seconds.
func rounded(d time.Duration) time.Duration {
	unit := time.Nanosecond
	for unit < time.Second && d.Abs() >= 10000*unit {
		unit *= 10
	}
	return d.Round(unit)
}
