// Package luksfake is LUKS in memory, for tests of what is built on package luks.
// Devices need not exist.
package luksfake

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"syscall"

	"github.com/carve-csi/carve/pkg/luks"
)

// firstMinor is the minor number of the first mapping that is made.
const firstMinor = 1000

// Table implements luks.Interface. Its zero value is empty and ready. The hooks
// are called without its lock and may be nil.
type Table struct {
	// Formatted is called when a header was made, and what lay on the device is
	// lost.
	Formatted func(device, volume string)
	// Opened is called when a mapping was made or given another size.
	Opened func(device, volume string, m luks.Mapping)
	// Closed is called when a mapping was removed.
	Closed func(volume string)
	// InUse reports whether a mapping is open.
	InUse func(m luks.Mapping) bool
	// Working, when set, runs within Format, and its error is Format's: nothing
	// was done then.
	Working func(ctx context.Context, device string) error

	mu       sync.Mutex
	headers  map[string]header
	mappings map[string]mapping
	minted   uint32
	calls    []string
	cleared  map[string]int
	dead     map[string]bool
}

type header struct {
	volume, key string
	state       luks.State
	// weak headers are of an encryption that was not asked for.
	weak bool
}

type mapping struct {
	luks.Mapping
	device   string
	discards bool
}

var _ luks.Interface = (*Table)(nil)

// Calls returns the names of the methods that tried or changed something, in the
// order in which they were called.
func (t *Table) Calls() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.calls)
}

// Cleared returns how often a mapping's node was cleared.
func (t *Table) Cleared(device string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.cleared[device]
}

// Discards reports whether a volume's mapping lets discards through.
func (t *Table) Discards(volume string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mappings[volume].discards
}

// Reboot removes all mappings, in use or not.
func (t *Table) Reboot() {
	t.mu.Lock()
	gone := slices.Collect(maps.Keys(t.mappings))
	clear(t.mappings)
	t.mu.Unlock()
	for _, volume := range gone {
		t.closed(volume)
	}
}

// Interrupt leaves what is left of the making of a mapping that was interrupted.
func (t *Table) Interrupt(device, volume string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.add(volume, mapping{device: device})
}

// Kill makes reading a device fail.
func (t *Table) Kill(device string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.dead == nil {
		t.dead = map[string]bool{}
	}
	t.dead[device] = true
}

// Inspect implements luks.Interface.
func (t *Table) Inspect(device, volume string) (luks.State, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	h, ok := t.headers[device]
	switch {
	case t.dead[device]:
		return luks.Blank, &os.PathError{Op: "read", Path: device, Err: syscall.EIO}
	case ok && h.volume == "":
		return luks.Blank, fmt.Errorf("inspect %s: %w", device, luks.ErrDamaged)
	case ok && h.volume != volume:
		return luks.Blank, fmt.Errorf("inspect %s: %w", device, luks.ErrForeign)
	}
	return h.state, nil
}

// Damage makes the header on a device one that cannot be read.
func (t *Table) Damage(device string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.put(device, header{})
}

// Weaken has the header on a device ask for another encryption, as one does that another program
// wrote.
func (t *Table) Weaken(device string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.headers[device]
	h.weak = true
	t.put(device, h)
}

// Erase has a device read as zeroes.
func (t *Table) Erase(device string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.headers, device)
}

// Verify implements luks.Interface.
func (t *Table) Verify(device, volume string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if m, open := t.mappings[volume]; !open || m.device != device || t.headers[device].weak {
		return fmt.Errorf("verify %s: %w", volume, luks.ErrForeign)
	}
	return nil
}

// Format implements luks.Interface.
func (t *Table) Format(ctx context.Context, device, volume string, key []byte) error {
	if err := checkKey(key); err != nil {
		return err
	}
	if t.Working != nil {
		if err := t.Working(ctx, device); err != nil {
			return err
		}
	}
	t.mu.Lock()
	t.called("Format")
	for _, m := range t.mappings {
		if m.device == device {
			t.mu.Unlock()
			return fmt.Errorf("format %s: %w", device, luks.ErrInUse)
		}
	}
	t.put(device, header{volume: volume, key: string(key), state: luks.Making})
	t.mu.Unlock()
	if t.Formatted != nil {
		t.Formatted(device, volume)
	}
	return nil
}

// Finish implements luks.Interface.
func (t *Table) Finish(_ context.Context, device, volume string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.called("Finish")
	h := t.headers[device]
	if h.volume != volume {
		return fmt.Errorf("finish %s: %w", device, luks.ErrForeign)
	}
	h.state = luks.Made
	t.put(device, h)
	return nil
}

// Test implements luks.Interface.
func (t *Table) Test(_ context.Context, device, volume string, key []byte) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.called("Test")
	return t.try(device, volume, key)
}

// Open implements luks.Interface.
func (t *Table) Open(_ context.Context, device, volume string, key []byte, discards bool) error {
	t.mu.Lock()
	t.called("Open")
	if err := t.try(device, volume, key); err != nil {
		t.mu.Unlock()
		return err
	}
	if _, open := t.mappings[volume]; open {
		t.mu.Unlock()
		return fmt.Errorf("open %s: %w", volume, luks.ErrInUse)
	}
	m := t.add(volume, mapping{Mapping: luks.Mapping{Whole: true}, device: device, discards: discards})
	t.mu.Unlock()
	t.opened(volume, m)
	return nil
}

// Resize implements luks.Interface.
func (t *Table) Resize(_ context.Context, volume string) error {
	t.mu.Lock()
	t.called("Resize")
	m, open := t.mappings[volume]
	t.mu.Unlock()
	if !open {
		return fmt.Errorf("resize %s: it is not open", volume)
	}
	t.opened(volume, m)
	return nil
}

// Close implements luks.Interface.
func (t *Table) Close(_ context.Context, volume string) error {
	t.mu.Lock()
	t.called("Close")
	m, open := t.mappings[volume]
	t.mu.Unlock()
	switch {
	case !open:
		return fmt.Errorf("close %s: it is not open", volume)
	case t.InUse != nil && t.InUse(m.Mapping):
		return fmt.Errorf("close %s: %w", volume, luks.ErrInUse)
	}
	t.mu.Lock()
	delete(t.mappings, volume)
	t.mu.Unlock()
	t.closed(volume)
	return nil
}

// Clear implements luks.Interface.
func (t *Table) Clear(device string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.called("Clear")
	if t.cleared == nil {
		t.cleared = map[string]int{}
	}
	t.cleared[device]++
	return nil
}

// Mapping implements luks.Interface.
func (t *Table) Mapping(volume string) (luks.Mapping, bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m, ok := t.mappings[volume]
	return m.Mapping, ok, nil
}

// Mappings implements luks.Interface.
func (t *Table) Mappings() ([]string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Keys(t.mappings)), nil
}

func checkKey(key []byte) error {
	if len(key) == 0 || len(key) > luks.MaxKey {
		return luks.ErrBadKey
	}
	return nil
}

// try is Test with the lock held.
func (t *Table) try(device, volume string, key []byte) error {
	if err := checkKey(key); err != nil {
		return err
	}
	if h := t.headers[device]; h.volume != volume || h.key != string(key) {
		return fmt.Errorf("try the key of %s: %w", volume, luks.ErrWrongKey)
	}
	return nil
}

// add gives a mapping a number of its own; the lock is held.
func (t *Table) add(volume string, m mapping) mapping {
	if t.mappings == nil {
		t.mappings = map[string]mapping{}
	}
	m.Major, m.Minor = 253, firstMinor+t.minted
	t.minted++
	t.mappings[volume] = m
	return m
}

func (t *Table) put(device string, h header) {
	if t.headers == nil {
		t.headers = map[string]header{}
	}
	t.headers[device] = h
}

func (t *Table) called(name string) { t.calls = append(t.calls, name) }

func (t *Table) opened(volume string, m mapping) {
	if t.Opened != nil {
		t.Opened(m.device, volume, m.Mapping)
	}
}

func (t *Table) closed(volume string) {
	if t.Closed != nil {
		t.Closed(volume)
	}
}
