package scheduler

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Candidate is a node that a volume could be made on.
type Candidate struct {
	Node      string
	FreeSpace FreeSpace
	// Volumes is how many it holds or is about to hold.
	Volumes int
	// Held says that nothing is to be placed on it: see Ledger.Hold. Its free space is none then.
	Held bool
}

// Policy says which of several nodes that fit is to be preferred.
type Policy string

const (
	// MostFree spreads: the node with the most free space.
	MostFree Policy = "most-free"
	// LeastFree packs: the node with the least free space that still fits.
	LeastFree Policy = "least-free"
	// FewestVolumes spreads by count: the node with the fewest volumes.
	FewestVolumes Policy = "fewest-volumes"
)

// Policies are all there are, the default one first.
var Policies = []Policy{MostFree, LeastFree, FewestVolumes}

// PolicyNames lists what ParsePolicy takes, for messages.
func PolicyNames() string {
	names := make([]string, len(Policies))
	for i, p := range Policies {
		names[i] = string(p)
	}
	return strings.Join(names, ", ")
}

// ParsePolicy returns the policy of that name; empty means the default one.
func ParsePolicy(name string) (Policy, error) {
	if name == "" {
		return Policies[0], nil
	}
	if !slices.Contains(Policies, Policy(name)) {
		return "", fmt.Errorf("placement policy %q is not allowed, allowed: %s", name, PolicyNames())
	}
	return Policy(name), nil
}

// Rank returns the candidates that fit a volume of size bytes, best first.
// Equal ones are ordered by name, so that the answer depends on nothing else.
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
