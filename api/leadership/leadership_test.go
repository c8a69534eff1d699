package leadership

import (
	"context"
	"testing"

	"google.golang.org/grpc/metadata"
	"pgregory.net/rapid"
)

func leaderships() *rapid.Generator[Leadership] {
	return rapid.Custom(func(t *rapid.T) Leadership {
		return Leadership{
			Cluster:     rapid.StringMatching(`[!-~]{1,40}`).Draw(t, "cluster"),
			Lease:       rapid.Int64().Draw(t, "lease"),
			Transitions: rapid.Int64Range(0, 1<<31).Draw(t, "transitions"),
		}
	})
}

func TestWhatIsSentIsRead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := leaderships().Draw(t, "leadership")
		got, err := Parse(want.String())
		if err != nil || got != want {
			t.Fatalf("%v is sent as %q and read as %v, error %v", want, want.String(), got, err)
		}
	})
}

func TestOnlyOneOfTwoIsTheEarlier(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := leaderships().Draw(t, "a"), leaderships().Draw(t, "b")
		same := a.Lease == b.Lease && a.Transitions == b.Transitions
		if a.Before(b) == b.Before(a) != same {
			t.Fatalf("%v before %v: %t, and the other way round: %t", a, b, a.Before(b), b.Before(a))
		}
	})
	for _, c := range []struct {
		name           string
		earlier, later Leadership
	}{
		{"the same lease", Leadership{Lease: 5, Transitions: 2}, Leadership{Lease: 5, Transitions: 3}},
		{"a lease that was made again", Leadership{Lease: 5, Transitions: 2}, Leadership{Lease: 6}},
	} {
		if !c.earlier.Before(c.later) {
			t.Errorf("%s: %v is not before %v", c.name, c.earlier, c.later)
		}
	}
}

func TestWhatIsNoNumberIsRefused(t *testing.T) {
	for _, s := range []string{"", "1", "1.2", "1.2/", "a.2/c", "1.b/c", "1/c", "9223372036854775808.1/c"} {
		if l, err := Parse(s); err == nil {
			t.Errorf("%q is read as %v", s, l)
		}
	}
}

// received is the server's context of a call.
func received(ctx context.Context) context.Context {
	sent, _ := metadata.FromOutgoingContext(ctx)
	return metadata.NewIncomingContext(context.Background(), sent)
}

func TestACallDuringALeadershipCarriesItAndEndsWithIt(t *testing.T) {
	want := Leadership{Cluster: "c", Lease: 5, Transitions: 2}
	leading, stop := context.WithCancel(With(t.Context(), want))
	ctx, free := During(t.Context(), leading)
	defer free()
	if got, has, err := Of(received(ctx)); got != want || !has || err != nil {
		t.Errorf("the call carries %v (%t, %v), want %v", got, has, err, want)
	}
	if ctx.Err() != nil {
		t.Errorf("the call ended before the leadership: %v", ctx.Err())
	}
	stop()
	<-ctx.Done()

	ctx, free = During(t.Context(), t.Context())
	defer free()
	if got, has, err := Of(received(ctx)); has || err != nil {
		t.Errorf("a call of no leader carries %v, error %v", got, err)
	}
}
