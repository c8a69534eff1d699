package controller

import (
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func (h *harness) pod(name, node, claim string, phase v1.PodPhase) {
	h.t.Helper()
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: v1.PodSpec{NodeName: node, Volumes: []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}}},
		Status: v1.PodStatus{Phase: phase},
	}
	must.Get(h.client.CoreV1().Pods("default").Create(h.t.Context(), p, metav1.CreateOptions{}))(h.t)
}

func (h *harness) drain() []string {
	var events []string
	for {
		select {
		case e := <-h.events.Events:
			events = append(events, e)
		default:
			return events
		}
	}
}

func (w *auditing) setHealth(conditions, found []*lvmdv1.Condition) []string {
	w.t.Helper()
	var id string
	for _, vol := range w.node.Volumes() {
		id = vol.GetId()
		w.node.SetHealth(id, conditions, found)
	}
	waittest.Until(w.t, "the controller knows", func() bool {
		view, _ := w.c.core.Fleet.View("n1")
		vol := view.Volumes[id]
		return vol != nil && len(vol.GetConditions()) == len(conditions) && len(vol.GetFound()) == len(found)
	})
	w.drain()
	w.pass()
	return slices.DeleteFunc(w.drain(), func(e string) bool {
		return !strings.Contains(e, "VolumeUnhealthy") && !strings.Contains(e, "VolumeRecovered")
	})
}

func of(types ...string) []*lvmdv1.Condition {
	var c []*lvmdv1.Condition
	for _, t := range types {
		c = append(c, &lvmdv1.Condition{Type: t, Message: "why " + t})
	}
	return c
}

func wantEvents(t *testing.T, what string, got []string, n int, words ...string) {
	t.Helper()
	if len(got) != n {
		t.Errorf("%s: Events %q, want %d", what, got, n)
	}
	for _, e := range got {
		for _, word := range words {
			if !strings.Contains(e, word) {
				t.Errorf("%s: Event %q, want %q in it", what, e, word)
			}
		}
	}
}

func TestUsersAreNotifiedOfWhatIsWrongWithTheirVolumes(t *testing.T) {
	w := newAuditing(t, "")
	w.pod("user", "n1", "c", v1.PodRunning)
	w.pod("waits", "n1", "c", v1.PodPending)
	w.pod("done", "n1", "c", v1.PodSucceeded)
	w.pod("other", "n1", "another", v1.PodRunning)

	// On the claim and on the two Pods that use it.
	wantEvents(t, "a lost disk", w.setHealth(of("MissingDevice"), nil), 3, "Warning VolumeUnhealthy", "on node n1", "MissingDevice: why MissingDevice")
	wantEvents(t, "the same", w.setHealth(of("MissingDevice"), nil), 0)
	wantEvents(t, "what the node plugin found", w.setHealth(of("MissingDevice"), of("FileSystemErrors")), 3, "VolumeUnhealthy", "FileSystemErrors")
	wantEvents(t, "one is over", w.setHealth(nil, of("FileSystemErrors")), 3, "Normal VolumeRecovered", "recovered from: MissingDevice")
	wantEvents(t, "all is well", w.setHealth(nil, nil), 3, "Normal VolumeRecovered", "FileSystemErrors")
	wantEvents(t, "what is harmless", w.setHealth(of("OutOfSync"), nil), 0)
	wantEvents(t, "what may pass", w.setHealth(of("Suspended"), nil), 0)
	wantEvents(t, "what may pass, and did", w.setHealth(nil, nil), 0)
	wantEvents(t, "what may pass, again", w.setHealth(of("Suspended"), nil), 0)
	wantEvents(t, "what did not pass", w.setHealth(of("Suspended"), nil), 3, "VolumeUnhealthy", "Suspended")
}

func TestANodeWithoutItsVolumeGroupIsNamedUntilItHasOne(t *testing.T) {
	w := newAuditing(t, "")
	report := func(bytes int64, conditions ...*lvmdv1.Condition) []string {
		t.Helper()
		w.reportClass(bytes, conditions)
		w.drain()
		w.pass()
		return slices.DeleteFunc(w.drain(), func(e string) bool { return !strings.Contains(e, "DeviceClass") })
	}
	wantEvents(t, "no group", report(0, of("VolumeGroupMissing")...), 1, "Warning DeviceClassUnhealthy", "no volume can be made in device class local: VolumeGroupMissing: why VolumeGroupMissing")
	waittest.Until(t, "the capacity is zero", w.capacityIs("n1", 0))
	wantEvents(t, "still none", report(0, of("VolumeGroupMissing")...), 0)
	wantEvents(t, "the group appears", report(gib), 1, "Normal DeviceClassRecovered", "device class local recovered from: VolumeGroupMissing")
	wantEvents(t, "a deletion that waits", report(gib, of("DeletionWaits")...), 1, "Warning DeviceClassUnhealthy device class local: DeletionWaits: why DeletionWaits")
	wantEvents(t, "it waits still", report(gib, of("DeletionWaits")...), 0)
	wantEvents(t, "it goes on", report(gib), 1, "Normal DeviceClassRecovered", "device class local recovered from: DeletionWaits")
	wantEvents(t, "a group that does not fit the class", report(0, of("VolumeGroupUnfit")...), 1, "Warning DeviceClassUnhealthy", "no volume can be made in device class local: VolumeGroupUnfit: why VolumeGroupUnfit")
	wantEvents(t, "its extents were changed", report(gib), 1, "Normal DeviceClassRecovered", "device class local")
	wantEvents(t, "a disk and its copy", report(0, of("DuplicateDevice")...), 1, "Warning DeviceClassUnhealthy", "DuplicateDevice: why DuplicateDevice")
}

func TestANodeWhoseVolumeGroupTookThePlaceOfAnotherIsNamedOnce(t *testing.T) {
	w := newAuditing(t, "")
	report := func(conditions ...*lvmdv1.Condition) []string {
		t.Helper()
		w.reportClass(gib, conditions)
		w.drain()
		w.pass()
		return slices.DeleteFunc(w.drain(), func(e string) bool { return !strings.Contains(e, "device class") })
	}
	wantEvents(t, "another group", report(of("VolumeGroupChanged")...), 1, "Warning DeviceClassUnhealthy", "device class local: VolumeGroupChanged: why VolumeGroupChanged")
	wantEvents(t, "the same", report(of("VolumeGroupChanged")...), 0)
	wantEvents(t, "that is over", report(), 1, "Normal DeviceClassRecovered", "device class local recovered from: VolumeGroupChanged")
	wantEvents(t, "another one again", report(of("VolumeGroupChanged")...), 1, "Warning DeviceClassUnhealthy")
}

func TestTheHealthOfVolumesOnNodesThatAreAwayIsNotOver(t *testing.T) {
	w := newAuditing(t, "")
	wantEvents(t, "a lost disk", w.setHealth(of("MissingDevice"), nil), 1, "VolumeUnhealthy")
	w.net.Detach("n1")
	waittest.Until(w.t, "n1 is off", func() bool { v, _ := w.c.core.Fleet.View("n1"); return !v.Connected })
	w.drain()
	w.pass()
	w.attach(w.node, "n1")
	w.pass()
	for _, e := range w.drain() {
		if strings.Contains(e, "VolumeUnhealthy") || strings.Contains(e, "VolumeRecovered") {
			t.Errorf("Event %q, want none: nothing changed", e)
		}
	}
}
