package connlimit

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// Log logs connections that are rejected: of each reason the first hundred, then one a second, with
// how many were not logged before it. Its methods may be called concurrently. Its fields must be set
// before use.
type Log struct {
	// Logger gets Message with attributes.
	Logger  *slog.Logger
	Level   slog.Level
	Message string

	mu       sync.Mutex
	byReason map[string]*rejections
}

type rejections struct {
	logged rate.Sometimes
	// unlogged are those since the last that was logged, and that one.
	unlogged atomic.Int64
}

// Reject notes that a peer was rejected; err may be nil. The reasons must be few.
func (l *Log) Reject(peer net.Addr, reason string, err error) {
	r := l.of(reason)
	r.unlogged.Add(1)
	r.logged.Do(func() {
		attrs := []any{"remote", peer.String(), "reason", reason}
		if err != nil {
			attrs = append(attrs, "error", err)
		}
		if others := r.unlogged.Swap(0) - 1; others > 0 {
			attrs = append(attrs, "others", others)
		}
		l.Logger.Log(context.Background(), l.Level, l.Message, attrs...)
	})
}

func (l *Log) of(reason string) *rejections {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byReason == nil {
		l.byReason = map[string]*rejections{}
	}
	if l.byReason[reason] == nil {
		l.byReason[reason] = &rejections{logged: rate.Sometimes{First: 100, Interval: time.Second}}
	}
	return l.byReason[reason]
}
