package lvm

import (
	"errors"
	"fmt"
)

// Attr holds the ten decoded characters of lv_attr, see lvs(8).
type Attr struct {
	// Type is the first character: '-' plain, 'V' thin volume, 't' thin pool,
	// 's' snapshot, 'r' raid, 'm' mirror, …
	Type byte
	// Writable is false by metadata ('r') or only as activated ('R').
	Writable   bool
	Activation Activation
	Open       bool
	// Target is the seventh character, the kind of device that the kernel has or would have:
	// '-' plain, 't' thin, 'r' raid, 'C' cache, 's' snapshot, 'm' mirror, 'v' virtual, 'u'
	// unknown, …
	Target  byte
	ZeroNew bool
	Health  Health
	// SkipActivation means that activation needs -K.
	SkipActivation bool
}

// IsThinPool reports whether the volume is a thin pool.
func (a Attr) IsThinPool() bool { return a.Type == 't' }

// Activation is the fifth character of lv_attr.
type Activation int

// States of activation.
const (
	Inactive Activation = iota
	Active
	Suspended
	// InvalidSnapshot: the snapshot overflowed, active or suspended.
	InvalidSnapshot
	MergeFailed
	// MappedWithoutTables: the device exists but maps nothing.
	MappedWithoutTables
	// MappedInactiveTable: the device exists, but its table is not live.
	MappedInactiveTable
	// HistoricalVolume: the volume is gone, but LVM remembers it.
	HistoricalVolume
	// CheckNeeded: a thin pool needs a check of its metadata.
	CheckNeeded
	// UnknownActivation: LVM could not ask the kernel.
	UnknownActivation
)

// Health is the ninth character of lv_attr.
type Health int

// Conditions of a volume.
const (
	Healthy Health = iota
	Partial
	// RefreshNeeded: a RAID device came back or had write errors.
	RefreshNeeded
	MismatchesExist
	// WriteMostly: a RAID device is read only when necessary.
	WriteMostly
	Reshaping
	// ReshapeRemoved: a RAID device is left over from a reshape.
	ReshapeRemoved
	// Failed: a thin pool or cache failed and does no I/O.
	Failed
	OutOfDataSpace
	// MetadataReadOnly: a thin pool's metadata cannot be written.
	MetadataReadOnly
	WriteCacheError
	UnknownHealth
)

var activations = map[byte]Activation{
	'-': Inactive, 'a': Active, 's': Suspended, 'I': InvalidSnapshot, 'S': InvalidSnapshot,
	'm': MergeFailed, 'M': MergeFailed, 'd': MappedWithoutTables, 'i': MappedInactiveTable,
	'h': HistoricalVolume, 'c': CheckNeeded, 'C': CheckNeeded, 'X': UnknownActivation,
}

var healths = map[byte]Health{
	'-': Healthy, 'p': Partial, 'r': RefreshNeeded, 'm': MismatchesExist, 'w': WriteMostly,
	's': Reshaping, 'R': ReshapeRemoved, 'F': Failed, 'D': OutOfDataSpace, 'M': MetadataReadOnly,
	'E': WriteCacheError, 'X': UnknownHealth,
}

// ParseAttr decodes lv_attr. With an error, the rest of the result is valid or unknown.
func ParseAttr(s string) (Attr, error) {
	if len(s) != 10 {
		return Attr{Type: '-', Writable: true, Target: '-', Activation: UnknownActivation, Health: UnknownHealth},
			fmt.Errorf("lv_attr %q: want 10 characters, got %d", s, len(s))
	}
	var errs []error
	activation, ok := activations[s[4]]
	if !ok {
		activation = UnknownActivation
		errs = append(errs, fmt.Errorf("lv_attr %q: unknown state %q", s, s[4]))
	}
	health, ok := healths[s[8]]
	if !ok {
		health = UnknownHealth
		errs = append(errs, fmt.Errorf("lv_attr %q: unknown health %q", s, s[8]))
	}
	return Attr{
		Type:           s[0],
		Writable:       s[1] == 'w',
		Activation:     activation,
		Open:           s[5] == 'o',
		Target:         s[6],
		ZeroNew:        s[7] == 'z',
		Health:         health,
		SkipActivation: s[9] == 'k',
	}, errors.Join(errs...)
}
