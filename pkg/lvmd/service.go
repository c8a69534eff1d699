package lvmd

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/carve-csi/carve/api/config"
	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/luks"
	"github.com/carve-csi/carve/pkg/lvm"
)

const (
	// maxWaiting bounds how many operations may wait for a group's turn. LVM
	// does a few per second at worst; who would wait for minutes had better
	// try again.
	maxWaiting = 1024
	// maxFormatting bounds how many mkfs run at once.
	maxFormatting = 8
	// probeInterval is how often a group that stopped answering is asked again.
	probeInterval = 5 * time.Second
	// formatTimeout bounds one mkfs. They take a fraction of a second.
	formatTimeout = 5 * time.Minute
)

// Options configure a Service. Config, LVM and StateDir are required.
type Options struct {
	Config *config.Config
	LVM    lvm.Groups
	// StateDir is where the journal is kept. It must exist.
	StateDir string
	// Format, Probe and SetUUID default to pkg/filesystem's.
	Format func(ctx context.Context, device string, o filesystem.FormatOptions) error
	Probe  func(device string) (filesystem.Info, error)
	// Inspect defaults to that of pkg/luks.
	Inspect func(device, volume string) (luks.State, error)
	SetUUID func(device string, t filesystem.Type, uuid string) error
	Log     *slog.Logger
	// Metrics may be nil.
	Metrics *Metrics
	// BlockEvents wakes the service when block devices appear or vanish; nil
	// means that nobody tells.
	BlockEvents <-chan struct{}
	// Devices makes and grows volume groups; required when the configuration
	// has any to be made.
	Devices lvm.Devices
	// PollInterval is how often the groups' sequence numbers are read from
	// the disks; zero means every two seconds.
	PollInterval time.Duration
	// providing is set by tests only, to change its intervals.
	providing func(*provider)

	// wipeCheckpoint is set by tests only; zero means the constant.
	wipeCheckpoint int64
	// crashPoint is set by tests only, see crash.
	crashPoint func(point string)
}

// Service is lvmd's core: the LVMD service and the work behind it. Its
// methods are safe for concurrent use.
type Service struct {
	lvmdv1.UnimplementedLVMDServer

	lvm     lvm.Groups
	journal *journal
	leaders *leaders
	model   *model
	// stateDir is where the journal is.
	stateDir string
	format   func(ctx context.Context, device string, o filesystem.FormatOptions) error
	probe    func(device string) (filesystem.Info, error)
	inspect  func(device, volume string) (luks.State, error)
	setUUID  func(device string, t filesystem.Type, uuid string) error
	log      *slog.Logger
	metrics  *Metrics
	health   *health
	lists    listBuffers

	provider     *provider
	blockEvents  <-chan struct{}
	pollInterval time.Duration
	// probeInterval is the constant but in tests.
	probeInterval time.Duration
	// failingFor is the constant but in tests.
	failingFor time.Duration
	// callerGrace is the constant but in tests; guarded by the model's lock.
	callerGrace time.Duration
	formatting  *semaphore.Weighted
	copying     *semaphore.Weighted
	// wipeCheckpoint is the constant but in tests.
	wipeCheckpoint int64
	// crashPoint is set by tests only.
	crashPoint func(point string)

	// lost wakes the loop that makes encrypted volumes anew. It is a channel of one.
	lost chan struct{}

	// stopping is closed when no new operation may begin and streams must end.
	stopping chan struct{}
	// work is the context of everything in the background and of operations;
	// it ends after stopping, when they have had their time.
	work   context.Context
	cancel context.CancelFunc
	// running counts operations and background work.
	running  sync.WaitGroup
	stopOnce sync.Once
}

// New opens the journal, scans and activates the configured volume groups,
// and reconciles the two. When it returns, the service answers truthfully;
// Start then begins the work in the background. Configuration errors are
// config.Problems.
func New(ctx context.Context, o Options) (*Service, error) {
	s := &Service{
		lvm: o.LVM, format: o.Format, probe: o.Probe, inspect: o.Inspect, setUUID: o.SetUUID, log: o.Log, metrics: o.Metrics,
		blockEvents: o.BlockEvents, pollInterval: o.PollInterval, wipeCheckpoint: o.wipeCheckpoint, crashPoint: o.crashPoint,
		model: newModel(newID()), health: newHealth(), stateDir: o.StateDir,
		copying:    semaphore.NewWeighted(maxCopying),
		formatting: semaphore.NewWeighted(maxFormatting), probeInterval: probeInterval, failingFor: failingFor, callerGrace: callerGrace,
		stopping: make(chan struct{}), lost: make(chan struct{}, 1),
		provider: newProvider(o.Devices),
	}
	if o.providing != nil {
		o.providing(s.provider)
	}
	if s.format == nil {
		s.format = filesystem.Format
	}
	if s.probe == nil {
		s.probe = filesystem.Probe
	}
	if s.inspect == nil {
		s.inspect = luks.Inspect
	}
	if s.setUUID == nil {
		s.setUUID = filesystem.SetUUID
	}
	if s.log == nil {
		s.log = slog.Default()
	}
	if s.metrics == nil {
		s.metrics = NewMetrics()
	}
	if s.pollInterval == 0 {
		s.pollInterval = 2 * time.Second
	}
	if s.wipeCheckpoint == 0 {
		s.wipeCheckpoint = wipeCheckpoint
	}
	s.lvm.Limit(accepts(o.Config.Devices))
	path := filepath.Join(o.StateDir, "journal.db")
	j, found, aside, err := openJournal(path)
	if err != nil {
		return nil, err
	}
	if aside != "" {
		s.log.Warn("the journal was damaged and is rebuilt from the volumes' tags", "movedTo", aside)
	}
	s.journal = j
	j.db.crash = s.crash
	s.leaders = newLeaders(j, s.log)
	s.work, s.cancel = context.WithCancel(context.Background())
	loaded := false
	defer func() {
		if !loaded {
			s.cancel()
			_ = j.close()
		}
	}()
	if err := s.load(ctx, o.Config, found); err != nil {
		return nil, err
	}
	loaded = true
	s.metrics.attach(s)
	return s, nil
}

// Start begins wiping, watching the groups and probing. It returns at once.
func (s *Service) Start() {
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	for _, g := range s.model.groups {
		s.spawn(func() { s.wipeLoop(s.work, g) })
		s.spawn(func() { s.removeLoop(s.work, g) })
		s.spawn(func() { s.lookLoop(s.work, g) })
		s.spawn(func() { s.poolLoop(s.work, g) })
	}
	s.spawn(func() { s.refreshLoop(s.work) })
	s.spawn(func() { s.keyLoop(s.work) })
	s.spawn(func() { s.provideLoop(s.work) })
}

// spawn runs f until it returns; Stop waits for it.
func (s *Service) spawn(f func()) {
	s.running.Add(1)
	go func() {
		defer s.running.Done()
		f()
	}()
}

// Quiesce ends all Watch streams and makes new operations fail, so that a
// gRPC server can stop. It may be called more than once.
func (s *Service) Quiesce() {
	s.stopOnce.Do(func() {
		close(s.stopping)
		s.health.set(false)
	})
}

// Stop quiesces, lets operations under way finish until ctx is done, then
// cancels them, and closes the journal. What was cancelled is undone by the
// next start.
func (s *Service) Stop(ctx context.Context) error {
	s.Quiesce()
	s.waitForOperations(ctx)
	s.cancel()
	s.running.Wait()
	s.model.mu.Lock()
	for _, v := range s.model.volumes {
		if v.handle != nil {
			_ = v.handle.Close()
			v.handle = nil
		}
	}
	s.model.mu.Unlock()
	return errors.Join(s.rememberAll(), s.journal.close())
}

// waitForOperations returns when no creation or expansion is under way, or
// ctx is done.
func (s *Service) waitForOperations(ctx context.Context) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		s.model.mu.Lock()
		busy := false
		for _, v := range s.model.volumes {
			busy = busy || v.op != nil || v.claimed
		}
		s.model.mu.Unlock()
		if !busy {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (s *Service) isStopping() bool {
	select {
	case <-s.stopping:
		return true
	default:
		return false
	}
}
