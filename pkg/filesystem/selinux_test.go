package filesystem

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestSELinuxContext(t *testing.T) {
	const label = "system_u:object_r:container_file_t:"
	for name, test := range map[string]struct {
		options []string
		want    string
	}{
		"none":                                {[]string{"rw", "seclabel", "noatime"}, ""},
		"without its quotes":                  {[]string{"rw", `context="` + label + `s0:c1,c3"`}, label + "s0:c1,c3"},
		"one that has none":                   {[]string{"context=" + label + "s0"}, label + "s0"},
		"categories are sorted":               {[]string{`context="` + label + `s0:c25,c3"`}, label + "s0:c3,c25"},
		"categories that follow are joined":   {[]string{`context="` + label + `s0:c3,c1,c2,c9,c8"`}, label + "s0:c1.c3,c8,c9"},
		"a range of one":                      {[]string{`context="` + label + `s0:c3.c3"`}, label + "s0:c3"},
		"the last category there is":          {[]string{`context="` + label + `s0:c0.c1023"`}, label + "s0:c0.c1023"},
		"a range of levels":                   {[]string{`context="` + label + `s0-s0:c2,c1"`}, label + "s0-s0:c1,c2"},
		"a range of one level":                {[]string{`context="` + label + `s0:c2,c1-s0:c1,c2"`}, label + "s0:c1,c2"},
		"what is not known is left alone":     {[]string{"context=" + label + "SystemHigh:c2,blue"}, label + "SystemHigh:c2,blue"},
		"more than there are, left alone too": {[]string{"context=" + label + "s0:c1024,c1"}, label + "s0:c1024,c1"},
		"a policy without levels":             {[]string{"context=user_u:role_r:type_t"}, "user_u:role_r:type_t"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := SELinuxContext(test.options); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestCategoriesAreTheSameHoweverTheyAreSpelled(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		of := func(categories []int) string {
			var spelled []string
			for _, c := range categories {
				spelled = append(spelled, fmt.Sprintf("c%d", c))
			}
			return SELinuxContext([]string{`context="u:r:t:s0:` + strings.Join(spelled, ",") + `"`})
		}
		categories := rapid.SliceOfN(rapid.IntRange(0, maxCategories-1), 1, 20).Draw(t, "categories")
		got, want := of(rapid.Permutation(categories).Draw(t, "in another order")), of(categories)
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		if again := SELinuxContext([]string{"context=" + want}); again != want {
			t.Errorf("spelled again: got %q, want %q", again, want)
		}
	})
}
