// Package lukstest is the suite that every luks.Interface passes, cryptsetup on
// the running kernel as well as the fake.
package lukstest

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/carve-csi/carve/pkg/luks"
)

// Volume is the name of the volume in the suite.
const Volume = "cvabcdefghijklmnopqrstuvwxyz"

// Key is its key: neither zeroes nor newlines end it.
var Key = []byte("a key \x00 with a\nnewline in it")

// Harness is one implementation and a device for it.
type Harness struct {
	luks.Interface
	// Device is blank.
	Device string
	// Hold opens a node of a mapping until release is called.
	Hold func(t *testing.T, node string) (release func())
	// Grow gives the device so many bytes more.
	Grow func(t *testing.T, more int64)
	// Size is that of a mapping.
	Size func(t *testing.T, node string) int64
	// Interrupt leaves what is left of a mapping's making that was interrupted.
	Interrupt func(t *testing.T, volume string)
	// Fail has the device fail until revive is called.
	Fail func(t *testing.T) (revive func())
}

// Run runs the suite: one volume from its making to its end. Nothing is mapped before and after.
func Run(t *testing.T, h Harness) {
	for _, c := range []struct {
		name string
		run  func(context.Context, *testing.T, Harness)
	}{
		{"a new device is blank and has no mapping", blank},
		{"a header in the making is distinguished from none and from another volume's", making},
		{"only its key opens a volume, and only once", opens},
		{"a mapping grows while it is in use, and is not closed then", grows},
		{"a volume that was finished stays so", stays},
		{"what is left of an interrupted mapping is found and closed", interrupted},
		{"a mapping is closed when its device failed", fails},
	} {
		if !t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			c.run(ctx, t, h)
		}) {
			return // Each begins where the one before ended.
		}
	}
}

func blank(_ context.Context, t *testing.T, h Harness) {
	h.wantState(t, luks.Blank)
	h.wantMapping(t, false, false)
	for _, bad := range [][]byte{nil, make([]byte, luks.MaxKey+1)} {
		for what, err := range map[string]error{
			"Format": h.Format(t.Context(), h.Device, Volume, bad), "Test": h.Test(t.Context(), h.Device, Volume, bad),
			"Open": h.Open(t.Context(), h.Device, Volume, bad, false),
		} {
			want(t, err, luks.ErrBadKey, what)
		}
	}
}

func making(ctx context.Context, t *testing.T, h Harness) {
	want(t, h.Format(ctx, h.Device, Volume, Key), nil, "Format")
	h.wantState(t, luks.Making)
	_, err := h.Inspect(h.Device, "cvother")
	want(t, err, luks.ErrForeign, "Inspect")
}

func opens(ctx context.Context, t *testing.T, h Harness) {
	wrong := bytes.TrimSuffix(Key, []byte("t"))
	want(t, h.Test(ctx, h.Device, Volume, wrong), luks.ErrWrongKey, "Test of a wrong key")
	want(t, h.Open(ctx, h.Device, Volume, Key, true), nil, "Open")
	h.wantMapping(t, true, true)
	want(t, h.Verify(h.Device, Volume), nil, "Verify")
	want(t, h.Open(ctx, h.Device, Volume, Key, true), luks.ErrInUse, "Open for a second time")
	want(t, h.Clear(luks.Path(Volume)), nil, "Clear")
}

func grows(ctx context.Context, t *testing.T, h Harness) {
	node := luks.Path(Volume)
	release := h.Hold(t, node)
	defer release()
	want(t, h.Close(ctx, Volume), luks.ErrInUse, "Close while it is in use")
	h.wantMapping(t, true, true)
	before := h.Size(t, node)
	h.Grow(t, 8<<20)
	want(t, h.Resize(ctx, Volume), nil, "Resize")
	want(t, h.Verify(h.Device, Volume), nil, "Verify of what grew")
	if got := h.Size(t, node); got != before+8<<20 {
		t.Errorf("it has %d bytes, had %d", got, before)
	}
}

func stays(ctx context.Context, t *testing.T, h Harness) {
	want(t, h.Finish(ctx, h.Device, Volume), nil, "Finish of what is open")
	h.wantState(t, luks.Made)
	want(t, h.Close(ctx, Volume), nil, "Close")
	h.wantMapping(t, false, false)
	h.wantState(t, luks.Made)
}

func interrupted(ctx context.Context, t *testing.T, h Harness) {
	h.Interrupt(t, Volume)
	h.wantMapping(t, true, false)
	want(t, h.Close(ctx, Volume), nil, "Close")
	h.wantMapping(t, false, false)
}

func fails(ctx context.Context, t *testing.T, h Harness) {
	want(t, h.Open(ctx, h.Device, Volume, bytes.TrimSuffix(Key, []byte("t")), false), luks.ErrWrongKey, "Open with a wrong key")
	h.wantMapping(t, false, false)
	want(t, h.Open(ctx, h.Device, Volume, Key, false), nil, "Open")
	revive := h.Fail(t)
	defer revive()
	want(t, h.Close(ctx, Volume), nil, "Close")
	h.wantMapping(t, false, false)
}

func (h Harness) wantState(t *testing.T, state luks.State) {
	t.Helper()
	if got, err := h.Inspect(h.Device, Volume); err != nil || got != state {
		t.Fatalf("the volume is %v, error %v; want %v", got, err, state)
	}
}

func (h Harness) wantMapping(t *testing.T, there, whole bool) {
	t.Helper()
	m, ok, err := h.Mapping(Volume)
	if err != nil || ok != there || m.Whole != whole {
		t.Errorf("mapping %+v, %t, error %v", m, ok, err)
	}
	all, err := h.Mappings()
	if err != nil || slices.Contains(all, Volume) != there {
		t.Errorf("mappings of %q, error %v", all, err)
	}
}

func want(t *testing.T, got, want error, what string) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Fatalf("%s: %v, want %v", what, got, want)
	}
}
