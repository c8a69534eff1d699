package scheduler

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Candidate is a node that may take a volume.
type Candidate struct {
	Node      string
	FreeSpace FreeSpace
	// Volumes counts the volumes that it holds or will hold.
	Volumes int
	// Held means that Ledger.Hold closed it to placements; its free space is then zero.
	Held bool
}

// Policy ranks the nodes that fit a volume.
type Policy string

const (
	// MostFree spreads: it prefers the most free space.
	MostFree Policy = "most-free"
	// LeastFree packs: it prefers the least free space that fits.
	LeastFree Policy = "least-free"
	// FewestVolumes spreads by count.
	FewestVolumes Policy = "fewest-volumes"
)

// Policies lists all policies, the default first.
var Policies = []Policy{MostFree, LeastFree, FewestVolumes}

// PolicyNames lists the valid names, for messages.
func PolicyNames() string {
	names := make([]string, len(Policies))
	for i, p := range Policies {
		names[i] = string(p)
	}
	return strings.Join(names, ", ")
}

// ParsePolicy returns the policy of that name; empty means the default.
func ParsePolicy(name string) (Policy, error) {
	if name == "" {
		return Policies[0], nil
	}
	if !slices.Contains(Policies, Policy(name)) {
		return "", fmt.Errorf("placement policy %q is not allowed, allowed: %s", name, PolicyNames())
	}
	return Policy(name), nil
}

// Rank returns the candidates that fit a volume of size bytes, best first. It orders equal ones by
// name, for a deterministic result.
func (p Policy) Rank(size int64, candidates []Candidate) []Candidate {
	fit := slices.DeleteFunc(slices.Clone(candidates), func(c Candidate) bool { return !c.FreeSpace.fits(size) })
	slices.SortFunc(fit, func(a, b Candidate) int {
		var d int
		switch p {
		case LeastFree:
			d = cmp.Compare(a.FreeSpace.Available, b.FreeSpace.Available)
		case FewestVolumes:
			d = cmp.Or(cmp.Compare(a.Volumes, b.Volumes), cmp.Compare(b.FreeSpace.Available, a.FreeSpace.Available))
		default:
			d = cmp.Compare(b.FreeSpace.Available, a.FreeSpace.Available)
		}
		return cmp.Or(d, strings.Compare(a.Node, b.Node))
	})
	return fit
}
