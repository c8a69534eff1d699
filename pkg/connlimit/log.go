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

// Log logs rejected connections: the first hundred of each reason, then one per second with the
// number of unlogged ones before it. Set its fields before use. Its methods may be called
// concurrently.
type Log struct {
	Logger  *slog.Logger
	Level   slog.Level
	Message string

	mu       sync.Mutex
	byReason map[string]*rejections
}

type rejections struct {
	logged rate.Sometimes
	// unlogged counts the rejections since the last logged one.
	unlogged atomic.Int64
}

// Reject logs a rejected peer; err may be nil. There must be few reasons.
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
