package trust

import (
	"bytes"
	"crypto/x509"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/carve-csi/carve/pkg/must"
)

const day = 24 * time.Hour

func mustAuthorities(t must.TB, now time.Time) *authorities {
	signer := must.Get(newAuthority(now))(t)
	return &authorities{signer: signer}
}

func mustRotate(t must.TB, a *authorities, now time.Time) (*authorities, bool) {
	next, changed, err := a.rotate(now)
	must.Succeed(t, err)
	return next, changed
}

func verifies(t must.TB, bundle []byte, a *authority, now time.Time) bool {
	cert := must.Get(a.serving(now, "host"))(t)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(bundle)
	_, err := cert.Leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: "host", CurrentTime: now})
	return err == nil
}

func TestRotationTakesOneStepAtATime(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	a := mustAuthorities(t, now)
	first := a.signer
	if _, changed := mustRotate(t, a, now.Add(200*day)); changed {
		t.Error("a CA that is valid for long was rotated")
	}
	now = now.Add(CALife - RotateBefore + time.Hour)
	a, changed := mustRotate(t, a, now)
	if !changed || a.next == nil || a.signer != first {
		t.Fatalf("near its end: %+v, want a next CA published and the signer kept", a)
	}
	if _, changed := mustRotate(t, a, now.Add(PublishOverlap-time.Minute)); changed {
		t.Error("the next CA signs before every node can know it")
	}
	now = now.Add(PublishOverlap)
	second := a.next
	a, changed = mustRotate(t, a, now)
	if !changed || a.signer != second || a.previous != first || a.next != nil {
		t.Fatalf("after the overlap: %+v, want the next CA to sign and the first to be previous", a)
	}
	if _, changed := mustRotate(t, a, now.Add(PublishOverlap-time.Minute)); changed {
		t.Error("the previous CA was dropped while replicas may serve with it")
	}
	a, changed = mustRotate(t, a, now.Add(PublishOverlap))
	if !changed || a.previous != nil || a.signer != second {
		t.Fatalf("after another overlap: %+v, want the previous CA dropped", a)
	}
}

func TestACAPastItsEndIsReplacedAtOnce(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	a := mustAuthorities(t, now)
	first := a.signer
	a, changed := mustRotate(t, a, now.Add(CALife+day))
	if !changed || a.signer == first || a.previous != nil {
		t.Errorf("%+v, want a new beginning", a)
	}
}

func TestAuthoritiesSurviveBeingStored(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	a := mustAuthorities(t, now)
	a.next = mustAuthorities(t, now).signer
	a.previous = &authority{cert: mustAuthorities(t, now).signer.cert}
	a.since = now
	data := must.Get(a.data())(t)
	b := must.Get(parseAuthorities(data))(t)
	if !bytes.Equal(a.bundle(), b.bundle()) || !b.since.Equal(now) {
		t.Error("what was read is not what was stored")
	}
	data[keySignerKey] = data[keyNextKey]
	if _, err := parseAuthorities(data); err == nil {
		t.Error("a key that belongs to another certificate was accepted")
	}
	if _, err := parseAuthorities(nil); err == nil {
		t.Error("an empty Secret was accepted")
	}
}

// A node has a bundle that was published within the last PublishOverlap, and a replica may still
// serve with the signer of the previous step. However irregularly rotate is called, the node must
// be able to verify the replica.
func TestNoNodeIsEverShownACertificateItCannotVerify(t *testing.T) {
	type past struct {
		bundle []byte
		until  time.Time // when it was replaced
	}
	rapid.Check(t, func(t *rapid.T) {
		now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
		a := mustAuthorities(t, now)
		now = a.signer.cert.NotAfter.Add(-RotateBefore - 2*day)
		var held []past
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(1, 72).Draw(t, "hours")) * time.Hour)
			before := a
			a, _ = mustRotate(t, a, now)
			held = append(held, past{before.bundle(), now})
			for _, p := range held {
				if now.Sub(p.until) < PublishOverlap && !verifies(t, p.bundle, a.signer, now) {
					t.Fatal("a node with a recent bundle cannot verify the current signer")
				}
			}
			if !verifies(t, a.bundle(), before.signer, now) {
				t.Fatal("a replica that has not followed the rotation yet is not trusted any more")
			}
		}
	})
}
