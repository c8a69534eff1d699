package audit

import (
	"slices"
	"testing"
)

func TestOnlyIn(t *testing.T) {
	for name, test := range map[string]struct {
		before, now     map[string]string
		appeared, ended []string
	}{
		"nothing":         {nil, nil, nil, nil},
		"the first":       {nil, map[string]string{"b": "1", "a": "1"}, []string{"a", "b"}, nil},
		"the last":        {map[string]string{"b": "1", "a": "1"}, nil, nil, []string{"a", "b"}},
		"one for another": {map[string]string{"a": "1", "b": "1"}, map[string]string{"b": "1", "c": "1"}, []string{"c"}, []string{"a"}},
		"another message": {map[string]string{"a": "1"}, map[string]string{"a": "2"}, nil, nil},
	} {
		if appeared, ended := onlyIn(test.now, test.before), onlyIn(test.before, test.now); !slices.Equal(appeared, test.appeared) || !slices.Equal(ended, test.ended) {
			t.Errorf("%s: %q appeared and %q ended, want %q and %q", name, appeared, ended, test.appeared, test.ended)
		}
	}
}
