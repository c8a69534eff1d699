package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/fleet"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func TestSoManyCallsOfAKindAreUnderWayToANodeAndOtherKindsGoOn(t *testing.T) {
	const places = 128
	h := newHarness(t)
	var mu sync.Mutex
	now, most := 0, 0
	count := func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		now += n
		most = max(most, now)
		return now
	}
	finish := make(chan struct{})
	h.node(t, "n").SetHooks(lvmdfake.Hooks{BeforeCreate: func(ctx context.Context, r *lvmdv1.CreateVolumeRequest) error {
		if r.GetSource() != nil {
			return status.Error(codes.NotFound, "no such source")
		}
		count(1)
		defer count(-1)
		select {
		case <-finish:
		case <-ctx.Done():
		}
		return nil
	}})
	ctx := testContext(t)
	var creating sync.WaitGroup
	for i := range 2 * places {
		creating.Go(func() { _, _ = h.CreateVolume(ctx, "n", request(fmt.Sprint("v", i))) })
	}
	waittest.Until(t, "all places are taken", func() bool { return count(0) >= places })
	must.Succeed(t, h.DeleteVolumeByID(ctx, "n", "none"))
	copied := request("copy")
	copied.Source = &lvmdv1.VolumeSource{VolumeId: "none"}
	if _, err := h.CreateVolume(ctx, "n", copied); status.Code(err) != codes.NotFound {
		t.Errorf("a copy is answered with %v, want that there is no such source", err)
	}
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	_, err := h.CreateVolume(canceled, "n", request("given-up"))
	if noPlace := (*fleet.NoPlaceError)(nil); !errors.As(err, &noPlace) || !fleet.NotSent(err) || fleet.MayHaveHappened(err) || status.Code(err) != codes.Canceled {
		t.Errorf("a call that was given up while it waited ends with %v, want a NoPlaceError with the code Canceled", err)
	}
	close(finish)
	creating.Wait()
	if most != places {
		t.Errorf("%d creates were under way at a time, want %d", most, places)
	}
}

// Each uplink buffers data of its node, and calls on a replaced one may last minutes.
func TestOfANodeThatConnectsAgainAndAgainTwoUplinksAreKept(t *testing.T) {
	h := newHarness(t)
	s := h.node(t, "n")
	entered := make(chan struct{})
	s.SetHooks(lvmdfake.Hooks{BeforeCreate: func(ctx context.Context, _ *lvmdv1.CreateVolumeRequest) error {
		close(entered)
		<-ctx.Done()
		return ctx.Err()
	}})
	answer := make(chan error, 1)
	go func() {
		_, err := h.CreateVolume(t.Context(), "n", request("v"))
		answer <- err
	}()
	<-entered
	for range 2 {
		h.net.Attach(s)
	}
	waittest.Until(t, "the call on the first uplink ends", func() bool { return len(answer) == 1 })
	// gRPC answers Canceled if its connection closes just before it resends the call. The
	// controller treats both as unknown outcomes.
	if err := <-answer; status.Code(err) != codes.Unavailable && status.Code(err) != codes.Canceled || !fleet.MayHaveHappened(err) {
		t.Errorf("the call ends with %v, want Unavailable or Canceled, which may have happened", err)
	}
}
