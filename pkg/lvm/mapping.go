package lvm

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/carve-csi/carve/pkg/devmapper"
)

// Piece is a stretch of a volume and where it lies.
type Piece struct {
	// Offset and Length are within the volume, in bytes.
	Offset, Length int64
	// Areas are what the piece takes of the group's physical volumes. A piece
	// that takes nothing itself, of a thin volume for example, has none.
	Areas []Area
	// Verbatim is true when what is written to the piece is all that is in its
	// areas: not where parity or a layout's own metadata lie among them.
	Verbatim bool
}

// Area is a stretch of a physical volume.
type Area struct {
	// Device is the physical volume's UUID.
	Device string
	// Start and Length are on the device, in bytes.
	Start, Length int64
}

// deviceNumber is the kernel's number of a block device.
type deviceNumber struct{ major, minor uint32 }

// resolver turns device-mapper tables into pieces. table is the kernel's,
// devices are the physical volumes.
type resolver struct {
	table   func(deviceNumber) ([]devmapper.Target, error)
	devices map[deviceNumber]string
}

// maxNesting bounds how deep volumes lie on volumes: thin on pool data on raid
// on its images is four.
const maxNesting = 8

// pieces resolves a table.
func (r *resolver) pieces(targets []devmapper.Target, depth int) ([]Piece, error) {
	if depth > maxNesting {
		return nil, fmt.Errorf("device-mapper tables are nested deeper than %d", maxNesting)
	}
	var all []Piece
	for _, t := range targets {
		p, err := r.piece(t, depth)
		if err != nil {
			return nil, fmt.Errorf("device-mapper target %q %q: %w", t.Kind, t.Params, err)
		}
		all = append(all, p)
	}
	return all, nil
}

func (r *resolver) piece(t devmapper.Target, depth int) (Piece, error) {
	p := Piece{Offset: t.Start * sector, Length: t.Length * sector, Verbatim: true}
	words := strings.Fields(t.Params)
	switch {
	case t.Kind == "linear" && len(words) == 2:
		return p, r.lie(&p, words, p.Length, depth)
	case t.Kind == "striped" && len(words) >= 4 && len(words)%2 == 0:
		stripes := int64(len(words)-2) / 2
		if words[0] != strconv.FormatInt(stripes, 10) || p.Length%(stripes*sector) != 0 {
			return p, fmt.Errorf("not %s stripes of equal length", words[0])
		}
		return p, r.lie(&p, words[2:], p.Length/stripes, depth)
	case t.Kind == "thin":
		return p, nil
	case t.Kind == "error", t.Kind == "zero":
		return p, nil
	default:
		// Whatever devices are named, all of each is taken.
		p.Verbatim = false
		return p, r.rest(&p, words, depth)
	}
}

// lie adds the areas that pairs of a device and a start in sectors name.
func (r *resolver) lie(p *Piece, pairs []string, length int64, depth int) error {
	for ; len(pairs) >= 2; pairs = pairs[2:] {
		start, err := strconv.ParseInt(pairs[1], 10, 64)
		if err != nil {
			return err
		}
		n, err := parseNumber(pairs[0])
		if err != nil {
			return err
		}
		if uuid, ok := r.devices[n]; ok {
			p.Areas = append(p.Areas, Area{Device: uuid, Start: start * sector, Length: length})
			continue
		}
		// A part of another volume: all of that one counts.
		p.Verbatim = false
		if err := r.descend(p, n, depth); err != nil {
			return err
		}
	}
	return nil
}

// rest adds all of each device that is named.
func (r *resolver) rest(p *Piece, words []string, depth int) error {
	found := false
	for _, w := range words {
		n, err := parseNumber(w)
		if err != nil {
			continue
		}
		found = true
		if _, ok := r.devices[n]; ok {
			return fmt.Errorf("it lies on a whole disk")
		}
		if err := r.descend(p, n, depth); err != nil {
			return err
		}
	}
	if !found {
		return fmt.Errorf("it names no device")
	}
	return nil
}

func (r *resolver) descend(p *Piece, n deviceNumber, depth int) error {
	targets, err := r.table(n)
	if err != nil {
		return err
	}
	below, err := r.pieces(targets, depth+1)
	for _, b := range below {
		p.Areas = append(p.Areas, b.Areas...)
	}
	return err
}

func parseNumber(s string) (deviceNumber, error) {
	major, minor, ok := strings.Cut(s, ":")
	a, err := strconv.ParseUint(major, 10, 32)
	if err == nil && ok {
		var b uint64
		if b, err = strconv.ParseUint(minor, 10, 32); err == nil {
			return deviceNumber{uint32(a), uint32(b)}, nil
		}
	}
	return deviceNumber{}, fmt.Errorf("%q is no device number", s)
}

// Mapping implements Groups: the tables in the kernel are what LVM made of its
// metadata, and cost a system call each.
func (h *Host) Mapping(group, volume string) ([]Piece, error) {
	r := &resolver{table: dmTableOf, devices: h.numbers(group)}
	targets, err := dmTable(dmName(group, volume))
	if err != nil {
		return nil, err
	}
	pieces, err := r.pieces(targets, 0)
	if err != nil {
		return nil, fmt.Errorf("where %s/%s lies: %w", group, volume, err)
	}
	return pieces, nil
}

// numbers are the device numbers of a group's physical volumes.
func (h *Host) numbers(group string) map[deviceNumber]string {
	h.mu.Lock()
	known := slices.Clone(h.physical[group])
	h.mu.Unlock()
	numbers := map[deviceNumber]string{}
	for _, d := range known {
		var st unix.Stat_t
		if unix.Stat(d.Path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFBLK {
			numbers[deviceNumber{unix.Major(st.Rdev), unix.Minor(st.Rdev)}] = d.UUID
		}
	}
	return numbers
}
