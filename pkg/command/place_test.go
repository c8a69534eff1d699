package command

import (
	"context"
	"errors"
	"testing"

	"golang.org/x/sync/semaphore"
)

func TestAProgramThatWaitsHasNoPlace(t *testing.T) {
	among := semaphore.NewWeighted(1)
	p, err := TakePlace(t.Context(), among)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := TakePlace(ctx, among); !errors.Is(err, context.Canceled) {
		t.Errorf("while it is at work, another gets: %v", err)
	}
	p.Waiting(true)
	other, err := TakePlace(t.Context(), among)
	if err != nil {
		t.Fatal(err)
	}
	p.Waiting(false)
	p.Release()
	if among.TryAcquire(1) {
		t.Error("a program that went on without a place gave one back")
	}
	p.Waiting(true)
	other.Release()
	p.Waiting(false)
	if among.TryAcquire(1) {
		t.Error("a program that goes on has not taken the place that was free")
	}
	p.Release()
	p.Release()
	if !among.TryAcquire(1) || among.TryAcquire(1) {
		t.Error("in the end there is not one place")
	}
}
