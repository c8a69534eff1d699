//go:build !kernel

package inventory

import (
	"fmt"
	"log/slog"
	"testing"

	"github.com/carve-csi/carve/pkg/lvmd/spec"
)

func TestAChangeThatIsSentDoesNotWakeTheReaderAgain(t *testing.T) {
	m := NewInventory("epoch", Options{Log: slog.New(slog.DiscardHandler)})
	w := m.Watch("", 0)
	<-w.wake
	w.Next()

	v := &Volume{recorded: recorded{spec.Record{ID: "cv1", Phase: spec.Deleting}}}
	m.publish(nil, v)
	<-w.wake // The second change comes after the reader woke for the first.
	m.publish(nil, v)
	w.Next()
	if len(w.wake) != 0 {
		t.Error("the reader is woken for a change that the last message had")
	}
}

func TestAVerySlowReaderStartsOverInsteadOfRememberingAll(t *testing.T) {
	w := newWatcher(nil)
	<-w.wake
	w.full = false
	for i := range 3 * maxPendingExtra {
		w.mark(10, nil, []*Volume{{recorded: recorded{spec.Record{ID: fmt.Sprint(i)}}}})
		if len(w.volumes) > 10+maxPendingExtra {
			t.Fatalf("%d remembered", len(w.volumes))
		}
	}
	if !w.full || len(w.volumes) != 0 {
		t.Errorf("full %v, %d remembered", w.full, len(w.volumes))
	}
}

func TestRemovalsAreRememberedForAWhile(t *testing.T) {
	m := NewInventory("run", Options{Log: slog.New(slog.DiscardHandler), Defect: t.Errorf})
	v := &Volume{recorded: recorded{spec.Record{ID: "kept", Phase: spec.Ready}}, group: newGroup(m.model, "carve")}
	m.add(v, Ready)
	m.publish(nil, v)
	for i := range maxRemovals + 10 {
		gone := &Volume{recorded: recorded{spec.Record{ID: fmt.Sprint(i), Phase: spec.Deleting}}}
		m.publish(nil, gone)
		m.publish(nil, gone) // A repeated report takes no more space.
	}
	if len(m.removals) != maxRemovals {
		t.Errorf("%d removals are remembered, want %d", len(m.removals), maxRemovals)
	}
	oldest := m.removals[0].generation
	for generation, full := range map[uint64]bool{0: true, oldest - 3: true, oldest - 2: false, oldest - 1: false, m.generation: false} {
		r := m.Watch("run", generation).Next()
		if r.GetFull() != full {
			t.Errorf("from generation %d of %d, removals from %d: full %v, want %v", generation, m.generation, oldest, r.GetFull(), full)
		}
		if generation == oldest-1 && len(r.GetRemovedVolumeIds()) != maxRemovals {
			t.Errorf("%d removals are reported, want all %d", len(r.GetRemovedVolumeIds()), maxRemovals)
		}
	}
}
