package powercut

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/carve-csi/carve/e2e/vm/agent"
)

const (
	workers   = 3
	perWorker = 3
	// volumeBytes is what volumes are made with, grownBytes what they grow to.
	volumeBytes, grownBytes = 32 << 20, 48 << 20
	patternBytes            = 64 << 10
)

// stage is what lvmd was asked about a volume, and whether the reply reached us.
type stage int

const (
	asked stage = iota
	acknowledged
	deleting
	deleted
)

// classes are the device classes, each as often as it is to be chosen.
var classes = []string{"local", "local", "mirrored", "thin", "thin"}

// entry is a volume or a snapshot in the ledger. Only one goroutine uses it at a
// time.
type entry struct {
	name, class string
	block       bool
	snapshot    bool
	// from is what it was made of; nil for new volumes.
	from  *entry
	stage stage
	// id and bytes are as acknowledged; a growth under way may make it larger.
	id     string
	device string
	bytes  int64
	// written is true once what was written to it was reported as durable.
	written bool
	// seed makes its pattern.
	seed uint64
}

// pattern is what is written to the volume.
func (e *entry) pattern() []byte {
	b := make([]byte, patternBytes)
	for i, random := 0, rand.NewPCG(e.seed, e.seed); i < len(b); i += 8 {
		for j, v := 0, random.Uint64(); j < 8; j, v = j+1, v>>8 {
			b[i+j] = byte(v)
		}
	}
	return b
}

// operation is what lvmd acknowledged.
type operation int

const (
	volumeCreated operation = iota
	volumeCopied
	snapshotCreated
	volumeGrown
	volumeWritten
	deletion
	// survival is a volume that was there, with what was written to it, after a cut.
	survival
	operations
)

func (o operation) String() string {
	return [operations]string{
		"volumes created", "volumes copied or restored", "snapshots created", "volumes grown",
		"durable writes", "deletions", "volumes intact after a cut",
	}[o]
}

// leastPerRound is what the rounds must have on average, in thirds: a run of three
// rounds has these numbers. An lvmd that acknowledges nothing proves nothing.
var leastPerRound = [operations]int{
	volumeCreated: 6, volumeCopied: 1, snapshotCreated: 1, volumeGrown: 1, volumeWritten: 4, deletion: 3, survival: 1,
}

// ledger is everything that was ever asked of lvmd.
type ledger struct {
	// rounds is how often the power is cut.
	rounds  int
	mu      sync.Mutex
	entries []*entry
	// acks counts the replies that reached us.
	acks [operations]int
}

func (l *ledger) open(e *entry) *entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.name = fmt.Sprintf("pvc-%d", len(l.entries))
	l.entries = append(l.entries, e)
	return e
}

func (l *ledger) acknowledge(o operation) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.acks[o]++
}

// least is how often the operation must be acknowledged in all rounds.
func (l *ledger) least(o operation) int { return max(1, leastPerRound[o]*l.rounds/3) }

// shortage fails where less was acknowledged than the rounds must have. It names
// everything that is short, except what is in the list.
func (l *ledger) shortage(except ...operation) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var short []error
	for o := range operations {
		if l.acks[o] < l.least(o) && !slices.Contains(except, o) {
			short = append(short, fmt.Errorf("%v: %d, want at least %d", o, l.acks[o], l.least(o)))
		}
	}
	return errors.Join(short...)
}

// next chooses what to ask for: half of the time anything, and otherwise something of
// which too little was acknowledged so far. A machine that is slow does little in a
// round, and chance alone might leave something out.
func (l *ledger) next(random *rand.Rand) operation {
	l.mu.Lock()
	defer l.mu.Unlock()
	var short []operation
	for o := range survival {
		if l.acks[o] < l.least(o) {
			short = append(short, o)
		}
	}
	if len(short) > 0 && random.IntN(2) == 0 {
		return short[random.IntN(len(short))]
	}
	return operation(random.IntN(int(survival)))
}

// acknowledged lists the numbers of all operations.
func (l *ledger) acknowledged() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []string
	for o, n := range l.acks {
		all = append(all, fmt.Sprintf("%v: %d", operation(o), n))
	}
	return strings.Join(all, ", ")
}

// load asks lvmd for this and that until the machine is gone. It returns what went
// wrong other than that.
func (r *rig) load(ctx context.Context, l *ledger, seed uint64) error {
	// Each worker has volumes of its own, so that no two calls are about one.
	mine := make([][]*entry, workers)
	for i, e := range l.entries {
		if e.stage == acknowledged {
			mine[i%workers] = append(mine[i%workers], e)
		}
	}
	problems := make([]error, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(w)))
			for problems[w] == nil {
				problems[w] = r.step(ctx, l, &mine[w], random)
			}
			if errors.Is(problems[w], agent.ErrGone) {
				problems[w] = nil
			}
		})
	}
	wg.Wait()
	return errors.Join(problems...)
}

// step does one thing to one of a worker's volumes: what the ledger wants, or what has
// to come before it.
func (r *rig) step(ctx context.Context, l *ledger, mine *[]*entry, random *rand.Rand) error {
	wanted := l.next(random)
	pick := func(suits func(*entry) bool) *entry {
		var all []*entry
		for _, e := range *mine {
			if suits(e) {
				all = append(all, e)
			}
		}
		if len(all) == 0 {
			return nil
		}
		return all[random.IntN(len(all))]
	}
	full := len(*mine) >= perWorker
	switch wanted {
	case volumeGrown:
		if e := pick(func(e *entry) bool { return !e.snapshot && e.bytes < grownBytes }); e != nil {
			return r.grow(ctx, l, e)
		}
	case volumeCopied:
		if of := pick(func(e *entry) bool { return e.block && e.written }); of != nil && !full {
			return r.derive(ctx, l, mine, of, false)
		}
	case snapshotCreated:
		// Only thin volumes have snapshots.
		of := pick(func(e *entry) bool { return e.block && e.written && !e.snapshot && e.class == "thin" })
		switch {
		case of != nil && !full:
			return r.derive(ctx, l, mine, of, true)
		case of == nil && !full:
			return r.make(ctx, l, mine, &entry{class: "thin", block: true, seed: random.Uint64()})
		}
	case volumeCreated, volumeWritten, deletion, survival, operations: // below
	}
	// Each worker keeps a volume, so that a cut finds some.
	if full || (wanted == deletion && len(*mine) > 1) {
		e := pick(func(*entry) bool { return true })
		*mine = slices.DeleteFunc(*mine, func(other *entry) bool { return other == e })
		return r.remove(ctx, l, e)
	}
	return r.make(ctx, l, mine, &entry{
		class: classes[random.IntN(len(classes))], block: random.IntN(4) > 0, seed: random.Uint64(),
	})
}

// make makes a volume and writes to it.
func (r *rig) make(ctx context.Context, l *ledger, mine *[]*entry, e *entry) error {
	if err := r.create(ctx, l, l.open(e)); err != nil {
		return err
	}
	*mine = append(*mine, e)
	return r.write(ctx, l, e)
}

func (r *rig) grow(ctx context.Context, l *ledger, e *entry) error {
	found, err := r.lvmd(ctx, "expand", e.id, strconv.Itoa(grownBytes))
	if err != nil {
		return err
	}
	e.bytes = found[0].SizeBytes
	l.acknowledge(volumeGrown)
	return nil
}

// derive takes a snapshot of a volume, or makes a volume of a snapshot or another
// volume: of a thin one at once, of any other by copying it. Each has what was written
// to its source.
func (r *rig) derive(ctx context.Context, l *ledger, mine *[]*entry, of *entry, snapshot bool) error {
	e := l.open(&entry{class: of.class, block: true, snapshot: snapshot, from: of, seed: of.seed})
	if err := r.create(ctx, l, e); err != nil {
		return err
	}
	*mine = append(*mine, e)
	return nil
}

func (r *rig) create(ctx context.Context, l *ledger, e *entry) error {
	var args []string
	switch {
	case e.snapshot:
		args = []string{"snapshot", e.name, e.from.id}
	case e.from != nil && e.from.snapshot:
		args = []string{"create", e.name, strconv.Itoa(volumeBytes), "--class", e.class, "--from-snapshot", e.from.id}
	case e.from != nil:
		args = []string{"create", e.name, strconv.FormatInt(e.from.bytes, 10), "--class", e.class, "--from-volume", e.from.id}
	default:
		args = []string{"create", e.name, strconv.Itoa(volumeBytes), "--class", e.class}
	}
	if e.block && !e.snapshot {
		args = append(args, "--block")
	}
	found, err := r.lvmd(ctx, args...)
	if err != nil {
		return err
	}
	e.stage, e.id, e.device, e.bytes = acknowledged, found[0].ID, found[0].DevicePath, found[0].SizeBytes
	e.written = e.from != nil
	switch {
	case e.snapshot:
		l.acknowledge(snapshotCreated)
	case e.from != nil:
		l.acknowledge(volumeCopied)
	default:
		l.acknowledge(volumeCreated)
	}
	switch {
	case e.snapshot, !e.block:
		return nil
	case e.from != nil:
		return r.verify(ctx, e)
	}
	if err := r.readsAsZeroes(ctx, e.device, e.bytes); err != nil {
		return fmt.Errorf("new volume %s of class %s: %w", e.name, e.class, err)
	}
	return nil
}

func (r *rig) remove(ctx context.Context, l *ledger, e *entry) error {
	e.stage = deleting
	command := "delete"
	if e.snapshot {
		command = "delete-snapshot"
	}
	if _, err := r.run(ctx, lvmd, command, e.id); err != nil {
		return err
	}
	e.stage = deleted
	l.acknowledge(deletion)
	return nil
}

// write writes the volume's pattern, durably, as its user would.
func (r *rig) write(ctx context.Context, l *ledger, e *entry) error {
	return r.use(ctx, e, func(file string) error {
		code, err := r.machine.Agent().Run(ctx, agent.Command{
			Argv:  []string{"dd", "status=none", "iflag=fullblock", "bs=64k", "count=1", "conv=notrunc,fsync", "of=" + file},
			Stdin: bytes.NewReader(e.pattern()),
		})
		if err == nil && code != 0 {
			err = fmt.Errorf("writing to %s: dd ends with %d", e.name, code)
		}
		if e.written = err == nil; e.written {
			l.acknowledge(volumeWritten)
		}
		return err
	})
}

// verify reads what was written.
func (r *rig) verify(ctx context.Context, e *entry) error {
	return r.use(ctx, e, func(file string) error {
		out, err := r.run(ctx, "dd", "status=none", "iflag=fullblock", "bs=64k", "count=1", "if="+file)
		switch {
		case err != nil:
			return fmt.Errorf("read acknowledged volume %s: %w", e.name, err)
		case len(out) != patternBytes:
			return fmt.Errorf("acknowledged volume %s ends after %d bytes of %d", e.name, len(out), patternBytes)
		case out != string(e.pattern()):
			return fmt.Errorf("acknowledged volume %s lost what was written to it", e.name)
		}
		return nil
	})
}

// use gives f the file that holds the volume's pattern: the raw device, or a file
// in the file system, which is mounted meanwhile.
func (r *rig) use(ctx context.Context, e *entry, f func(file string) error) error {
	if e.block {
		return f(e.device)
	}
	dir := "/run/mount/" + e.name
	if _, err := r.run(ctx, "mkdir", "-p", dir); err != nil {
		return err
	}
	if _, err := r.run(ctx, "mount", e.device, dir); err != nil {
		return err
	}
	err := f(dir + "/data")
	if _, unmountErr := r.run(ctx, "umount", dir); err == nil {
		err = unmountErr
	}
	return err
}
