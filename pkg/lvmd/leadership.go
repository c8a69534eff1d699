package lvmd

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/carve-csi/carve/api/leadership"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
	"github.com/carve-csi/carve/pkg/lvmd/journal"
)

// leadershipMemory bounds how long a leader's number holds after its last call. A paused
// controller has lost its connection by then; a cluster restored from a backup has older
// numbers and is served again.
const leadershipMemory = time.Hour

const maxLeaders = 16

// leaders rejects changes by an earlier leader than the cluster's newest: it may have been
// paused and not know that it was replaced. Calls without a number are no leader's, and pass.
type leaders struct {
	journal *journal.Journal
	log     *slog.Logger
	now     func() time.Time

	mu     sync.Mutex
	newest map[string]*leader
}

type leader struct {
	leadership.Leadership
	seen time.Time
}

// newLeaders restores the journaled leaders as if they had called now.
func newLeaders(j *journal.Journal, log *slog.Logger) *leaders {
	l := &leaders{journal: j, log: log, now: time.Now, newest: map[string]*leader{}}
	kept, err := j.Leaders()
	if err != nil {
		log.Warn("which controller led last cannot be read, and is learnt again", "error", err)
	}
	for _, k := range kept {
		l.newest[k.Cluster] = &leader{k, l.now()}
	}
	return l
}

func (l *leaders) admit(ctx context.Context, req any) error {
	caller, has, err := leadership.Of(ctx)
	if err != nil {
		return apierror.InvalidField(leadership.Key, "%v", err)
	}
	if !has {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	newest := l.newest[caller.Cluster]
	now := l.now()
	switch {
	case newest == nil || newest.Before(caller):
	case caller.Before(newest.Leadership) && now.Sub(newest.seen) < leadershipMemory:
		if !changes(req) {
			return nil
		}
		return apierror.LeaderSuperseded("the carve controller that asks led before another one took over: its number is %s, the newest is %s; nothing was done", caller, newest)
	case caller == newest.Leadership:
		newest.seen = now
		return nil
	}
	l.newest[caller.Cluster] = &leader{caller, now}
	l.tidy()
	if err := l.journal.PutLeaders(l.all()); err != nil {
		// If the requested change needs the journal, it fails for the same reason.
		l.log.Warn("which controller leads is not kept over a restart", "leadership", caller.String(), "error", err)
	}
	return nil
}

// tidy drops the leaders that called least recently. The caller holds l.mu.
func (l *leaders) tidy() {
	for len(l.newest) > maxLeaders {
		oldest := ""
		for cluster, known := range l.newest {
			if oldest == "" || known.seen.Before(l.newest[oldest].seen) {
				oldest = cluster
			}
		}
		delete(l.newest, oldest)
	}
}

func (l *leaders) all() []leadership.Leadership {
	var out []leadership.Leadership
	for _, known := range l.newest {
		out = append(out, known.Leadership)
	}
	return out
}
