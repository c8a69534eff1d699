//go:build !kernel

package inventory_test

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/carve-csi/carve/pkg/lvmd/inventory"
	"github.com/carve-csi/carve/pkg/must"
)

// at is a volume's lifecycle in a state that its table leads to.
func at(t *testing.T, path ...inventory.State) *inventory.Lifecycle {
	t.Helper()
	l := &inventory.Lifecycle{}
	for _, s := range path {
		must.Succeed(t, l.Enter(s))
	}
	return l
}

func TestOnlyTheTableAndItsRulesLeadFromStateToState(t *testing.T) {
	for _, c := range []struct {
		name  string
		path  []inventory.State
		to    inventory.State
		legal bool
	}{
		{"a creation is finished", []inventory.State{inventory.Creating}, inventory.Ready, true},
		{"a deletion that is refused", []inventory.State{inventory.Ready, inventory.Deleting}, inventory.Ready, true},
		{"a deletion of an unfinished volume that is refused", []inventory.State{inventory.Unfinished, inventory.Deleting}, inventory.Unfinished, true},
		{"a refused deletion does not finish a volume", []inventory.State{inventory.Unfinished, inventory.Deleting}, inventory.Ready, false},
		{"an expanded volume vanishes", []inventory.State{inventory.Ready, inventory.Expanding}, inventory.Gone, true},
		{"two operations claim a volume", []inventory.State{inventory.Ready, inventory.Expanding}, inventory.Deleting, false},
		{"an unfinished volume is formatted after all", []inventory.State{inventory.Unfinished}, inventory.Creating, false},
		{"a tombstone comes back", []inventory.State{inventory.Deleted}, inventory.Ready, false},
		{"a volume that was never handed out is not wiped", []inventory.State{inventory.Ready, inventory.Deleting, inventory.Deleted}, inventory.Wiped, true},
		{"a volume is wiped that is not deleted", []inventory.State{inventory.Ready}, inventory.Wiped, false},
		{"a volume vanishes that is being reformatted", []inventory.State{inventory.KeyLost, inventory.Checking, inventory.Reformatting}, inventory.Gone, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := at(t, c.path...)
			from := l.State()
			err := l.Enter(c.to)
			var illegal *inventory.TransitionError
			if (err == nil) != c.legal || err != nil && (!errors.As(err, &illegal) || illegal.From != from || illegal.To != c.to) {
				t.Errorf("error %v", err)
			}
			if l.State() != c.to {
				t.Errorf("state %q, want %q: what happened is not undone by being illegal", l.State(), c.to)
			}
		})
	}
}

func TestNothingLeadsOutOfGone(t *testing.T) {
	l := at(t, inventory.Ready, inventory.Deleting, inventory.Gone)
	for _, to := range []inventory.State{l.Released(), l.Begun(), l.Ended(), inventory.Deleted, inventory.Ready} {
		if err := l.Enter(to); err != nil || l.State() != inventory.Gone {
			t.Errorf("to %q: state %q, error %v", to, l.State(), err)
		}
	}
}

// TestEveryPhaseIsRecalledInAStateThatHasIt: a start goes on where the journal says.
func TestEveryPhaseIsRecalledInAStateThatHasIt(t *testing.T) {
	for _, tr := range inventory.Transitions {
		p := inventory.PhaseOf(tr.To)
		if p == "" {
			continue
		}
		if s := inventory.Recalled(p); inventory.PhaseOf(s) != p {
			t.Errorf("phase %q is recalled as %q, which has phase %q", p, s, inventory.PhaseOf(s))
		}
	}
}

func TestTheDocumentDrawsTheTable(t *testing.T) {
	text := must.Get(os.ReadFile("../../../docs/explanation/volumes.md"))(t)
	name := func(s inventory.State) string {
		if s == inventory.New {
			return "[*]"
		}
		return string(s)
	}
	var want, drawn []string
	for _, tr := range inventory.Transitions {
		want = append(want, fmt.Sprintf("%s --> %s: %s", name(tr.From), name(tr.To), tr.Cause))
	}
	for _, m := range regexp.MustCompile(`(?m)^    (\S+ --> .*)$`).FindAllSubmatch(text, -1) {
		drawn = append(drawn, string(m[1]))
	}
	for _, edge := range want {
		if !slices.Contains(drawn, edge) {
			t.Errorf("not drawn: %s", edge)
		}
	}
	for _, edge := range drawn {
		if !slices.Contains(want, edge) {
			t.Errorf("drawn, and not in the table: %s", edge)
		}
	}
	for _, tr := range inventory.Transitions {
		if row := fmt.Sprintf("| `%s` |", tr.To); !regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(row)).Match(text) {
			t.Errorf("state %q is not explained", tr.To)
		}
	}
}
