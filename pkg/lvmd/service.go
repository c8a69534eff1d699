package lvmd

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/carve-csi/carve/api/config"
	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/command"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/luks"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvmd/inventory"
	"github.com/carve-csi/carve/pkg/lvmd/journal"
	"github.com/carve-csi/carve/pkg/lvmd/provision"
	"github.com/carve-csi/carve/pkg/lvmd/reclaim"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
	"github.com/carve-csi/carve/pkg/lvmd/volumegroup"
	"github.com/carve-csi/carve/pkg/lvmd/wakeup"
)

const (
	// maxFormatting bounds how many mkfs run at once on the same disks.
	maxFormatting = 8
	// formatTimeout bounds one mkfs. They take a fraction of a second.
	formatTimeout = 5 * time.Minute
	// callerGrace is how long a creation goes on after its last caller has gone. Another
	// controller leads within this time after one that ended, and asks for the same again.
	callerGrace = time.Minute
	// failingFor is for how long a class reports that a disk failed a command, unless
	// another command goes well.
	failingFor = time.Minute
	// replacedFor is for how long a class reports that its group took the place of another one.
	replacedFor = time.Hour
)

// Options configure a Service. Config, LVM and StateDir are required.
type Options struct {
	Config *config.Config
	// Changed says that Config takes the place of one that was served: it is refused where a
	// class does not fit its volume group. At another start that is a condition of the class.
	Changed bool
	LVM     lvm.Groups
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
	// means that nothing does.
	BlockEvents <-chan struct{}
	// Devices makes and grows volume groups; required when the configuration
	// has any to be made.
	Devices lvm.Devices
	// PollInterval is how often the groups' sequence numbers are read from
	// the disks; zero means every two seconds.
	PollInterval time.Duration
	// sectorSize is set by tests only; nil means blockdev.LogicalBlockSize.
	sectorSize func(path string) (int64, error)
	// provisioning and poolRetry are set by tests only; zero means the constants.
	provisioning provision.Intervals
	poolRetry    time.Duration
	// poolGrace and activationRetry are set by tests only; zero means the constants.
	poolGrace, activationRetry time.Duration

	// wipeCheckpoint and copyCheckpoint are set by tests only; zero means the constant.
	wipeCheckpoint, copyCheckpoint int64
	// copyTimeout and copyLook are set by tests only; zero means the constants.
	copyTimeout, copyLook time.Duration
	// slotTimeout, probeInterval, awayInterval and callerGrace are set by tests only; zero means
	// the constants.
	slotTimeout, probeInterval, awayInterval, callerGrace time.Duration
	// crashPoint is set by tests only, see crash.
	crashPoint func(point string)
	// entered and defect are set by tests only, to see the changes of volumes' states and
	// those that must not be.
	entered func(from, to inventory.State)
	defect  func(message string, args ...any)
}

// Service is the LVMD service and the work behind it. Its methods are safe for concurrent use.
type Service struct {
	lvmdv1.UnimplementedLVMDServer
	*core

	creator     *creator
	expander    *expander
	adopter     *adopter
	headers     *headers
	pools       *poolKeeper
	provisioned *provisioned
	provisioner *provision.Provisioner
	leaders     *leaders
	health      *health
	blockEvents <-chan struct{}
	// devicesChanged wakes duplicateLoop.
	devicesChanged wakeup.Signal
	// failingFor is the constant, in nanoseconds, but in tests.
	failingFor atomic.Int64
}

// New opens the journal, scans and activates the configured volume groups,
// and reconciles the two. When it returns, the service answers truthfully;
// Start then begins the work in the background. Configuration errors are
// config.Problems.
func New(ctx context.Context, o Options) (*Service, error) {
	o.setDefaults()
	o.LVM.Limit(provision.Filter(o.Config.Devices))
	j, found, aside, err := journal.Open(filepath.Join(o.StateDir, "journal.db"))
	if err != nil {
		return nil, err
	}
	if aside != "" {
		o.Log.Warn("the journal was damaged and is rebuilt from the volumes' tags", "movedTo", aside)
	}
	s := assemble(&o, j)
	loaded := false
	defer func() {
		if !loaded {
			s.cancel()
			s.running.Wait()
			_ = j.Close()
		}
	}()
	if err := s.load(ctx, &o, found); err != nil {
		return nil, err
	}
	loaded = true
	s.metrics.attach(s)
	return s, nil
}

func (o *Options) setDefaults() {
	if o.Format == nil {
		o.Format = filesystem.Format
	}
	if o.sectorSize == nil {
		o.sectorSize = blockdev.LogicalBlockSize
	}
	if o.Probe == nil {
		o.Probe = filesystem.Probe
	}
	if o.Inspect == nil {
		o.Inspect = luks.Inspect
	}
	if o.SetUUID == nil {
		o.SetUUID = filesystem.SetUUID
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Metrics == nil {
		o.Metrics = NewMetrics()
	}
}

// assemble makes a service of its parts.
func assemble(o *Options, j *journal.Journal) *Service {
	c := &core{
		lvm: o.LVM, journal: j, log: o.Log, metrics: o.Metrics, crashPoint: o.crashPoint,
		inventory: inventory.NewInventory(spec.NewVolumeID(), inventory.Options{
			Log: o.Log, CallerGrace: cmp.Or(o.callerGrace, callerGrace),
			Entered: o.entered, Defect: o.defect,
		}),
	}
	c.stopping = make(chan struct{})
	c.work, c.cancel = context.WithCancel(context.Background())
	j.SetCrashPoint(c.crash)
	s := &Service{core: c, leaders: newLeaders(j, o.Log), health: newHealth(), blockEvents: o.BlockEvents, devicesChanged: wakeup.New()}
	s.failingFor.Store(int64(failingFor))
	s.creator = &creator{
		core: c, format: o.Format, probe: o.Probe, setUUID: o.SetUUID, sectorSize: o.sectorSize,
		formatting: command.NewPlaces(maxFormatting, maxFormatting, maxFormatting), copying: command.NewPlaces(maxCopying, maxCopies, maxSameCopies),
		copyTimeout: cmp.Or(o.copyTimeout, copyTimeout), copyLook: cmp.Or(o.copyLook, copyLook),
		copyCheckpoint: cmp.Or(o.copyCheckpoint, copyCheckpoint), keyless: wakeup.New(),
	}
	s.expander = &expander{core: c}
	s.adopter = &adopter{core: c, probe: o.Probe}
	s.headers = &headers{core: c, inspect: o.Inspect, note: s.NoteEncrypted}
	c.groups = volumegroup.New(volumegroup.Options{
		LVM: o.LVM, Journal: j, Inventory: c.inventory, Log: o.Log, StateDir: o.StateDir,
		Probe: o.Probe, Inspect: o.Inspect, Work: c.work, Spawn: c.spawnUnlessStopping,
		Resume:       s.creator.resume,
		Responding:   func(all bool) { s.health.set(all && !s.isStopping()) },
		Scanned:      s.creator.keyless.Set,
		PollInterval: o.PollInterval, ProbeInterval: o.probeInterval, AwayInterval: o.awayInterval, SlotTimeout: o.slotTimeout,
		PoolGrace: o.poolGrace, ActivationRetry: o.activationRetry,
	})
	c.reclaimer = reclaim.New(reclaim.Options{
		LVM: o.LVM, Journal: j, Inventory: c.inventory, Groups: c.groups, Log: o.Log, Crash: c.crash, Checkpoint: o.wipeCheckpoint,
	})
	s.pools = newPoolKeeper(c, cmp.Or(o.poolRetry, poolRetry))
	s.provisioned = &provisioned{core: c, pools: s.pools}
	s.provisioner = provision.New(o.Devices, j, s.provisioned, o.Log, o.provisioning)
	return s
}

// Start begins wiping, watching the groups and probing. It returns at once.
func (s *Service) Start() {
	for _, g := range s.groups.All() {
		s.spawn(func() { s.reclaimer.WipeLoop(s.work, g) })
		s.spawn(func() { s.reclaimer.RemoveLoop(s.work, g) })
		s.spawn(func() { s.lookLoop(s.work, g) })
		s.spawn(func() { s.pools.loop(s.work, g) })
		s.spawn(func() { s.groups.ActivateLoop(s.work, g) })
		s.spawn(func() { s.headers.noteFound(s.work, g) })
	}
	s.spawn(func() { s.pollLoop(s.work) })
	s.spawn(func() { volumegroup.Seeker{Groups: s.groups}.Loop(s.work) })
	s.spawn(func() { s.duplicateLoop(s.work) })
	s.spawn(func() { s.creator.keyLoop(s.work) })
	s.spawn(func() { s.provisioner.Run(s.work) })
}

// pollLoop has each group looked at, at every tick and whenever block devices
// come or go.
func (s *Service) pollLoop(ctx context.Context) {
	tick := time.NewTicker(s.groups.PollInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-s.blockEvents:
			s.provisioner.Wake()
			s.inventory.Recheck()
			s.devicesChanged.Set()
		case <-ctx.Done():
			return
		}
		for _, g := range s.groups.All() {
			g.Look.Set()
		}
	}
}

// duplicateLoop looks for copies of the groups' disks when block devices came, went or changed, at
// most once in the interval between two looks at the groups. A device that does not answer holds up
// nothing else.
func (s *Service) duplicateLoop(ctx context.Context) {
	tick := time.NewTicker(s.groups.PollInterval)
	defer tick.Stop()
	for s.devicesChanged.Wait(ctx, time.Time{}) {
		names, err := s.lvm.Duplicated()
		if err != nil {
			s.log.Warn("devices cannot be looked at for copies of the groups' disks", "error", err)
		}
		s.groups.NoteExcluded()
		for _, name := range names {
			if g := s.groups.Named(name); g != nil {
				g.SetStale() // The scan finds what to say of it.
				g.Look.Set()
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// lookLoop looks at what others did to a group. A disk that answers late, or never, holds up
// its own group only.
func (s *Service) lookLoop(ctx context.Context, g *volumegroup.Group) {
	for {
		select {
		case <-g.Look:
		case <-ctx.Done():
			return
		}
		s.groups.Refresh(ctx, g)
		s.pools.retry(ctx, g)
		s.pools.lookAtRAID(g)
		g.Expire(time.Duration(s.failingFor.Load()), replacedFor)
	}
}

// Quiesce ends all Watch streams and makes new operations fail, so that a
// gRPC server can stop. It may be called more than once.
func (s *Service) Quiesce() {
	s.stopOnce.Do(func() {
		s.admission.Lock()
		defer s.admission.Unlock()
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
	for _, h := range s.inventory.TakeHandles() {
		_ = h.Close()
	}
	return errors.Join(s.groups.RememberAll(), s.journal.Close())
}

// waitForOperations returns when no creation or expansion is under way, or
// ctx is done.
func (s *Service) waitForOperations(ctx context.Context) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !s.inventory.IsIdle() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
