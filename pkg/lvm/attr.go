package lvm

import (
	"errors"
	"fmt"
)

// Attr is the ten characters of lv_attr, decoded. lvs(8) lists them.
type Attr struct {
	// Type is the first character: '-' plain, 'V' thin volume, 't' thin pool,
	// 's' snapshot, 'r' raid, 'm' mirror, …
	Type byte
	// Writable is false for volumes that are read-only, be it by metadata
	// ('r') or only as activated ('R').
	Writable bool
	// Activation is the state of the device.
	Activation Activation
	// Open is true when the device is open.
	Open bool
	// Target is the seventh character, the kind of device that the kernel has, or
	// would have: '-' plain, 't' thin, 'r' raid, 'C' cache, 's' snapshot, 'm' mirror,
	// 'v' virtual, 'u' unknown, …
	Target byte
	// ZeroNew is true when new blocks of a thin pool are zeroed.
	ZeroNew bool
	// Health is what LVM says of the volume's condition.
	Health Health
	// SkipActivation is true when activation needs -K.
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
	// InvalidSnapshot: a snapshot that overflowed, active or suspended.
	InvalidSnapshot
	// MergeFailed: merging a snapshot failed.
	MergeFailed
	// MappedWithoutTables: a device exists but maps nothing.
	MappedWithoutTables
	// MappedInactiveTable: a device exists whose table is not yet live.
	MappedInactiveTable
	// HistoricalVolume: the volume is gone; LVM remembers it.
	HistoricalVolume
	// CheckNeeded: a thin pool whose metadata must be checked.
	CheckNeeded
	// UnknownActivation: LVM could not ask the kernel.
	UnknownActivation
)

// Health is the ninth character of lv_attr.
type Health int

// Conditions of a volume.
const (
	Healthy Health = iota
	// Partial: one or more devices the volume lies on are missing.
	Partial
	// RefreshNeeded: a RAID device came back or had write errors.
	RefreshNeeded
	// MismatchesExist: a RAID scrub found differences.
	MismatchesExist
	// WriteMostly: a RAID device is read only when it must be.
	WriteMostly
	// Reshaping: a RAID volume is changing its layout.
	Reshaping
	// ReshapeRemoved: a RAID device is left over from a reshape.
	ReshapeRemoved
	// Failed: a thin pool or cache failed and answers no more I/O.
	Failed
	// OutOfDataSpace: a thin pool is full.
	OutOfDataSpace
	// MetadataReadOnly: a thin pool's metadata cannot be written.
	MetadataReadOnly
	// WriteCacheError: a write cache had an error.
	WriteCacheError
	// UnknownHealth: LVM does not know.
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

// ParseAttr decodes lv_attr. It fails on anything but ten characters of which
// the fifth and the ninth are known; in what it returns then, what is not known is unknown.
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
