package iolimit

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
)

// Ranges of limits. Lower limits would make a volume unusable: one page of a
// journal must not take seconds.
const (
	// MinBPS and MaxBPS bound limits in bytes per second.
	MinBPS = 64 << 10
	MaxBPS = math.MaxInt64
	// MinIOPS and MaxIOPS bound limits in requests per second. The kernel has
	// 32 bits, and the largest number means no limit.
	MinIOPS = 10
	MaxIOPS = math.MaxUint32 - 1
)

// Limits are a volume's limits for each Pod on a node. Zero means no limit.
// They are comparable.
type Limits struct {
	// In bytes per second.
	ReadBPS  uint64 `json:"readBPS,omitempty"`
	WriteBPS uint64 `json:"writeBPS,omitempty"`
	// In requests per second.
	ReadIOPS  uint64 `json:"readIOPS,omitempty"`
	WriteIOPS uint64 `json:"writeIOPS,omitempty"`
}

// IsZero reports whether nothing is limited.
func (l Limits) IsZero() bool { return l == Limits{} }

// RangeError is a limit out of its range.
type RangeError struct {
	// Name is the field in lvmd's API, such as "read_bps".
	Name       string
	Given      uint64
	Least, Max uint64
}

// Error implements error.
func (e *RangeError) Error() string {
	return fmt.Sprintf("%s: %d is not allowed; allowed are 0, for no limit, and %d to %d", e.Name, e.Given, e.Least, e.Max)
}

// Check returns a *RangeError if a limit is out of its range.
func (l Limits) Check() error {
	for _, f := range []RangeError{
		{"read_bps", l.ReadBPS, MinBPS, MaxBPS}, {"write_bps", l.WriteBPS, MinBPS, MaxBPS},
		{"read_iops", l.ReadIOPS, MinIOPS, MaxIOPS}, {"write_iops", l.WriteIOPS, MinIOPS, MaxIOPS},
	} {
		if f.Given != 0 && (f.Given < f.Least || f.Given > f.Max) {
			return &f
		}
	}
	return nil
}

// String returns the stored form: bytes read, bytes written, reads and writes
// per second, joined by colons.
func (l Limits) String() string {
	return fmt.Sprintf("%d:%d:%d:%d", l.ReadBPS, l.WriteBPS, l.ReadIOPS, l.WriteIOPS)
}

// Parse parses the result of String.
func Parse(s string) (Limits, error) {
	var l Limits
	fields := []*uint64{&l.ReadBPS, &l.WriteBPS, &l.ReadIOPS, &l.WriteIOPS}
	words := strings.Split(s, ":")
	if len(words) != len(fields) {
		return Limits{}, fmt.Errorf("limits %q: want %d numbers joined by colons", s, len(fields))
	}
	for i, word := range words {
		n, err := strconv.ParseUint(word, 10, 64)
		if err != nil {
			return Limits{}, fmt.Errorf("limits %q: %w", s, err)
		}
		*fields[i] = n
	}
	return l, l.Check()
}

// FromProto converts limits from lvmd's API without checking them.
func FromProto(p *lvmdv1.IOLimits) Limits {
	return Limits{ReadBPS: p.GetReadBps(), WriteBPS: p.GetWriteBps(), ReadIOPS: p.GetReadIops(), WriteIOPS: p.GetWriteIops()}
}

// Proto converts limits to lvmd's API. It returns nil if nothing is limited.
func (l Limits) Proto() *lvmdv1.IOLimits {
	if l.IsZero() {
		return nil
	}
	return &lvmdv1.IOLimits{ReadBps: l.ReadBPS, WriteBps: l.WriteBPS, ReadIops: l.ReadIOPS, WriteIops: l.WriteIOPS}
}
