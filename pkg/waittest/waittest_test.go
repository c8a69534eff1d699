package waittest

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestAWaitEndsWithItsCondition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin, asked := time.Now(), 0
		Until(t, "the third question", func() bool { asked++; return asked == 3 })
		if took := time.Since(begin); asked != 3 || took != 2*shortPause {
			t.Errorf("asked %d times within %v", asked, took)
		}
		asked = 0
		Succeeds(t, "the second question", func() error {
			if asked++; asked < 2 {
				return errors.New("not yet")
			}
			return nil
		})
		if asked != 2 {
			t.Errorf("asked %d times", asked)
		}
	})
}

func TestAWaitThatEndsInVainSaysForWhatAndTheLastState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin, asked := time.Now(), 0
		got := within(Limit, "the impossible", func() bool { asked++; return false }, func() any { return asked }, func() any { return "and more" })
		if took := time.Since(begin); took < Limit || took > Limit+longPause {
			t.Errorf("it took %v", took)
		}
		if rarely, often := int(Limit/longPause), int(Limit/shortPause)/10; asked < rarely || asked > often {
			t.Errorf("asked %d times, want %d to %d", asked, rarely, often)
		}
		for _, want := range []string{"not within 2m0s", "the impossible", fmt.Sprint("at last: ", asked), "at last: and more"} {
			if !strings.Contains(got, want) {
				t.Errorf("%q does not say %q", got, want)
			}
		}
	})
}
