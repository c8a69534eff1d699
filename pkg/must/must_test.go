package must

import (
	"errors"
	"fmt"
	"testing"
)

// recorder keeps what a test was ended with. Unlike a test it goes on.
type recorder struct{ fatal []string }

func (r *recorder) Helper()           {}
func (r *recorder) Fatal(args ...any) { r.fatal = append(r.fatal, fmt.Sprint(args...)) }

func TestAnErrorEndsTheTestWithItsText(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{{nil, "[]"}, {errors.New("no such file"), "[no such file]"}} {
		var succeed, get recorder
		Succeed(&succeed, c.err)
		if got := Get(7, c.err)(&get); got != 7 {
			t.Errorf("Get with error %v returned %d, want 7", c.err, got)
		}
		if s, g := fmt.Sprint(succeed.fatal), fmt.Sprint(get.fatal); s != c.want || g != c.want {
			t.Errorf("error %v: Succeed ended with %s, Get with %s, want %s", c.err, s, g, c.want)
		}
	}
}
