package provision

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

func phased(name string, phase v1.PersistentVolumePhase) *v1.PersistentVolume {
	return &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1.PersistentVolumeStatus{Phase: phase}}
}

func TestAProofCoversTheVolumesCreatedBeforeAndNotThoseAfter(t *testing.T) {
	p := newPVController()
	for _, name := range []string{"a", "b", "c"} {
		p.VolumeAdded(phased(name, v1.VolumePending))
	}
	p.ClaimDeleted("old", true)
	p.VolumeUpdated(phased("b", v1.VolumeBound))
	if !p.hasTaken("a") || p.hasTaken("c") {
		t.Errorf("after b was taken in: a %v, c %v", p.hasTaken("a"), p.hasTaken("c"))
	}
	if !p.MayBeBehind() {
		t.Error("it counts as up to date though the deleted claim's volume is not released")
	}
}

func TestWhatWeWriteOurselvesProvesNothing(t *testing.T) {
	p := newPVController()
	p.VolumeAdded(phased("a", v1.VolumePending))
	p.VolumeAdded(phased("b", v1.VolumePending))
	p.writesPhase("b")
	p.VolumeUpdated(phased("b", v1.VolumeBound))
	if p.hasTaken("a") {
		t.Error("our own write was taken for the PV controller's")
	}
}

func TestThePVControllerIsBehindUntilAProofFromAfterTheLastRelease(t *testing.T) {
	p := newPVController()
	p.VolumeAdded(phased("old", v1.VolumeBound))
	p.ClaimDeleted("old", true)
	p.VolumeAdded(phased("before", v1.VolumePending))
	p.VolumeUpdated(phased("old", v1.VolumeReleased))
	p.VolumeUpdated(phased("before", v1.VolumeBound))
	if !p.MayBeBehind() {
		t.Error("it counts as up to date with a proof from before the release")
	}
	p.VolumeAdded(phased("after", v1.VolumePending))
	p.VolumeUpdated(phased("after", v1.VolumeBound))
	if p.MayBeBehind() {
		t.Error("it counts as behind after a proof from after the release")
	}
}

// However much time passes: how long the PV controller is stuck is not known.
func TestNothingButAProofShowsThatThePVControllerIsNotBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPVController()
		p.VolumeAdded(phased("old", v1.VolumeBound))
		p.ClaimDeleted("old", true)
		p.VolumeUpdated(phased("old", v1.VolumeReleased))
		p.VolumeAdded(phased("new", v1.VolumePending))
		time.Sleep(24 * time.Hour)
		if !p.MayBeBehind() || p.hasTaken("new") {
			t.Errorf("after a day without a proof: behind %t, new volume taken in %t, want true, false", p.MayBeBehind(), p.hasTaken("new"))
		}
		p.VolumeUpdated(phased("new", v1.VolumeBound))
		if p.MayBeBehind() {
			t.Error("it counts as behind after a proof")
		}
	})
}

// pvController is what matters of the real one: a queue, in which every volume
// has one place, and a worker that may be stuck.
type pvController struct {
	queue []string
	store map[string]bool
}

func (c *pvController) enqueue(name string) {
	if !slices.Contains(c.queue, name) {
		c.queue = append(c.queue, name)
	}
}

// Whatever the order of creations, deletions and the worker's steps: a volume
// that is said to have been taken in is in the store.
func TestHasTakenIsNeverWrong(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, c := newPVController(), &pvController{store: map[string]bool{}}
		var pending []string
		next := 0
		t.Repeat(map[string]func(*rapid.T){
			"a volume is created": func(*rapid.T) {
				next++
				name := fmt.Sprint("pv-", next)
				pending = append(pending, name)
				p.VolumeAdded(phased(name, v1.VolumePending))
				c.enqueue(name)
			},
			"a claim is deleted": func(t *rapid.T) {
				if next > 0 {
					name := fmt.Sprint("pv-", rapid.IntRange(1, next).Draw(t, "volume"))
					p.ClaimDeleted(name, true)
					c.enqueue(name)
				}
			},
			"the worker takes a volume in, and perhaps writes its phase": func(t *rapid.T) {
				if len(c.queue) == 0 {
					return
				}
				name := c.queue[0]
				c.queue = c.queue[1:]
				c.store[name] = true
				if rapid.Bool().Draw(t, "writes") {
					pending = slices.DeleteFunc(pending, func(n string) bool { return n == name })
					p.VolumeUpdated(phased(name, v1.VolumeBound))
				}
			},
			"a volume is released": func(t *rapid.T) {
				if next > 0 {
					name := fmt.Sprint("pv-", rapid.IntRange(1, next).Draw(t, "volume"))
					if !slices.Contains(pending, name) {
						p.VolumeUpdated(phased(name, v1.VolumeReleased))
					}
				}
			},
			"": func(t *rapid.T) {
				for _, name := range pending {
					if p.hasTaken(name) && !c.store[name] {
						t.Fatalf("%s was said to be taken in, it waits in %v", name, c.queue)
					}
				}
			},
		})
	})
}
