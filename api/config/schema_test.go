package config

import (
	"encoding/json"
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/carve-csi/carve/pkg/must"
)

type schemaNode struct {
	Properties map[string]*schemaNode `json:"properties"`
	Additional *bool                  `json:"additionalProperties"`
	Required   []string               `json:"required"`
	Items      *schemaNode            `json:"items"`
	Enum       []any                  `json:"enum"`
	Pattern    string                 `json:"pattern"`
}

// problemsOf returns the parser's reports about a key.
func problemsOf(t *testing.T, file, key string) []string {
	t.Helper()
	_, err := Parse("f", []byte(file))
	var problems Problems
	if !errors.As(err, &problems) {
		t.Fatalf("no problem in\n%s\nbut %v", file, err)
	}
	var reasons []string
	for _, p := range problems {
		if p.Key == key {
			reasons = append(reasons, p.Reason)
		}
	}
	return reasons
}

// place surrounds a value with open and shut.
type place struct {
	open, shut string
	key        string
}

func (p place) with(value string) string { return p.open + value + p.shut }

func (p place) child(name string) place {
	key := name
	if p.key != "" {
		key = p.key + "." + name
	}
	return place{open: p.open + "{" + name + ": ", shut: "}" + p.shut, key: key}
}

func (p place) item() place {
	return place{open: p.open + "[", shut: "]" + p.shut, key: p.key + "[0]"}
}

func TestTheSchemaKnowsWhatTheParserKnows(t *testing.T) {
	var root schemaNode
	must.Succeed(t, json.Unmarshal(Schema(), &root))
	compare(t, &root, place{})
}

// compare checks the schema's keys, required keys and allowed words against the parser.
func compare(t *testing.T, n *schemaNode, at place) {
	t.Helper()
	if n.Pattern != "" {
		if _, err := regexp.Compile(n.Pattern); err != nil {
			t.Errorf("%s: %v", at.key, err)
		}
	}
	switch {
	case n.Properties != nil:
		if n.Additional == nil || *n.Additional {
			t.Errorf("%s: the schema allows any key", at.key)
		}
		var names []string
		for name := range n.Properties {
			names = append(names, name)
		}
		slices.Sort(names)
		unknown := at.child("unknownKey")
		want := "unknown key; allowed are " + strings.Join(names, ", ")
		if got := problemsOf(t, unknown.with("1"), unknown.key); !slices.Contains(got, want) {
			t.Errorf("%s: the parser says %q, the schema %q", at.key, got, want)
		}
		for _, name := range names {
			missing := slices.Contains(problemsOf(t, at.with("{}"), at.child(name).key), "missing; it is required")
			if required := slices.Contains(n.Required, name); missing != required {
				t.Errorf("%s: required in the parser %v, in the schema %v", at.child(name).key, missing, required)
			}
			compare(t, n.Properties[name], at.child(name))
		}
	case n.Items != nil:
		if got := problemsOf(t, at.with("1"), at.key); len(got) == 0 {
			t.Errorf("%s: a list for the schema, but not for the parser", at.key)
		}
		compare(t, n.Items, at.item())
	case n.Enum != nil:
		var words []string
		for _, e := range n.Enum {
			if word, ok := e.(string); ok {
				words = append(words, word)
			}
		}
		got := problemsOf(t, at.with("unknownKey"), at.key)
		if words != nil && !slices.Contains(got, "allowed is "+strings.Join(words, " or ")) {
			t.Errorf("%s: the parser says %q, the schema allows %q", at.key, got, words)
		}
	default:
		for _, reason := range problemsOf(t, at.with("{a: b}"), at.key) {
			if strings.HasPrefix(reason, "allowed is ") || strings.HasPrefix(reason, "must be a mapping") {
				t.Errorf("%s: the schema lacks that %s", at.key, reason)
			}
		}
	}
}
