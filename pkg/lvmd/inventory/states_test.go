//go:build !kernel

package inventory

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/carve-csi/carve/pkg/must"
)

func at(t *testing.T, path ...State) *lifecycle {
	t.Helper()
	l := &lifecycle{}
	for _, s := range path {
		must.Succeed(t, l.enter(s))
	}
	return l
}

func TestOnlyTheTableAndItsRulesLeadFromStateToState(t *testing.T) {
	for _, c := range []struct {
		name  string
		path  []State
		to    State
		legal bool
	}{
		{"a creation is finished", []State{Creating}, Ready, true},
		{"a deletion that is refused", []State{Ready, Deleting}, Ready, true},
		{"a deletion of an unfinished volume that is refused", []State{Unfinished, Deleting}, Unfinished, true},
		{"a refused deletion does not finish a volume", []State{Unfinished, Deleting}, Ready, false},
		{"an expanded volume vanishes", []State{Ready, Expanding}, Gone, true},
		{"two operations claim a volume", []State{Ready, Expanding}, Deleting, false},
		{"an unfinished volume is formatted after all", []State{Unfinished}, Creating, false},
		{"a tombstone comes back", []State{Deleted}, Ready, false},
		{"a volume that was never handed out is not wiped", []State{Ready, Deleting, Deleted}, Wiped, true},
		{"a volume is wiped that is not deleted", []State{Ready}, Wiped, false},
		{"a volume vanishes that is being reformatted", []State{KeyLost, Checking, Reformatting}, Gone, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := at(t, c.path...)
			from := l.state
			err := l.enter(c.to)
			var illegal *TransitionError
			if (err == nil) != c.legal || err != nil && (!errors.As(err, &illegal) || illegal.From != from || illegal.To != c.to) {
				t.Errorf("error %v", err)
			}
			if l.state != c.to {
				t.Errorf("state %q, want %q: what happened is not undone by being illegal", l.state, c.to)
			}
		})
	}
}

func TestNothingLeadsOutOfGone(t *testing.T) {
	l := at(t, Ready, Deleting, Gone)
	for _, to := range []State{l.released(), l.begun(), l.ended(), Deleted, Ready} {
		if err := l.enter(to); err != nil || l.state != Gone {
			t.Errorf("to %q: state %q, error %v", to, l.state, err)
		}
	}
}

func TestEveryPhaseIsRecalledInAStateThatHasIt(t *testing.T) {
	for _, tr := range Transitions {
		p := phaseOf(tr.To)
		if p == "" {
			continue
		}
		if s := recalled(p); phaseOf(s) != p {
			t.Errorf("phase %q is recalled as %q, which has phase %q", p, s, phaseOf(s))
		}
	}
}

func TestTheDocumentDrawsTheTable(t *testing.T) {
	text := must.Get(os.ReadFile("../../../docs/explanation/volumes.md"))(t)
	name := func(s State) string {
		if s == New {
			return "[*]"
		}
		return string(s)
	}
	var want, drawn []string
	for _, tr := range Transitions {
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
	for _, tr := range Transitions {
		if row := fmt.Sprintf("| `%s` |", tr.To); !regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(row)).Match(text) {
			t.Errorf("state %q is not explained", tr.To)
		}
	}
}
