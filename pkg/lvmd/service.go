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
	// maxFormatting bounds concurrent mkfs runs on the same disks.
	maxFormatting = 8
	// formatTimeout bounds one mkfs, which normally takes less than a second.
	formatTimeout = 5 * time.Minute
	// callerGrace keeps a creation running after its last caller left. If a controller ends, the
	// next one leads within this time and requests the same again.
	callerGrace = time.Minute
	// failingFor bounds how long a class reports a disk that failed a command, unless a later
	// command succeeds.
	failingFor = time.Minute
	// replacedFor bounds how long a class reports that its group was replaced by another.
	replacedFor = time.Hour
)

// Options configure a Service. Config, LVM and StateDir are required.
type Options struct {
	Config *config.Config
	// Changed means Config replaces one in service: New then rejects a class that does not fit
	// its volume group. Otherwise the class only gets a condition.
	Changed bool
	LVM     lvm.Groups
	// StateDir holds the journal. It must exist.
	StateDir string
	// Format, Probe and SetUUID default to those of pkg/filesystem.
	Format func(ctx context.Context, device string, o filesystem.FormatOptions) error
	Probe  func(device string) (filesystem.Info, error)
	// Inspect defaults to luks.Inspect.
	Inspect func(device, volume string) (luks.State, error)
	SetUUID func(device string, t filesystem.Type, uuid string) error
	Log     *slog.Logger
	Metrics *Metrics
	// BlockEvents wakes the service when block devices appear or vanish; it may be nil.
	BlockEvents <-chan struct{}
	// Devices creates and grows volume groups; required if the configuration lists any to create.
	Devices lvm.Devices
	// PollInterval is the interval between reads of the groups' sequence numbers from disk; zero
	// means two seconds.
	PollInterval time.Duration
	// Only tests set the following fields; zero and nil mean the constants and real functions.
	sectorSize                 func(path string) (int64, error)
	provisioning               provision.Intervals
	poolRetry                  time.Duration
	poolGrace, activationRetry time.Duration

	wipeCheckpoint, copyCheckpoint                        int64
	copyTimeout, copyLook                                 time.Duration
	slotTimeout, probeInterval, awayInterval, callerGrace time.Duration
	crashPoint                                            func(point string)
	// entered observes volumes' state changes, defect the invalid ones.
	entered func(from, to inventory.State)
	defect  func(message string, args ...any)
}

// Service is the LVMD service and the work behind it. Its methods are safe for concurrent use.
type Service struct {
	lvmdv1.UnimplementedLVMDServer
	*core

	creator        *creator
	expander       *expander
	adopter        *adopter
	headers        *headers
	pools          *poolKeeper
	provisioned    *provisioned
	provisioner    *provision.Provisioner
	leaders        *leaders
	health         *health
	blockEvents    <-chan struct{}
	devicesChanged wakeup.Signal
	// failingFor is in nanoseconds; only tests change it.
	failingFor atomic.Int64
}

// New opens the journal, scans and activates the configured volume groups, and reconciles the
// two. The service then answers truthfully; Start begins the background work. Errors in the
// configuration are config.Problems.
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

func assemble(o *Options, j *journal.Journal) *Service {
	c := &core{
		lvm: o.LVM, journal: j, log: o.Log, metrics: o.Metrics, sectorSize: o.sectorSize, crashPoint: o.crashPoint,
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
		core: c, format: o.Format, probe: o.Probe, setUUID: o.SetUUID,
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

// Start begins the background work and returns at once.
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

// duplicateLoop looks for copies of the groups' disks after changes of block devices, at most
// once per PollInterval. An unresponsive device blocks only this loop.
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
				g.SetStale() // The scan reports the duplicate.
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

// lookLoop runs per group, so that a slow or unresponsive disk holds up its own group only.
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

// Quiesce ends Watch streams and makes new operations fail, so that a gRPC server can stop. It
// may be called more than once.
func (s *Service) Quiesce() {
	s.stopOnce.Do(func() {
		s.admission.Lock()
		defer s.admission.Unlock()
		close(s.stopping)
		s.health.set(false)
	})
}

// Stop quiesces, lets operations in flight finish until ctx ends, cancels the rest, and closes
// the journal. The next start undoes cancelled operations.
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
