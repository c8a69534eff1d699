package scheduler

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func candidate(node string, free int64, volumes int) Candidate {
	return Candidate{Node: node, Volumes: volumes, FreeSpace: FreeSpace{Available: free, MaximumVolume: free}}
}

func TestPolicies(t *testing.T) {
	nodes := []Candidate{candidate("b", 50, 1), candidate("a", 50, 9), candidate("full", 5, 0), candidate("big", 90, 5)}
	for name, test := range map[string]struct {
		policy Policy
		want   []string
	}{
		"most-free prefers the emptiest node, then the name":  {MostFree, []string{"big", "a", "b"}},
		"least-free prefers the fullest node that still fits": {LeastFree, []string{"a", "b", "big"}},
		"fewest-volumes counts volumes, not bytes":            {FewestVolumes, []string{"b", "big", "a"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, c := range test.policy.Rank(10, nodes) {
				got = append(got, c.Node)
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

func TestRankNeverReturnsANodeThatDoesNotFit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		policy := rapid.SampledFrom([]Policy{MostFree, LeastFree, FewestVolumes}).Draw(t, "policy")
		size := rapid.Int64Range(0, 100).Draw(t, "size")
		var all []Candidate
		for i := range rapid.IntRange(0, 8).Draw(t, "nodes") {
			all = append(all, Candidate{Node: string(rune('a' + i)), FreeSpace: FreeSpace{
				Available:     rapid.Int64Range(0, 100).Draw(t, "available"),
				MaximumVolume: rapid.Int64Range(0, 100).Draw(t, "maximum")}})
		}
		for _, c := range policy.Rank(size, all) {
			if c.FreeSpace.Available < size || c.FreeSpace.MaximumVolume < size {
				t.Fatalf("%+v does not fit %d", c, size)
			}
		}
	})
}

func TestParsePolicy(t *testing.T) {
	if p, err := ParsePolicy(""); err != nil || p != MostFree {
		t.Errorf("default: %q %v", p, err)
	}
	if _, err := ParsePolicy("random"); err == nil {
		t.Error("an unknown policy was accepted")
	}
}
