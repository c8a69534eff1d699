package quantity

import (
	"math"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestSizesAreWrittenAsPeopleWriteThem(t *testing.T) {
	for bytes, want := range map[int64]string{
		0: "0", 1: "1", 1000: "1000", 1024: "1Ki", 100 << 30: "100Gi", 1536 << 20: "1536Mi", 128 << 20: "128Mi",
		107307073536: "99.93Gi", 1<<30 + 1: "1Gi", 123456789: "117.73Mi", 5 << 50: "5Pi",
		-1: "-1", math.MaxInt64: "8191.99Pi", 536870912: "512Mi", 1<<30 + 100<<20: "1124Mi",
	} {
		if got := Bytes(bytes); got != want {
			t.Errorf("%d bytes: %q, want %q", bytes, got, want)
		}
	}
}

// value reads what Bytes wrote, in bytes.
func value(t *rapid.T, text string) float64 {
	for _, u := range units {
		if number, ok := strings.CutSuffix(text, u.suffix); ok {
			f, err := strconv.ParseFloat(number, 64)
			if err != nil {
				t.Fatal(err)
			}
			return f * float64(u.bytes)
		}
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestNoSizeIsWrittenLargerThanItIsOrMuchSmaller(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64Range(0, math.MaxInt64).Draw(t, "bytes")
		text := Bytes(n)
		if got := value(t, text); got > float64(n) || got < float64(n)*0.98 || len(text) > 10 {
			t.Fatalf("%d bytes are written as %q", n, text)
		}
	})
}
