package lvm

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/devmapper"
)

// Segment is a stretch of a volume.
type Segment struct {
	// Both are in bytes.
	Offset, Length int64
	// Areas are the segment's stretches of physical volumes. A segment without any of its own,
	// such as a thin volume's, has none.
	Areas []Area
	// Exact means that the areas hold the segment's data and nothing else, such as parity or a
	// layout's metadata.
	Exact bool
}

// Area is a stretch of a physical volume.
type Area struct {
	// Device is the physical volume's UUID.
	Device string
	// Both are on the device, in bytes.
	Start, Length int64
}

type resolver struct {
	table   func(blockdev.Number) ([]devmapper.Target, error)
	devices map[blockdev.Number]string
}

// Volumes lie at most four deep: thin on pool data on raid on its images.
const maxNesting = 8

func (r *resolver) segments(targets []devmapper.Target, depth int) ([]Segment, error) {
	if depth > maxNesting {
		return nil, fmt.Errorf("device-mapper tables are nested deeper than %d", maxNesting)
	}
	var all []Segment
	for _, t := range targets {
		p, err := r.segment(t, depth)
		if err != nil {
			return nil, fmt.Errorf("device-mapper target %q %q: %w", t.Kind, t.Params, err)
		}
		all = append(all, p)
	}
	return all, nil
}

func (r *resolver) segment(t devmapper.Target, depth int) (Segment, error) {
	p := Segment{Offset: t.Start * sector, Length: t.Length * sector, Exact: true}
	words := strings.Fields(t.Params)
	switch {
	case t.Kind == "linear" && len(words) == 2:
		return p, r.areas(&p, words, p.Length, depth)
	case t.Kind == "striped" && len(words) >= 4 && len(words)%2 == 0:
		stripes := int64(len(words)-2) / 2
		if words[0] != strconv.FormatInt(stripes, 10) || p.Length%(stripes*sector) != 0 {
			return p, fmt.Errorf("not %s stripes of equal length", words[0])
		}
		return p, r.areas(&p, words[2:], p.Length/stripes, depth)
	case t.Kind == "thin":
		return p, nil
	case t.Kind == "error", t.Kind == "zero":
		return p, nil
	default:
		// All of each device counts.
		p.Exact = false
		return p, r.rest(&p, words, depth)
	}
}

// areas takes pairs of a device and a start in sectors.
func (r *resolver) areas(p *Segment, pairs []string, length int64, depth int) error {
	for ; len(pairs) >= 2; pairs = pairs[2:] {
		start, err := strconv.ParseInt(pairs[1], 10, 64)
		if err != nil {
			return err
		}
		n, err := blockdev.ParseNumber(pairs[0])
		if err != nil {
			return err
		}
		if uuid, ok := r.devices[n]; ok {
			p.Areas = append(p.Areas, Area{Device: uuid, Start: start * sector, Length: length})
			continue
		}
		// All of the other volume counts.
		p.Exact = false
		if err := r.descend(p, n, depth); err != nil {
			return err
		}
	}
	return nil
}

func (r *resolver) rest(p *Segment, words []string, depth int) error {
	found := false
	for _, w := range words {
		n, err := blockdev.ParseNumber(w)
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

func (r *resolver) descend(p *Segment, n blockdev.Number, depth int) error {
	targets, err := r.table(n)
	if err != nil {
		return err
	}
	below, err := r.segments(targets, depth+1)
	for _, b := range below {
		p.Areas = append(p.Areas, b.Areas...)
	}
	return err
}
