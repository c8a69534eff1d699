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

// leadershipMemory is for how long a leader's number holds after its last call. A
// controller that was paused has long lost its connection by then, and a cluster that
// was restored from a backup, whose numbers are older, is served again.
const leadershipMemory = time.Hour

// maxLeaders bounds of how many clusters the leaders are remembered.
const maxLeaders = 16

// leaders remembers the newest leader that called, by cluster, and refuses changes that
// an earlier one asks for: it was paused while another took over, and does not know yet.
// Calls without a number are not a leader's, and are never refused.
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

// newLeaders reads what the journal has of them. Their time counts from now.
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

// admit notes the leader that makes a call, and returns an error for a change that an
// earlier one than the newest asks for.
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
		// The change that is asked for is refused for the same reason, if it needs the journal.
		l.log.Warn("which controller leads is not kept over a restart", "leadership", caller.String(), "error", err)
	}
	return nil
}

// tidy forgets the leader that has not called for longest where there are too many. The
// caller holds l.mu.
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
